"""`fedcohort sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedcohort.cli.progress import plain, watched
from fedcohort.cli.run_command import pair
from fedcohort.experiment import config as configuration
from fedcohort.experiment import sweep as sweeping
from fedcohort.experiment.store import ROOT, Store, put_aside

Listed = list[str] | None


def sweep_command(
    file: Annotated[Path | None, typer.Argument(help="A TOML file with lists and the keys of a run.")] = None,
    selectors: Annotated[Listed, typer.Option(help="Selectors: 'uniform, oort(explore=0.8)'; may be repeated.")] = None,
    methods: Annotated[Listed, typer.Option(help="Methods.")] = None,
    worlds: Annotated[Listed, typer.Option(help="Worlds.")] = None,
    tasks: Annotated[Listed, typer.Option(help="Tasks.")] = None,
    seeds: Annotated[str | None, typer.Option(help="How many (5), or which (0,3,7 or 10-14).")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds of every run.")] = None,
    cohort_size: Annotated[int | None, typer.Option("--cohort-size", "-k", help="Replies wanted per round.")] = None,
    change: Annotated[Listed, typer.Option("--set", help="Any key of a run, also world.clients: KEY=VALUE.")] = None,
    name: Annotated[str | None, typer.Option(help="What the sweep is called.")] = None,
    workers: Annotated[int, typer.Option(help="Processes of one thread each (0: one per core).")] = 0,
    backend: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster.")] = None,
    store: Annotated[Path, typer.Option(help="Folder of the runs.")] = ROOT,
    force: Annotated[bool, typer.Option("--force", help="Re-run even if a stored result exists.")] = False,
) -> None:
    """Run selectors x methods x worlds x tasks x seeds, in parallel; the same command goes on where it was stopped.

    A run that fails does not stop the others: it is listed at the end, and the exit code is 1.
    """
    values: dict[str, Any] = configuration.from_toml(file) if file is not None else {}
    if file is not None:
        values.setdefault("name", file.stem.replace(" ", "-"))
    lists = {"selectors": selectors, "methods": methods, "worlds": worlds, "tasks": tasks}
    for key, entries in lists.items():
        if entries:
            _put(values, key, [part for text in entries for part in sweeping.split(text)])
    if seeds is not None:
        _put(values, "seeds", sweeping.seeds_of(seeds))
    values.update(
        {k: v for k, v in {"rounds": rounds, "cohort_size": cohort_size, "name": name}.items() if v is not None}
    )
    for text in change or []:
        sweeping.assign(values, *pair(text))
    sweep, runs = sweeping.from_mapping(values), Store(store)
    if force:
        for config in sweep.runs():
            if runs.state(config) != "absent":
                put_aside(runs.folder(config))
    _tell(_run(sweep, runs, backend, workers, address))


def _put(values: dict[str, Any], plural: str, listed: Any) -> None:
    """A list from the command line takes the place of both spellings in the file."""
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
