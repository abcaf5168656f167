"""Who stands where: ranks over problems, differences to uniform in the same seed, and how sure both are.

* Within a problem entries are ordered by the mean of their ranks in each seed, so a run that did not reach its target
  (or failed) is last and needs no invented number.
* Intervals are percentile bootstrap over problems and, within each problem, over seeds.
* Pairwise p-values are of the exact Wilcoxon test over problems, with Holm's correction for all of a family.
* Nemenyi's critical difference says how far apart average ranks must be to be told apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.arena.run_scores import PRIMARY, SCORES, order_value
from fedcohort.core.rng import generator
from fedcohort.errors import StoreError, UnknownName
from fedcohort.experiment.metrics import paired

REFERENCE = "uniform"
DRAWS = 1000
FILLED = 0.8  # of the runs of the fullest problem: one with fewer does not count yet
Double = NDArray[np.float64]
Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """One score of some entries on some problems and seeds; larger is better, -inf is not reached."""

    score: str
    entries: tuple[str, ...]
    problems: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Double  # (entries, problems, seeds)

    @property
    def reference(self) -> int:
        """Where uniform is."""
        return self.entries.index(REFERENCE)

    def differences(self) -> Double:
        """Each entry minus uniform in the same seed; of logarithms for times and traffic, larger is better."""
        return minus(self.values, self.values[self.reference])


@dataclass(frozen=True)
class Pairwise:
    """Every entry against every other: problems won by the row, and Holm-corrected p-values."""

    wins: NDArray[np.int64]
    p: Double


def minus(a: Double, b: Double) -> Double:
    """a - b, where two that are both not reached are equal."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(a) & np.isneginf(b), 0.0, a - b)


def collect(
    rows: Iterable[Row], problems: Sequence[str], *, score: str = PRIMARY, keep: Collection[str] = ()
) -> tuple[Results, list[str]]:
    """The largest complete table among these rows, and notes on what is left out.

    A problem counts when uniform has run on it and it has at least four fifths of the runs of the fullest one, a seed
    when at least half of the entries have it everywhere, and an entry when it has all of both. Entries in `keep` stay:
    the table shrinks to the problems and seeds that they have.
    """
    if score not in SCORES:
        raise UnknownName.among("score", score, SCORES)
    found = {(r["selector"], r["problem"], r["seed"]): r for r in rows if r["problem"] in problems}
    entries = sorted({key[0] for key in found})
    if REFERENCE not in entries:
        raise StoreError("archive", "it has no run of uniform on these problems", "fill it, or name another archive")
    on, seeds = _complete(found, entries, problems, [k for k in keep if k in entries])
    ranked = [e for e in entries if all((e, p, s) in found for p in on for s in seeds)]
    values = [[[_value(score, found[e, p, s]) for s in seeds] for p in on] for e in ranked]
    notes = _notes(found, entries, ranked, problems, on, seeds)
    return Results(score, tuple(ranked), tuple(on), tuple(seeds), np.array(values, np.float64)), notes


def _complete(
    found: dict[tuple[str, str, int], Row], entries: list[str], problems: Sequence[str], keep: list[str]
) -> tuple[list[str], list[int]]:
    must, half = {REFERENCE, *keep}, len(entries) / 2
    who = {p: {e for e, q, _ in found if q == p} for p in problems}
    runs = Counter(p for _, p, _ in found)
    on = [p for p in problems if must <= who[p] and runs[p] >= FILLED * max(runs.values())]
    every = sorted({s for _, _, s in found})
    seeds = []
    for seed in every:
        full = {e for e in entries if all((e, p, seed) in found for p in on)}
        if must <= full and len(full) >= half:
            seeds.append(seed)
    if not on or not seeds:
        raise StoreError(
            f"{len(found)} runs of {len(entries)} selectors",
            "they have no complete problem and seed in common",
            "fill the archive further",
        )
    return on, seeds


def _value(score: str, row: Row) -> float:
    """A failed run has learned nothing: accuracy 0, target not reached."""
    if "scores" not in row:
        return 0.0 if SCORES[score].better > 0 else -math.inf
    value: float | None = row["scores"][score]
    return 0.0 if value is None and SCORES[score].better > 0 else order_value(score, value)


def _notes(
    found: dict[tuple[str, str, int], Row],
    entries: list[str],
    ranked: list[str],
    problems: Sequence[str],
    on: list[str],
    seeds: list[int],
) -> list[str]:
    notes = []
    if left := [p for p in problems if p not in on]:
        notes.append(f"not counted, because the archive is not filled there yet: {', '.join(left)}")
    if left := [e for e in entries if e not in ranked]:
        notes.append(f"not ranked, because some of their runs are missing: {', '.join(left)}")
    failed = Counter(e for e, p, s in found if e in ranked and p in on and s in seeds and "error" in found[e, p, s])
    for name, times in sorted(failed.items()):
        why = next(r["error"] for (e, _, _), r in found.items() if e == name and "error" in r)
        where = sorted({p for e, p, s in found if e == name and p in on and "error" in found[e, p, s]})
        notes.append(f"{name} failed in {times} runs ({', '.join(where)}), which count as accuracy 0: {why}")
    return notes


def seed_ranks(values: Double) -> Double:
    """Rank of each entry in each (problem, seed), 1 the best; ties share."""
    above = (values[None] > values[:, None]).sum(axis=1)
    equal = (values[None] == values[:, None]).sum(axis=1)  # itself included
    return np.asarray(0.5 + above + 0.5 * equal, np.float64)


def problem_ranks(ranks: Double) -> Double:
    """Rank of each entry in each problem (entries, problems), by the mean of its ranks over seeds."""
    mean: Double = ranks.mean(axis=2).round(9)
    return np.asarray(seed_ranks(-mean[:, :, None])[:, :, 0], np.float64)


def average_ranks(results: Results) -> tuple[Double, Double, Double]:
    """Average rank of each entry over problems, with the two ends of its bootstrap interval."""
    ranks = seed_ranks(results.values)
    draws = []
    for on, seeds in _resampled(len(results.problems), len(results.seeds)):
        draws.append(problem_ranks(np.take_along_axis(ranks[:, on], seeds[None], axis=2)).mean(axis=1))
    low, high = np.quantile(draws, (0.5 - paired.LEVEL / 2, 0.5 + paired.LEVEL / 2), axis=0)
    return problem_ranks(ranks).mean(axis=1), low, high


def mean_difference(difference: Double) -> tuple[float, float, float] | None:
    """Mean over problems and seeds (problems, seeds) with its interval; None where something was not reached."""
    if not np.isfinite(difference).all():
        return None
    draws = [
        float(np.take_along_axis(difference[on], seeds, axis=1).mean()) for on, seeds in _resampled(*difference.shape)
    ]
    low, high = np.quantile(draws, (0.5 - paired.LEVEL / 2, 0.5 + paired.LEVEL / 2))
    return float(difference.mean()), float(low), float(high)


def _resampled(problems: int, seeds: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Problems with replacement, and for each of them seeds with replacement; the same draws every time."""
    rng = generator(0, "arena")
    on = rng.integers(problems, size=(DRAWS, problems))
    return list(zip(on, rng.integers(seeds, size=(DRAWS, problems, seeds)), strict=True))


def wins_and_p(a: Double, b: Double) -> tuple[int, int, float]:
    """Problems won and lost by a (problems, seeds), and the p-value of the paired test over problems."""
    d = minus(a, b)
    finite = np.isfinite(d).all()
    each = d.mean(axis=1) if finite else np.sign(d).mean(axis=1)
    won, lost = int((each > 0).sum()), int((each < 0).sum())
    return won, lost, paired.wilcoxon(each) if finite else paired.sign_test(won, lost)


def pairwise(results: Results) -> Pairwise:
    """All pairs, with Holm's correction over all of them."""
    count = len(results.entries)
    wins, p = np.zeros((count, count), np.int64), np.ones((count, count))
    pairs = [(i, j) for i in range(count) for j in range(i)]
    found = []
    for i, j in pairs:
        wins[i, j], wins[j, i], raw = wins_and_p(results.values[i], results.values[j])
        found.append(raw)
    for (i, j), adjusted in zip(pairs, paired.holm(found), strict=True):
        p[i, j] = p[j, i] = adjusted
    return Pairwise(wins, p)


def profile(results: Results, gaps: Sequence[float]) -> Double:
    """Share of runs in which each entry is within a gap of the best (entries, gaps): a performance profile.

    Gaps are differences of accuracy; for times and traffic they are differences of logarithms.
    """
    behind = minus(results.values.max(axis=0), results.values)
    behind = np.where(np.isneginf(results.values), np.inf, behind)
    return np.array([(behind <= gap).mean(axis=(1, 2)) for gap in gaps]).T


def cliques(ranks: Sequence[float], critical: float) -> list[tuple[int, int]]:
    """Groups of sorted average ranks that cannot be told apart, as (first, last); groups inside others are left out.

    >>> cliques([1.0, 1.5, 3.0, 3.2], critical=1.0)
    [(0, 1), (2, 3)]
    """
    out: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(i for i, r in enumerate(ranks) if r - rank < critical)
        if last > first and (not out or last > out[-1][1]):
            out.append((first, last))
    return out


def verdict(
    interval: tuple[float, float, float] | None, won: int, lost: int, p: float, adjusted: float, comparisons: int = 1
) -> str:
    """An entry against uniform in words; `comparisons` is how many entries are compared with it."""
    problems = won + lost
    word, side = ("better than uniform", "ahead") if won > lost else ("worse than uniform", "behind")
    if interval is not None and (interval[0] > 0) != (won > lost):
        return "inside the noise"
    outside = interval is not None and (interval[1] > 0 or interval[2] < 0)
    if adjusted < paired.ALPHA and (outside or interval is None):
        return word
    if outside or p < paired.ALPHA:
        few = paired.least_p(problems) * comparisons >= paired.ALPHA
        why = f": {problems} problems are too few for {comparisons} comparisons" if few else " after correction"
        return f"{side}, undecided{why}"
    return "inside the noise"
