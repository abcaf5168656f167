"""The numbers of a paper's half page, read from results: verdicts counted, differences of rows, a perfect choice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedcohort.papers.paper_summaries import PaperSummary, RowDifference
from fedcohort.papers.study import PERFECT_COHORTS, PERFECT_ROW
from fedcohort.papers.verdicts import FAILS, HOLDS, NOISE, UNDECIDED, UNKNOWN

Result = Mapping[str, Any]
VERDICTS = {HOLDS: "hold", FAILS: "do not hold", NOISE: "inside the noise", UNDECIDED: "undecided", UNKNOWN: UNKNOWN}
_ACCURACIES = {"best", "terminal", "early_stop", "final", "stable", "f1", "macro_f1"}  # printed in percent


@dataclass(frozen=True)
class MeasuredDifference:
    """A mean difference, over how many seeds, and where it is from."""

    mean: float
    seeds: int
    result: Result
    where: str

    @property
    def source(self) -> str:
        """The study, scale and columns."""
        return f"`{self.result['study']}`, {self.result['scale']}, {self.where}, {seeds_text([self.seeds])}"


def fingerprint(results: Sequence[Result]) -> str:
    """Of the verdicts on main claims with their seeds, and of what else is decided."""
    told = [
        (r["study"], r["scale"], c["words"], c["verdict"], c["seeds"] * c["main"])
        for r in results
        for c in r["claims"]
        if c["main"] or c["verdict"] in (HOLDS, FAILS)
    ]
    return hashlib.sha256(repr(sorted(told)).encode()).hexdigest()[:8]


def is_half_done(result: Result) -> bool:
    """Whether runs are missing."""
    return bool(result.get("done", 0) < result.get("wanted", 0))


def seeds_of(result: Result) -> list[int]:
    """How many seeds the claims have; without any, those of the cells."""
    counts = [claim["seeds"] for claim in result["claims"] if claim["seeds"]]
    return counts or [len({seed for cell in result["cells"] for seed in cell["values"]})]


def span(counts: Sequence[int]) -> str:
    """ "2", or "1 to 3"."""
    least, most = min(counts), max(counts)
    return str(most) if least == most else f"{least} to {most}"


def seeds_text(counts: Sequence[int]) -> str:
    """ "2 seeds", or "1 to 3 seeds"."""
    return f"{span(counts)} seed{'s' * (max(counts) != 1)}"


def counted(results: Sequence[Result], *, ours: bool, main: bool = False) -> dict[str, int]:
    """How many of the paper's claims, or of our own questions, got each verdict; with `main` of the main ones."""
    claims = [claim for result in results for claim in result["claims"] if claim["ours"] == ours]
    verdicts = [claim["verdict"] for claim in claims if claim["main"] or not main]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def compared(
    comparisons: Sequence[RowDifference], results: Sequence[Result]
) -> Iterator[tuple[RowDifference, MeasuredDifference]]:
    """The comparisons that were measured, in their order."""
    for comparison in comparisons:
        for result in results:
            if result["study"] != comparison.study:
                continue
            found = difference(result, comparison.left, comparison.right, comparison.columns)
            if found is not None:
                yield comparison, found


def gains(told: PaperSummary, results: Sequence[Result]) -> Iterator[MeasuredDifference]:
    """What a perfect choice gains over the base, in points, wherever both were measured."""
    for result in results:
        cells = [c for c in result["cells"] if c["quantity"] in _ACCURACIES]
        if told.perfect_is_column:
            cells = [{**c, "row": c["column"], "column": c["row"]} for c in cells]
        known = (PERFECT_ROW, PERFECT_COHORTS)
        for row, column in dict.fromkeys((c["row"], c["column"]) for c in cells if c["row"] in known):
            found = (difference({**result, "cells": cells}, row, base, (column,)) for base in told.bases)
            which = row.removeprefix(PERFECT_ROW)
            yield from [replace(one, where=f"{one.where}{which}") for one in found if one is not None][:1]


def difference(result: Result, left: str, right: str, columns: Sequence[str] = ()) -> MeasuredDifference | None:
    """Left minus right, the mean over the seeds in which both have a number in all of these columns.

    Without columns, over all that both rows have.
    """
    values = {(c["row"], c["column"]): c["values"] for c in result["cells"]}
    names = list(columns) or [c for row, c in values if row == left and (right, c) in values]
    pairs = [(values.get((left, c), {}), values.get((right, c), {})) for c in names]
    if not pairs:
        return None
    seeds = [s for s in pairs[0][0] if all(a.get(s) is not None and b.get(s) is not None for a, b in pairs)]
    if not seeds:
        return None
    mean = float(np.mean([[a[s] - b[s] for a, b in pairs] for s in seeds]))
    where = names[0] if len(names) == 1 else f"mean over {'; '.join(names)}"
    return MeasuredDifference(mean, len(seeds), result, where)
