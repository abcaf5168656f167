"""`fedcohort sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedcohort.cli.options import CohortSize, Force, StoreFolder, Workers
from fedcohort.cli.progress import plain, watched
from fedcohort.cli.run_command import pair
from fedcohort.experiment import config as configuration
from fedcohort.experiment import sweep as sweeping
from fedcohort.experiment.store import ROOT, Store, put_aside

Listed = list[str] | None


def sweep_command(
    file: Annotated[Path | None, typer.Argument(help="A TOML file with lists and the keys of a run.")] = None,
    selectors: Annotated[Listed, typer.Option(help="Selectors, e.g. 'uniform, oort(explore=0.8)'; repeatable.")] = None,
    methods: Annotated[Listed, typer.Option(help="Methods; likewise.")] = None,
    worlds: Annotated[Listed, typer.Option(help="Worlds; likewise.")] = None,
    tasks: Annotated[Listed, typer.Option(help="Tasks; likewise.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Number of seeds (5), or the seeds themselves (0,3,7 or 10-14).")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of each run.")] = None,
    cohort_size: CohortSize = None,
    change: Annotated[
        Listed, typer.Option("--set", help="KEY=VALUE for any key of a run, or e.g. world.clients=50; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the sweep, part of its file's name.")] = None,
    workers: Workers = 0,
    backend: Annotated[str, typer.Option(help="Where to run: local or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of the Ray cluster.", show_default="$RAY_ADDRESS, or a local one")
    ] = None,
    store: StoreFolder = ROOT,
    force: Force = False,
) -> None:
    """Run all combinations of selectors, methods, worlds, tasks and seeds, in parallel.

    FILE is a TOML file with these lists and any other key of a run; options override it. The same command continues a
    sweep that was stopped. A run that fails does not stop the others: it is listed at the end, and the exit code is 1.
    """
    lists = {"selectors": selectors, "methods": methods, "worlds": worlds, "tasks": tasks}
    single = {"rounds": rounds, "cohort_size": cohort_size, "name": name}
    sweep, runs = sweeping.from_mapping(_values(file, lists, seeds, single, change or [])), Store(store)
    if force:
        for config in sweep.runs():
            if runs.state(config) != "absent":
                put_aside(runs.folder(config))
    _tell(_run(sweep, runs, backend, workers, address))


def _values(
    file: Path | None, lists: dict[str, Listed], seeds: str | None, single: dict[str, Any], changes: list[str]
) -> dict[str, Any]:
    """The keys of the file, changed by the options."""
    values: dict[str, Any] = configuration.from_toml(file) if file is not None else {}
    if file is not None:
        values.setdefault("name", file.stem.replace(" ", "-"))
    for key, entries in lists.items():
        if entries:
            _put(values, key, [part for text in entries for part in sweeping.split(text)])
    if seeds is not None:
        _put(values, "seeds", sweeping.seeds_of(seeds))
    values.update({k: v for k, v in single.items() if v is not None})
    for text in changes:
        sweeping.assign(values, *pair(text))
    return values


def _put(values: dict[str, Any], plural: str, listed: Any) -> None:
    """A list from the command line replaces both spellings in the file."""
    values.pop(plural.removesuffix("s"), None)
    values[plural] = listed


def _run(sweep: sweeping.Sweep, store: Store, backend: str, workers: int, address: str | None) -> sweeping.SweepOutcome:
    with watched(sweep.runs(), store) as bar:
        return sweeping.run_sweep(sweep, store, backend=backend, workers=workers, address=address, on_event=bar.hear)


def _tell(outcome: sweeping.SweepOutcome) -> None:
    console = Console(highlight=False, soft_wrap=True)
    states = list(outcome.states.values())
    made = sum(s in ("run", "resumed") for s in states)
    console.print(
        f"{len(states)} runs: {made} run, {states.count('read')} read from the store, {len(outcome.errors)} failed"
    )
    for name, error in outcome.errors.items():
        config = outcome.runs[name]
        what = f"{config.selector}, {config.method}, {config.world}, {config.task}, seed {config.seed}"
        console.print(f"[red]failed[/] {name} ({plain(what)}): {plain(error)}")
    console.print(f"sweep: {outcome.file}")
    if outcome.errors:
        raise typer.Exit(1)
