"""The rounds of one run in memory, as columns: what curves, map and clients are drawn from.

A track grows with its journal. Numbers are kept as doubles (NaN where nothing was measured) and cohorts as one flat
list, about 250 bytes a round; score parts are read from the journal when somebody asks for them.
"""

from __future__ import annotations

import json
import math
import threading
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.pack import PackError
from fedcohort.dashboard.untrusted_journal import UntrustedJournal
from fedcohort.errors import FedcohortError, JournalDamaged
from fedcohort.experiment.metrics import run_metrics as metrics
from fedcohort.report import views
from fedcohort.storage.journal_reader import JournalTail, Record, damaged
from fedcohort.types import Arrays, Outcome

MOST_COLUMNS = 80  # numbers per round that are kept
MOST_TEXT = 200
Plain = dict[str, Any]


def text(value: Any, most: int = MOST_TEXT) -> str:
    """Something as a short text; empty where it is neither a text nor a number."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    found = str(value).encode("utf-8", "replace").decode()
    return found if len(found) <= most else found[: most - 1] + "…"


def said(error: Exception) -> str:
    """An error as a short text; the page names the run itself, so its path is left out."""
    return text(f"{error.rule}; {error.remedy}" if isinstance(error, FedcohortError) else str(error))


def real(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def as_json(value: Plain) -> str:
    """Values as JSON on one line, without a letter that could open a tag."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


class Track:
    """The rounds of a run that were read so far."""

    def __init__(self, journal: Path) -> None:
        self.journal, self.lock = UntrustedJournal(journal), threading.Lock()
        self.tail = JournalTail(self.journal)
        self.broken: JournalDamaged | None = None
        self.config: Plain = {}
        self.population = 0
        self.names: list[str] = []  # of the clients, where the data name them
        self.columns: dict[str, array[float]] = {}
        self.index, self.ends, self.asks, self.tells = array("q"), array("q"), array("q"), array("q")
        self.clients, self.outcomes = array("q"), array("b")
        self._asked: dict[int, int] = {}

    @property
    def rounds(self) -> int:
        """How many rounds have ended."""
        return len(self.ends)

    def advance(self) -> int:
        """Read what is new; how many rounds there are now."""
        with self.lock:
            try:
                while self.broken is None and (new := self.tail.read()):
                    for record in new:
                        self._take(record)
            except (PackError, ValueError, TypeError, OverflowError) as error:
                self.broken = damaged(self.journal.path, str(error))
            if self.broken is not None:
                raise self.broken
            return self.rounds

    def _take(self, record: Record) -> None:
        if record.kind == "open":
            header = record.unpack()[1]
            self.config = header["config"] if isinstance(header.get("config"), dict) else header
            names = header.get("clients")
            self.names = [text(name) for name in names] if isinstance(names, list) else []
        elif record.kind == "ask":
            self._asked[record.round] = record.seq
            self.population = max(self.population, int(real(record.unpack()[1].get("population")) or 0))
        elif record.kind == "tell":
            arrays, meta = record.unpack()
            clients, outcome = _column(arrays, "clients"), _column(arrays, "outcome")
            if clients.shape != outcome.shape or clients.dtype.kind not in "iu" or outcome.dtype.kind not in "iu":
                raise PackError(f"round {record.round} has {outcome.size} outcomes for {clients.size} clients")
            self.clients.extend(clients.astype(np.int64).tolist())
            self.outcomes.extend(np.clip(outcome, 0, max(Outcome)).astype(np.int8).tolist())
            self._row(meta.get("metrics"))
            self.index.append(record.round)
            self.ends.append(len(self.clients))
            self.asks.append(self._asked.pop(record.round, -1))
            self.tells.append(record.seq)

    def _row(self, metrics: Any) -> None:
        found: Mapping[Any, Any] = metrics if isinstance(metrics, Mapping) else {}
        for name in found:
            if isinstance(name, str) and name not in self.columns and len(self.columns) < MOST_COLUMNS:
                self.columns[name] = array("d", [math.nan] * self.rounds)
        for name, column in self.columns.items():
            value = real(found.get(name))
            column.append(math.nan if value is None else value)

    def column(self, name: str) -> NDArray[np.float64]:
        """One number per round; NaN where it was not measured."""
        known = self.columns.get(name)
        return np.full(self.rounds, math.nan) if known is None else np.array(known, np.float64)

    def numbers(self) -> list[str]:
        """Names of what can be drawn against rounds."""
        return sorted(text(name) for name in self.columns if name != "round")

    def rows(self, since: int, most: int, *names: str) -> list[list[float | None]]:
        """Rounds from `since` on: the round's number, the clock, then the numbers that were named."""
        with self.lock:
            at = range(max(since, 0), min(self.rounds, since + most))
            columns = [self.columns.get(name) for name in ("clock", *names)]
            return [[self.index[i], *(None if c is None or math.isnan(c[i]) else c[i] for c in columns)] for i in at]

    def cells(self, first: int, last: int | None = None) -> NDArray[np.int64]:
        """Who was asked from the `first` round on (up to the `last`): one row of round, client, outcome each."""
        with self.lock:
            ends = np.array(self.ends[:last], np.int64)
            first = min(max(first, 0), ends.size)
            start = int(ends[first - 1]) if first else 0
            size = np.diff(ends[first:], prepend=start)
            end = int(ends[-1]) if ends.size else 0
            index = np.array(self.index[first : ends.size], np.int64)
            clients = np.array(self.clients[start:end], np.int64)
            outcome = np.array(self.outcomes[start:end], np.int64)
        return np.stack([np.repeat(index, size), clients, outcome], axis=1)

    def summary(self, target: float | None) -> Plain:
        """The run in a few numbers, for comparing: accuracy, when the target was reached, traffic, fairness."""
        with self.lock:
            accuracy, clock = self.column("accuracy"), self.column("clock")
            moved = [self.column(f"bytes_{way}") for way in ("down", "up", "probes", "signals")]
            asked = np.unique(np.array(self.clients, np.int64), return_counts=True)[1]
            index, population = np.array(self.index, np.int64), max(self.population, asked.size)
        best = metrics.best(accuracy)
        hit = metrics.reached(accuracy, target, clock) if target is not None else None
        return {
            "rounds": self.rounds,
            "last": metrics.final(accuracy),
            "best": None if best is None else best.value,
            "best_round": None if best is None else int(index[best.round]),
            "clock": metrics.final(clock),
            "reached_rounds": None if hit is None else hit.rounds,
            "reached_clock": None if hit is None else real(hit.seconds),
            "bytes": float(sum(np.nansum(m) for m in moved)),
            "jain": real(asked.sum() ** 2 / (population * (asked**2).sum())) if asked.size else None,
            "coverage": asked.size / population if population else None,
            "population": population,
        }

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The clients that were ever asked, and how often."""
        with self.lock:
            found = np.unique(np.array(self.clients, np.int64), return_counts=True)
        return found[0], found[1]

    def name(self, slot: int) -> str:
        """How a client is called: its name in the data, or its slot."""
        return self.names[slot] if slot < len(self.names) else str(slot)

    def client(self, slot: int, most: int = 100) -> Plain:
        """One client: every time it was asked, and why, for the newest `most` times (as `report.views` tells it)."""
        with self.lock:
            clients, outcome = np.array(self.clients, np.int64), np.array(self.outcomes, np.int64)
            at = np.flatnonzero(clients == slot)
            rounds = np.searchsorted(np.array(self.ends, np.int64), at, side="right")
            index = np.array(self.index, np.int64)
            seqs = {int(index[r]): (self.asks[r], self.tells[r]) for r in rounds[-most:].tolist()}
        found = self.journal.at(seq for pair in seqs.values() for seq in pair if seq >= 0)
        visits = []
        for t, pair in seqs.items():
            told: Plain = {"round": t, "why": {}}
            for record in (found[s] for s in pair if s in found):
                told |= _visit(record, slot)
            visits.append(told)
        counts = np.bincount(outcome[at], minlength=len(Outcome))
        return {
            "slot": slot,
            "name": self.name(slot),
            "asked": int(at.size),
            "rounds": self.rounds,
            "outcomes": {o.name: int(counts[o]) for o in Outcome if counts[o]},
            "parts": list(dict.fromkeys(name for v in visits for name in v["why"])),
            "visits": visits,
        }


def _visit(record: Record, slot: int) -> Plain:
    """What a record says about a client; nothing where it is of a strange form."""
    arrays, meta = record.unpack()
    row = np.flatnonzero(_column(arrays, "clients") == slot)
    try:
        found = views.visit(record.kind, arrays, meta, int(row[0]))
        if record.kind == "tell":
            return found | {"reason": text(found["reason"])}
        return found | {"why": {text(name): part for name, part in found["why"].items()}, "clock": real(found["clock"])}
    except (KeyError, IndexError, AttributeError, TypeError, ValueError):
        return {}


def _column(arrays: Arrays, name: str) -> NDArray[Any]:
    found = arrays.get(name, np.empty(0, np.int64))
    return found if found.ndim == 1 else np.empty(0, np.int64)
