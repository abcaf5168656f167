"""The progress bar of many runs: rounds done, time left, and a line for each run that ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runner import Event
from fedcohort.experiment.store import Store


class Bar:
    """Rounds of all runs that are not in the store, with the time left; a line for each run that ends."""

    def __init__(self, runs: Iterable[RunConfig], store: Store) -> None:
        todo = [c for c in runs if store.state(c) != "finished"]
        columns = (
            TextColumn("{task.fields[runs]}/{task.fields[all]} runs"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
        )
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.progress = Progress(*columns, console=self.console)
        total = sum(c.rounds for c in todo)
        self.task = self.progress.add_task("", total=total, runs=0, all=len(todo))
        self.done: dict[str, int] = {}
        self.ended = 0

    def hear(self, event: Event) -> None:
        """News of a run."""
        self.progress.start()
        if event.kind in ("round", "done", "failed"):
            self.done[event.job.id] = event.round if event.kind == "round" else event.job.rounds
        if event.kind in ("done", "failed", "lost"):
            self.ended += event.kind != "lost"
            colour = {"failed": "red", "lost": "yellow"}.get(event.kind, "green")
            self.console.print(f"[{colour}]{event.kind}[/] {event.job.id} {plain(event.text)}")
        self.progress.update(self.task, completed=sum(self.done.values()), runs=self.ended)

    def stop(self) -> None:
        """Give the terminal back."""
        if self.progress.live.is_started:
            self.progress.stop()


@contextlib.contextmanager
def watched(runs: Iterable[RunConfig], store: Store) -> Iterator[Bar]:
    """A progress bar while runs are going; Ctrl-C ends the command with a sentence."""
    bar = Bar(runs, store)
    try:
        yield bar
    except KeyboardInterrupt:
        bar.stop()
        Console(stderr=True).print("stopped; nothing is lost: the same command continues")
        raise typer.Exit(130) from None
    finally:
        bar.stop()


def plain(text: str) -> str:
    """Text in which rich reads no markup."""
    return text.replace("[", r"\[")
