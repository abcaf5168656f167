"""The inside of single runs for a page: who was asked when, with which score parts; within a budget of numbers.

A page should stay a few megabytes. So of every setting and entry the first seed comes first, then the others, until
`CELLS` places in cohorts are used up; of a run that is longer than what is left, the newest rounds are shown. Score
parts and durations have a budget of their own and may begin later than the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.stats import spearman
from fedcohort.report.collected import Run
from fedcohort.report.traits import tells_apart
from fedcohort.report.views import cohort_map, plain, score_parts
from fedcohort.storage.journal_reader import JournalReader, Record
from fedcohort.storage.run_folder import RunFolder

CELLS = 150_000  # places in cohorts over all runs of a page
VALUES = 120_000  # score parts and durations
RUNS = 60
LEAST = 50  # rounds: with less than that a picture says nothing
ROWS = 1000  # clients of a picture


def chosen(runs: Sequence[Run]) -> list[Run]:
    """Which runs are shown inside: one seed of everything, then more seeds."""
    seen: dict[tuple[str, str], int] = {}
    turn = []
    for run in runs:
        key = (run.setting, run.entry)
        seen[key] = seen.get(key, 0) + 1
        turn.append(seen[key])
    order = sorted(range(len(runs)), key=lambda i: (turn[i], i))
    out, left = [], CELLS
    for i in order[:RUNS]:
        cost = max(min(_places(runs[i]), left), 1)
        rounds = runs[i].history.length
        if left <= 0 or (cost < _places(runs[i]) and cost < LEAST * _places(runs[i]) / max(rounds, 1)):
            continue
        out.append(runs[i])
        left -= cost
    return sorted(out, key=lambda r: (r.setting, r.entry, r.config.seed))


def details(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The inside of these runs, each with an equal part of the budget."""
    cells, values = CELLS, VALUES
    out = []
    for at, run in enumerate(runs):
        share = len(runs) - at
        found, used = _detail(run, cells // share, values // share)
        cells -= sum(len(c) for c in found["asked"])
        values -= used
        out.append(found)
    return out


def _detail(run: Run, cells: int, values: int) -> tuple[dict[str, Any], int]:
    rounds = run.history.length
    size = max(_places(run) / max(rounds, 1), 1.0)
    since = max(0, rounds - int(cells / size))
    found = cohort_map(run.folder, since, ROWS)
    why, used = reasons(run.folder, found, values)
    counts = np.asarray(found["traits"]["asked"], np.float64)
    traits = {n: np.array([np.nan if x is None else x for x in v]) for n, v in found["traits"].items() if n != "asked"}
    goes = {n: spearman(v, counts) for n, v in traits.items() if np.isfinite(v).all() and tells_apart(v)}
    name = {"id": run.folder.name, "setting": run.setting, "entry": run.entry, "seed": run.config.seed}
    return {
        **found,
        **name,
        "state": run.state,
        "goesWith": {n: round(v, 3) for n, v in goes.items()},
        "why": why,
    }, used


def reasons(folder: Path, found: dict[str, Any], budget: int) -> tuple[dict[str, Any], int]:
    """Score parts, durations and reasons, aligned with `found["asked"]`, for as many newest rounds as fit."""
    journal = RunFolder(folder).reader()
    start = _start(journal, found["asked"], found["first"], budget)
    table = _Table(found)
    for record in journal.since(start):
        if record.round - found["first"] >= len(found["asked"]):
            break  # the run has gone on since the picture was taken
        table.take(record)
    return {"first": start, **table.columns()}, table.used


class _Table:
    """Score parts and durations by round, one entry per place in the cohort."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.place = {slot: row for row, slot in enumerate(found["clients"])}
        self.first, self.asked = found["first"], found["asked"]
        self.rounds: dict[int, dict[str, Any]] = {}
        self.words: dict[str, str] = {}
        self.out: dict[int, tuple[int, int]] = {}  # row -> round in which it was asked, and its place there
        self.used = 0

    def take(self, record: Record) -> None:
        """One ask or tell."""
        arrays, meta = record.unpack()
        rows = [self.place.get(int(c), -1) for c in arrays["clients"]]
        if record.kind == "ask":
            self._ask(record.round, rows, score_parts(arrays))
            return
        told, seconds = meta.get("reasons") or {}, plain(arrays["duration"], 4)
        for c, row, duration in zip(arrays["clients"].tolist(), rows, seconds, strict=True):
            if row in self.out:  # in asynchronous runs it may have been asked before the first round that is shown
                when, i = self.out.pop(row)
                self.rounds[when]["seconds"][i] = duration
                self.words |= {f"{when}/{c}": str(told[str(c)])} if str(c) in told else {}

    def _ask(self, index: int, rows: list[int], parts: dict[str, NDArray[np.float64]]) -> None:
        spot = {row: i for i, row in enumerate(rows)}
        cohort = self.asked[index - self.first]
        kept = {n: plain(v[[spot[row] for row in cohort]], 4) for n, v in parts.items()}
        self.rounds[index] = {**kept, "seconds": [None] * len(cohort)}
        self.out.update({row: (index, i) for i, row in enumerate(cohort)})
        self.used += (len(kept) + 1) * len(cohort)

    def columns(self) -> dict[str, Any]:
        """Everything that was taken."""
        names = [n for n in dict.fromkeys(n for r in self.rounds.values() for n in r) if n != "seconds"]
        values = {n: [self.rounds[t].get(n) for t in sorted(self.rounds)] for n in [*names, "seconds"]}
        return {"parts": names, "values": values, "reasons": self.words}


def _start(journal: JournalReader, asked: list[list[int]], first: int, budget: int) -> int:
    """The first round whose score parts are shown."""
    newest = [r for r in islice(journal.newest(), 6) if r.kind == "ask" and r.round >= first]
    width = 1 + max((len(score_parts(r.unpack()[0])) for r in newest), default=0)  # how many parts a score has
    left = budget
    for back, cohort in enumerate(reversed(asked)):
        left -= width * len(cohort)
        if left < 0:
            return first + len(asked) - back
    return first


def _places(run: Run) -> int:
    return int(run.history.participation().sum())
