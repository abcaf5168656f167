"""The runs of a report, read one after the other; of each only the columns that tables and curves need are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import FedcohortError, StoreError
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.metrics.comparison import Setting, named, one_entry
from fedcohort.experiment.metrics.settings import counted, setting_names
from fedcohort.experiment.metrics.stored_metrics import RunRecord, placed
from fedcohort.experiment.runs import read, refuse_deployment
from fedcohort.experiment.store import Store, client_accuracy
from fedcohort.rounds.history import History
from fedcohort.rounds.history_columns import Groups
from fedcohort.rounds.usage import Usage
from fedcohort.storage.run_folder import RunFolder
from fedcohort.types import Index

Double = NDArray[np.float64]
OnRead = Callable[[int, int], None]  # how many are read, of how many
MOST_NOTES = 8


@dataclass
class Columns(History):
    """A history as arrays for a report; its cohorts are kept only where they are asked for."""

    values: dict[str, Double] = field(default_factory=dict)
    counts: Usage = field(default_factory=Usage)
    length: int = 0

    def column(self, name: str) -> Double:
        """One number per round; NaN where it was not measured."""
        return self.values[name] if name in self.values else np.full(self.length, np.nan)

    def participation(self) -> Index:
        """How often each client was asked."""
        return self.counts.asked

    def usage(self) -> Usage:
        """How often each client was asked and used."""
        return self.counts


@dataclass(frozen=True)
class Run:
    """One run of the report."""

    folder: Path
    record: RunRecord
    state: str  # finished, running, unfinished
    setting: str
    entry: str  # what is compared: its selector, or its method

    @property
    def config(self) -> RunConfig:
        """Its configuration."""
        return self.record.config

    @property
    def history(self) -> Columns:
        """Its numbers."""
        assert isinstance(self.record.history, Columns)
        return self.record.history

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.state == "finished"


@dataclass(frozen=True)
class Gathered:
    """All runs of a report, those of one setting and entry next to each other, and what there is to say about them."""

    runs: tuple[Run, ...]
    by: str
    notes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)  # what an entry is called, where not by its text
    order: tuple[str, ...] = ()  # entries that come first

    def label(self, entry: str) -> str:
        """What this entry is called."""
        return self.labels.get(entry, entry)

    def arranged(self, labels: Mapping[str, str], order: Sequence[str]) -> Gathered:
        """The same runs with other names and in another order; entries may be named without their arguments."""
        known = sorted({r.entry for r in self.runs})
        found = {one_entry(entry, known, self.by): text for entry, text in labels.items()}
        return replace(self, labels=found, order=tuple(one_entry(entry, known, self.by) for entry in order))

    def ordered(self, setting: Setting) -> Setting:
        """A setting with its rows in the wanted order."""
        rows = sorted(setting.rows, key=lambda row: self._place(row.entry))
        return replace(setting, rows=tuple(rows))

    def _place(self, entry: str) -> int:
        return self.order.index(entry) if entry in self.order else len(self.order)

    @property
    def settings(self) -> list[str]:
        """Names of the settings, in order."""
        return sorted({r.setting for r in self.runs})

    def entries(self, setting: str) -> dict[str, list[Run]]:
        """Runs of a setting by entry, seeds in order."""
        out: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda r: self._place(r.entry)):
            if run.setting == setting:
                out.setdefault(run.entry, []).append(run)
        return out


def gather(
    paths: Sequence[Path],
    store: Store | None = None,
    *,
    by: str = "selector",
    cohorts: bool = False,
    on_read: OnRead | None = None,
) -> Gathered:
    """Read every run that was begun. One that cannot be read is left out, and a note says why."""
    folders = named(paths, store)
    begun = [f for f in folders if RunFolder(f).begun]
    notes = [f"{len(folders) - len(begun)} of {len(folders)} runs have not begun"] if len(begun) < len(folders) else []
    read_: list[tuple[Path, RunRecord, str]] = []
    failed: list[FedcohortError] = []
    for at, folder in enumerate(begun):
        now = RunFolder(folder).state()  # before reading: a run that ends meanwhile is finished the next time
        try:
            read_.append((folder, _record(folder, cohorts), now))
        except FedcohortError as error:
            failed.append(error)
        if on_read is not None:
            on_read(at + 1, len(begun))
    if not read_ and failed:
        raise failed[0]
    if not read_:
        raise StoreError(f"{len(folders)} runs", "none of them has begun", "run them first")
    notes += [f"left out: {error}" for error in failed[:MOST_NOTES]]
    notes += [f"left out for such reasons: {len(failed) - MOST_NOTES} more"] if len(failed) > MOST_NOTES else []
    return _arranged(read_, by, notes)


def _arranged(found: list[tuple[Path, RunRecord, str]], by: str, notes: list[str]) -> Gathered:
    records, left = counted((record for _, record, _ in found), by)
    where = {id(record): (folder, now) for folder, record, now in found}
    runs = []
    for record, name in zip(records, setting_names(records, by), strict=True):
        folder, now = where[id(record)]
        runs.append(Run(folder, record, now, name, str(getattr(record.config, by))))
    runs.sort(key=lambda r: (r.setting, r.entry, r.config.seed))
    notes = [*notes, *left]
    waiting = sum(not r.finished for r in runs)
    if waiting:
        notes = [
            *notes,
            f"{waiting} of {len(runs)} runs are not finished: drawn on their own, and in no table of metrics",
        ]
    told = Counter(f"{run.entry}: {text}" for run in runs for text in run.record.history.notes)
    notes = [*notes, *(f"{text} ({'one run' if n == 1 else f'{n} runs'})" for text, n in told.most_common(MOST_NOTES))]
    return Gathered(tuple(runs), by, tuple(notes))


def _record(folder: Path, cohorts: bool) -> RunRecord:
    refuse_deployment(RunFolder(folder).reader().header, folder)
    found = read(folder)
    rows = found.history.rows
    history = Columns(
        found.history.population,
        cohorts=found.history.cohorts if cohorts else Groups(),
        values={n: found.history.column(n) for n in rows.names if not n.startswith("method.")},
        counts=found.history.usage(),
        length=len(rows),
        ended=found.history.ended,
        notes=found.history.notes,
    )
    return placed(RunRecord(found.config, history, client_accuracy(folder)), folder)
