"""The progress bar of many runs: rounds done, time left, and a line for each run that ends."""

from __future__ import annotations

import contextlib
import logging
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from fedcohort.experiment.config import RunConfig
    from fedcohort.experiment.runner import Event
    from fedcohort.experiment.store import Store

INTERRUPTED = 130  # the exit code after Ctrl-C


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
        stopped(f"nothing is lost: the runs are in {store.root}, and the same command continues")
    finally:
        bar.stop()


def stopped(text: str) -> NoReturn:
    """The end after Ctrl-C: one line that says where everything is and how to go on."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"stopped; {plain(text)}")
    sys.exit(INTERRUPTED)


@contextlib.contextmanager
def interruptible(folder: Path) -> Iterator[None]:
    """While a run is written to this folder: Ctrl-C names it, and the command that continues."""
    try:
        yield
    except KeyboardInterrupt:
        from fedcohort.storage.run_folder import RunFolder

        if RunFolder(folder).begun:
            go_on = f"fedcohort resume {shlex.quote(str(folder))}"
            stopped(f"nothing is lost: the run is in {folder}; continue with `{go_on}`")
        stopped("nothing was written yet; start again with the same command")


class EngineLines(logging.Handler):
    """Log records as lines on standard error, held until the first round has ended: an error stands alone."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.held: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """One line more."""
        self.held.append(record.getMessage())

    def show(self, row: object = None) -> None:
        """Print what is held."""
        del row
        while self.held:
            Console(stderr=True, highlight=False, soft_wrap=True).print(plain(self.held.pop(0)))


@contextlib.contextmanager
def engine_lines() -> Iterator[EngineLines]:
    """Meanwhile, what engines log is printed: which one was chosen, on which device, and why."""
    log, lines = logging.getLogger("fedcohort.engine"), EngineLines()
    before = log.level, log.propagate
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield lines
        lines.show()
    finally:
        log.removeHandler(lines)
        log.level, log.propagate = before


told: set[str] = set()  # warnings that this command has printed


def tell_warning(message: Warning | str, *rest: object) -> None:
    """Print a warning as one line; takes the place of `warnings.showwarning`, which prints source code, too."""
    del rest
    tell_notes([str(message)])


def tell_notes(notes: Iterable[str]) -> None:
    """Print what a person must know of a run, each once."""
    for text in notes:
        if text not in told:
            told.add(text)
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"[yellow]warning:[/] {plain(text)}")


def plain(text: str) -> str:
    """Text in which rich reads no markup."""
    return text.replace("[", r"\[")
