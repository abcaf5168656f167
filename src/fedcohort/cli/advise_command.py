"""`fedcohort advise`: which selector for your own data and fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedcohort.cli.own_data import OWN_DATA, data_text
from fedcohort.cli.progress import plain
from fedcohort.errors import DataError, check

if TYPE_CHECKING:
    from fedcohort.arena.own_trial import SelectorTrial
    from fedcohort.experiment.config import RunConfig

NEEDS = """`fedcohort advise` tries a shortlist of selectors on your own data and ends in one sentence. It needs

  --data FILE        your samples: an .npz with the arrays x, y and client (who owns each sample), or a table:
                     --data clinic.csv --target ill --client site
                     or --task mymodule:make_task for a model of your own
  --latency FILE     seconds that each client takes for a round: a csv with the columns client and seconds, several
                     rows of a client where you have several observations (without it everybody is equally fast)
  --availability F   when each client is there: a csv with the columns device, begin and end (without it: always)

Without data of your own: `fedcohort arena advise --world NAME` goes by the nearest problems of the arena."""


def advise_command(
    data: Annotated[str | None, typer.Option(help=OWN_DATA)] = None,
    target: Annotated[str, typer.Option(help="Column of the labels, where --data is a table.")] = "",
    client: Annotated[str, typer.Option(help="Column of the owners, where --data is a table.")] = "",
    task: Annotated[str | None, typer.Option(help="A task instead of --data, e.g. mymodule:make_task.")] = None,
    latency: Annotated[
        Path | None, typer.Option(help="Seconds of your clients: csv or npz, client and seconds.")
    ] = None,
    availability: Annotated[Path | None, typer.Option(help="When your clients are there: a trace.")] = None,
    world: Annotated[str | None, typer.Option(help="Another world.", show_default="one client per owner")] = None,
    selectors: Annotated[
        str | None, typer.Option(help="Another shortlist, with commas.", show_default="uniform, ledger, oort, ...")
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Paired runs of each selector. 6 can decide a list of three, 7 of five, 8 of eight.")
    ] = 8,
    rounds: Annotated[int, typer.Option(help="Rounds of uniform; everybody gets the time that they take.")] = 30,
    cohort_size: Annotated[
        int | None, typer.Option("--cohort-size", "-k", help="Clients a round.", show_default="a third, at most 10")
    ] = None,
) -> None:
    """Compare a shortlist of selectors on your own data and fleet, and say in one sentence which one to use."""
    if data is None and task is None:
        typer.echo(NEEDS)
        raise typer.Exit(2)
    check(data is None or task is None, "--data and --task", "samples come from one of the two", "leave one out")
    text = data_text(data, target, client) if data is not None else str(task)
    config = _config(text, world, latency, availability, cohort_size)
    from fedcohort.arena.own_trial import SHORTLIST, compare_on
    from fedcohort.experiment.sweep import split
    from fedcohort.experiment.texts import canonical

    console = Console(highlight=False, soft_wrap=True)
    named = [canonical("selector", name) for name in split(selectors)] if selectors else []
    chosen = named or [*SHORTLIST, *_from_arena(console, config, SHORTLIST)]
    with Console(stderr=True).status("") as status:
        told = lambda name, seed: status.update(f"{plain(name)}, seed {seed}")  # noqa: E731
        trial = compare_on(config, chosen, seeds=seeds, rounds=rounds, on_run=told)
    console.print(_table(trial))
    for name, why in trial.failed.items():
        console.print(f"{plain(name)} could not run here: {plain(why)}")
    console.print(trial.sentence(), markup=False)


def _config(
    task: str, world: str | None, latency: Path | None, availability: Path | None, cohort_size: int | None
) -> RunConfig:
    """The run that all selectors share; every mistake in the data and the fleet shows here."""
    from fedcohort.experiment.config import from_mapping
    from fedcohort.experiment.runs import build_world_for
    from fedcohort.experiment.texts import OWNERS, canonical, changed
    from fedcohort.registry.lookup import make_task_spec, make_world_spec

    spec = make_task_spec(task)
    if world is None and spec.owners() is None:
        rule = "the data do not say who owns which sample, so there are no clients to choose from"
        remedy = "give a client array or --client COLUMN, or a world that divides them: --world mixed-v1"
        raise DataError(f"{task}", rule, remedy)
    place = world or OWNERS
    if latency is not None:
        place = changed("world", place, ["latency"], {"kind": "given", "path": str(latency)})
    if availability is not None:
        place = changed("world", place, ["availability"], {"kind": "trace", "path": str(availability)})
    clients = build_world_for(make_world_spec(place), spec, 0).population
    check(clients >= 3, f"{clients} clients", "with fewer than 3 there is little to choose", "give more clients")
    values: dict[str, Any] = {"task": canonical("task", task), "world": place}
    return from_mapping({**values, "cohort_size": cohort_size or max(2, min(10, clients // 3))})


def _from_arena(console: Console, config: RunConfig, known: tuple[str, ...]) -> list[str]:
    """The selector that did best on the nearest problem of the arena, where that is another one."""
    from fedcohort.arena.advice import advise
    from fedcohort.arena.contest import board

    found = advise(config.world, board(max_privacy="P2"), task=config.task)
    problem, far = found.near[0]
    console.print(f"nearest problem of the arena: {problem.name} ({far:.1f} steps away): {problem.about}", markup=False)
    best = found.suggestions[0].standing.entry if found.suggestions else ""
    return [best] if best and best.partition("(")[0] not in known else []


def _table(trial: SelectorTrial) -> Table:
    title = f"{trial.seeds} seeds, everybody {trial.seconds:,.0f} s: {trial.rounds} rounds of uniform"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("selector", "accuracy", "against uniform", "rounds"):
        table.add_column(name, justify="left" if name == "selector" else "right")
    for row in trial.rows:
        gain = "-" if row.selector == "uniform" else row.gain()
        table.add_row(plain(row.selector), f"{row.scores.mean():.3f}", gain.replace("[", r"\["), f"{row.rounds:.0f}")
    return table
