"""`fedcohort run` and `fedcohort resume`."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedcohort.cli.options import CohortSize, Force, ToMLflow, ToTensorBoard
from fedcohort.cli.progress import engine_lines, interruptible, plain, tell_notes
from fedcohort.errors import BadParameter
from fedcohort.experiment import config as configuration
from fedcohort.experiment import runs as running
from fedcohort.experiment.store import Store
from fedcohort.looks import time_text
from fedcohort.report.export.writers import Writers


def run_command(
    file: Annotated[Path | None, typer.Argument(help="A TOML file with the keys of a run.")] = None,
    selector: Annotated[str | None, typer.Option(help="Who is asked to train, e.g. 'oort(explore=0.8)'.")] = None,
    method: Annotated[str | None, typer.Option(help="How updates become a model, e.g. fedavg.")] = None,
    world: Annotated[str | None, typer.Option(help="How clients differ, e.g. mixed-v1.")] = None,
    task: Annotated[str | None, typer.Option(help="What is trained, e.g. digits-mlp.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    cohort_size: CohortSize = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="What trains the clients: auto, fused, torch_workers, ray ...")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where torch engines compute: auto, cpu, cuda, cuda:1 or mps.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE for any key of a run, or e.g. selector.explore=0.8; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", show_default="runs/SELECTOR-DIGEST")] = None,
    force: Force = False,
    tensorboard: ToTensorBoard = None,
    mlflow: ToMLflow = None,
) -> None:
    """Run one selector and one method on one task in one world.

    FILE is a TOML file with the keys of a run; options override it, and `fedcohort show config` lists all keys with
    their defaults. A configuration that was run before is read from its folder; an unfinished run is resumed.
    """
    given = {"selector": selector, "method": method, "world": world, "task": task, "engine": engine, "device": device}
    numbers = {"rounds": rounds, "cohort_size": cohort_size, "seed": seed}
    values: dict[str, Any] = configuration.from_toml(file) if file is not None else {}
    values.update({k: v for k, v in {**given, **numbers}.items() if v is not None})
    for text in change or []:
        configuration.assign(values, *pair(text))
    config = configuration.from_mapping(values).canonical()
    store = Store()
    place = out or store.folder(config)
    name = place.absolute().name
    with (
        interruptible(place),
        engine_lines() as lines,
        Writers(name, config.to_dict(), tensorboard, mlflow) as writers,
        _Bar(config.rounds) as bar,
    ):
        if not force and store.state(config, place) == "unfinished":
            writers.take(running.read(place).history.rows)
        obtained = store.obtain(config, folder=place, force=force, on_round=both(lines.show, writers, bar.show))
        writers.take(obtained.finished.history.rows)
    _summary(obtained.finished, {"read": " (read from the store)", "resumed": " (resumed)"}.get(obtained.how, ""))


def resume_command(
    folder: Annotated[Path, typer.Argument(help="The folder of the run.")],
    tensorboard: ToTensorBoard = None,
    mlflow: ToMLflow = None,
) -> None:
    """Resume a run that was stopped. FOLDER is its run folder."""
    known = running.read(folder)
    name, keys = folder.absolute().name, known.config.to_dict()
    with (
        interruptible(folder),
        engine_lines() as lines,
        Writers(name, keys, tensorboard, mlflow) as writers,
        _Bar(known.config.rounds, len(known.history.rows)) as bar,
    ):
        writers.take(known.history.rows)
        finished = running.resume(folder, both(lines.show, writers, bar.show))
    _summary(finished)


def both(*hearers: running.OnRound) -> running.OnRound:
    """Tell several about each round."""

    def tell(row: dict[str, float]) -> None:
        for hear in hearers:
            hear(row)

    return tell


class _Bar:
    """A progress bar with accuracy and virtual time. It appears with the first round, so that errors stand alone."""

    def __init__(self, rounds: int, done: int = 0) -> None:
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("accuracy {task.fields[accuracy]}  virtual time {task.fields[clock]}"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=Console(stderr=True))
        self.task = self.progress.add_task("", total=rounds, completed=done, accuracy="-", clock="-")

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress.live.is_started:
            self.progress.stop()

    def show(self, row: dict[str, float]) -> None:
        """One more round."""
        self.progress.start()
        accuracy = f"{row['accuracy']:.3f}" if "accuracy" in row else "-"
        self.progress.update(
            self.task, completed=int(row["round"]) + 1, accuracy=accuracy, clock=time_text(row["clock"])
        )


def _summary(finished: running.RunResult, how: str = "") -> None:
    history, console = finished.history, Console(highlight=False, soft_wrap=True)
    last = history.rows[-1] if history.rows else {}
    usage = history.usage()
    fair = f", participation fairness {history.fairness():.3f} (Jain)" if usage.asked.any() else ""
    console.print(
        f"{len(history.rows)} rounds, accuracy {last.get('accuracy', float('nan')):.4f}, "
        f"virtual time {time_text(last.get('clock', 0.0))}{fair}"
    )
    known, never = int((usage.asked > 0).sum()), int(((usage.asked > 0) & (usage.used == 0)).sum())
    replies = f"{usage.used.sum():,} of {usage.asked.sum():,} replies used"
    console.print(f"{replies}; {never} of {known} clients asked and never used")
    if len(history.rows) < finished.config.rounds:
        console.print(f"ended early: {plain(history.ended)}")
    tell_notes(history.notes)
    console.print(f"run folder: {finished.folder}{how}")


def pair(text: str) -> tuple[str, Any]:
    """KEY=VALUE of --set; the value may be a number, true or false, a list, or a word with or without quotes."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadParameter(f"--set {text!r}", "this is not of the form KEY=VALUE", "write e.g. --set deadline=300")
    return key.strip(), only_value(value.strip())


def only_value(raw: str) -> Any:
    """A value as a person types it: what looks like a number, a list or a truth value is one, anything else a word."""
    for convert in (int, float, _toml, ast.literal_eval):
        try:
            found: Any = convert(raw)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(found, (bool, int, float, str, list, tuple, dict, type(None))):
            return found
    return raw


def _toml(raw: str) -> Any:
    found = tomllib.loads(f"value = {raw}")
    if set(found) != {"value"}:
        raise ValueError(raw)
    return found["value"]
