"""The inside of single runs for a page: who was asked when, with which score parts; within a budget of numbers.

A page should stay a few megabytes. So of every setting and entry the first seed comes first, then the others, until
`CELLS` places in cohorts are used up; of a run that is longer than what is left, the newest rounds are shown. Score
parts and durations have a budget of their own and may begin later than the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.core.stats import spearman
from fedcohort.report.collected import Run
from fedcohort.report.glance import Glance
from fedcohort.report.views import cohort_map, plain, score_parts

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
    goes = {n: spearman(v, counts) for n, v in traits.items() if np.isfinite(v).all()}
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
    place = {slot: row for row, slot in enumerate(found["clients"])}
    first, asked = found["first"], found["asked"]
    rounds: dict[int, dict[str, Any]] = {}
    words: dict[str, str] = {}
    out: dict[int, tuple[int, int]] = {}  # row -> round in which it was asked, and its place there
    used = 0
    with Glance(folder) as seen:
        start = _start(seen, asked, first, budget)
        for record in seen.since(start):
            if record.round - first >= len(asked):
                break  # the run has gone on since the picture was taken
            rows = [place.get(int(c), -1) for c in record.arrays["clients"]]
            if record.kind == "ask":
                spot = {row: i for i, row in enumerate(rows)}
                cohort = asked[record.round - first]
                columns = score_parts(record.arrays)
                kept = {n: plain(v[[spot[row] for row in cohort]], 4) for n, v in columns.items()}
                rounds[record.round] = {**kept, "seconds": [None] * len(cohort)}
                out.update({row: (record.round, i) for i, row in enumerate(cohort)})
                used += (len(kept) + 1) * len(cohort)
                continue
            told, seconds = record.meta.get("reasons") or {}, plain(record.arrays["duration"], 4)
            for c, row, duration in zip(record.arrays["clients"].tolist(), rows, seconds, strict=True):
                if row in out:  # without rounds it may have left before
                    when, i = out.pop(row)
                    rounds[when]["seconds"][i] = duration
                    words |= {f"{when}/{c}": str(told[str(c)])} if str(c) in told else {}
    names = [n for n in dict.fromkeys(n for r in rounds.values() for n in r) if n != "seconds"]
    table = {n: [rounds[t].get(n) for t in sorted(rounds)] for n in [*names, "seconds"]}
    return {"first": start, "parts": names, "values": table, "reasons": words}, used


def _start(seen: Glance, asked: list[list[int]], first: int, budget: int) -> int:
    """The first round whose score parts are shown."""
    width = 1 + max((len(score_parts(r.arrays)) for r in _few(seen, first)), default=0)
    left = budget
    for back, cohort in enumerate(reversed(asked)):
        left -= width * len(cohort)
        if left < 0:
            return first + len(asked) - back
    return first


def _few(seen: Glance, first: int) -> list[Any]:
    """The first and the newest few asks: enough to see how many parts a score has."""
    newest = [r for r, _ in zip(seen.newest(), range(6), strict=False) if r.kind == "ask"]
    return [r for r in newest if r.round >= first]


def _places(run: Run) -> int:
    return int(run.history.counts.sum())
