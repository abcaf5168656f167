"""`fedcohort sweep`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedcohort.cli.options import CohortSize, Force, StoreFolder, Workers
from fedcohort.cli.progress import plain, watched
from fedcohort.cli.run_command import only_value, pair
from fedcohort.errors import BadParameter
from fedcohort.experiment import config as configuration
from fedcohort.experiment import sweep as sweeping
from fedcohort.experiment.store import ROOT, Store, put_aside

Listed = list[str] | None
EXPLANATION = """Nothing to run yet: say what is to be varied. Each of these is complete:

    fedcohort sweep --selectors "uniform, oort" --seeds 8
    fedcohort sweep selectors=[uniform,oort] seeds=8 cohort_size=[5,10] deadline=[60,300]
    fedcohort sweep selector=oort selector.explore=[0.1,0.5] world.clients=[20,50] rounds=40
    fedcohort sweep noise.toml --set rounds=40

All combinations are run, in parallel; runs that the store has already are not repeated. Then compare them:

    fedcohort compare runs
    fedcohort report runs

`fedcohort show config` lists every key, `fedcohort sweep --help` every option."""


def sweep_command(
    what: Annotated[
        Listed,
        typer.Argument(help="A TOML file with lists and the keys of a run; and KEY=[VALUES] for any key to vary."),
    ] = None,
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
    """Run all combinations of selectors, methods, worlds, tasks, seeds and any other key, in parallel.

    WHAT is a TOML file with such lists and any other key of a run, or KEY=VALUE, where a list is varied:
    cohort_size=[5,10] selector.explore=[0.1,0.5]; these and options override the file. The same command continues a
    sweep that was stopped. A run that fails does not stop the others: it is listed at the end, and the exit code is 1.
    """
    lists = {"selectors": selectors, "methods": methods, "worlds": worlds, "tasks": tasks}
    single = {"rounds": rounds, "cohort_size": cohort_size, "name": name}
    if not any((what, seeds, change, *lists.values(), *single.values())):
        typer.echo(EXPLANATION)
        raise typer.Exit(2)
    file, pairs = _arguments(what or [])
    values = _values(file, lists, seeds, single, change or [])
    for key, value in pairs:
        _put(values, sweeping.PLURALS.get(key, key), [value] if key == "seed" and isinstance(value, int) else value)
    sweep, runs = sweeping.from_mapping(values), Store(store)
    if force:
        for config in sweep.runs():
            if runs.state(config) != "absent":
                put_aside(runs.folder(config))
    _tell(_run(sweep, runs, backend, workers, address))


def _arguments(given: list[str]) -> tuple[Path | None, list[tuple[str, Any]]]:
    """The file, if one is named, and the keys with their values."""
    files = [text for text in given if "=" not in text or text.endswith(".toml")]
    if len(files) > 1:
        raise BadParameter(f"{files[0]} and {files[1]}", "a sweep has one file", "name one, or write KEY=[VALUES]")
    if (
        files
        and files[0].partition(".")[0] in (*configuration.KEYS, *sweeping.AXES, "seeds")
        and not Path(files[0]).exists()
    ):
        raise BadParameter(files[0], "this key has no values", f"write e.g. {files[0]}=[VALUE,VALUE], without spaces")
    return Path(files[0]) if files else None, [_listed(text) for text in given if text not in files]


def _listed(text: str) -> tuple[str, Any]:
    """KEY=[VALUES]; words in the list need no quotes, and seeds may be written as with --seeds."""
    key, value = pair(text)
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        value = [only_value(part) for part in sweeping.split(value[1:-1])]
    elif sweeping.PLURALS.get(key, key) in sweeping.AXES and isinstance(value, str):  # selectors=uniform,oort
        value = sweeping.split(value)
    elif key == "seeds" and isinstance(value, str):
        value = sweeping.seeds_of(value)
    return key, value


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


def _put(values: dict[str, Any], key: str, listed: Any) -> None:
    """A value from the command line replaces both spellings in the file, as in selector and selectors."""
    values.pop({plural: one for one, plural in sweeping.PLURALS.items()}.get(key, key), None)
    values[key] = listed


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
    for note, count in Counter(note for notes in outcome.notes.values() for note in notes).items():
        console.print(f"[yellow]warning:[/] {plain(note)} ({'one run' if count == 1 else f'{count} runs'})")
    console.print(f"sweep: {outcome.file}")
    if outcome.errors:
        raise typer.Exit(1)
