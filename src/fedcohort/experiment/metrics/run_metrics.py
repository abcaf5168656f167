"""What a run was worth, in numbers. Pure functions of arrays over rounds or clients; NaN is "not measured here".

What did not happen is None, printed as "not reached": not the horizon, not zero. Definitions follow the papers that are
reproduced; where a paper's word has two meanings, both are here under two names.

==================  ====================================================================================
best                max_t acc_t on the test set. It peeks: choosing the round is part of training
early_stop          test accuracy at the round of best validation accuracy, with or without patience
terminal            mean over the last rounds (FedACS: 50)
stability_drop      peak minus final (HeteRo-Select)
reached             first round, and virtual time, with acc_t >= target, or None
improvement         (acc - base) / (iid - base), the share of the loss through skew that was won back (FedACS)
f1, macro_f1        of labels and predictions; `zero_division` says what 0 / 0 counts
participation       Jain's index, coverage, max / min of how often clients were asked
spread              of accuracy over clients: variance, mean of the worst tenth
regret              sum_t (mean reward of the best that could be asked - mean reward of those asked) (FLASH)
dueling_regret      sum_t mean_j (P(winner beats j) - 1/2) over those asked (FedACS)
==================  ====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.stats import jain
from fedcohort.errors import check
from fedcohort.types import Index

Double = NDArray[np.float64]
TERMINAL = 50  # rounds
NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class At:
    """A value and the round (0-based) it belongs to."""

    value: float
    round: int


@dataclass(frozen=True, slots=True)
class Reached:
    """When a target was first reached: the round (0-based), how many rounds that took, and the virtual time."""

    round: int
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Participation:
    """How evenly clients were asked. `ratio` is max / min; None where somebody was never asked.

    `jain` is None where nobody was: there is nothing to be fair about.
    """

    jain: float | None
    coverage: float
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """Accuracy over clients (those that have samples): population variance, and the mean of the worst tenth."""

    mean: float
    variance: float
    worst_tenth: float


def best(values: ArrayLike) -> At | None:
    """The highest value and its first round; None where nothing was measured."""
    x = np.asarray(values, np.float64)
    if not np.isfinite(x).any():
        return None
    at = int(np.nanargmax(x))
    return At(float(x[at]), at)


def final(values: ArrayLike) -> float | None:
    """The last value that was measured."""
    x = np.asarray(values, np.float64)
    known = np.flatnonzero(np.isfinite(x))
    return float(x[known[-1]]) if known.size else None


def early_stop(validation: ArrayLike, test: ArrayLike, patience: int | None = None) -> At | None:
    """Test value at the best validation round (the first of equals), among rounds in which both were measured.

    With patience p training ends after the p-th measured round in a row that is no better than the best so far.
    """
    check(patience is None or patience >= 1, f"patience = {patience}", "it is at least one round", "use e.g. 20")
    v, t = np.asarray(validation, np.float64), np.asarray(test, np.float64)
    check(v.shape == t.shape, f"{v.size} and {t.size} rounds", "both belong to the same rounds", "pass one run's")
    rounds = np.flatnonzero(np.isfinite(v) & np.isfinite(t))
    if not rounds.size:
        return None
    so_far = np.maximum.accumulate(v[rounds])
    better = np.r_[True, v[rounds][1:] > so_far[:-1]]
    since = np.arange(rounds.size) - np.maximum.accumulate(np.where(better, np.arange(rounds.size), 0))
    out = np.flatnonzero(since >= patience) if patience is not None else np.empty(0, np.int64)
    end = int(out[0]) if out.size else rounds.size - 1
    chosen = int(np.argmax(v[rounds[: end + 1]]))
    return At(float(t[rounds[chosen]]), int(rounds[chosen]))


def terminal(values: ArrayLike, last: int | float = TERMINAL) -> float | None:
    """Mean of what was measured in the last rounds: a number of rounds, or a share below 1 of them (at least one)."""
    check(last > 0, f"last = {last}", "it is positive", "use 50 rounds, or a share such as 0.2")
    x = np.asarray(values, np.float64)
    count = math.ceil(last * x.size - 1e-9) if last < 1 else int(last)
    tail = x[max(x.size - max(count, 1), 0) :]
    known = tail[np.isfinite(tail)]
    return float(known.mean()) if known.size else None


def terminal_rounds(rounds: int) -> int:
    """The window used where none is asked for: 50 rounds, or the last fifth of a run that is too short for that."""
    return max(min(TERMINAL, math.ceil(rounds / 5)), 1)


def stability_drop(values: ArrayLike) -> float | None:
    """Peak minus final: how much was lost again."""
    peak, end = best(values), final(values)
    return None if peak is None or end is None else peak.value - end


def reached(values: ArrayLike, target: float, clock: ArrayLike | None = None) -> Reached | None:
    """The first round at or above the target, or None."""
    hit = np.flatnonzero(np.asarray(values, np.float64) >= target)
    if not hit.size:
        return None
    first = int(hit[0])
    seconds = math.nan if clock is None else float(np.asarray(clock, np.float64)[first])
    return Reached(first, first + 1, seconds)


def improvement(value: float, base: float, iid: float) -> float | None:
    """Share of the gap between the baseline and the even world that was closed; None where there is no gap."""
    return (value - base) / (iid - base) if iid > base else None


def f1(labels: ArrayLike, predictions: ArrayLike, positive: int = 1, zero_division: float = 0.0) -> float:
    """2 TP / (2 TP + FP + FN) of the positive class. FLASH-RL's code counts 0 / 0 as 1; the default counts it 0."""
    y, p = np.asarray(labels) == positive, np.asarray(predictions) == positive
    below = float(y.sum() + p.sum())
    return 2.0 * float((y & p).sum()) / below if below else zero_division


def macro_f1(
    labels: ArrayLike, predictions: ArrayLike, classes: int | None = None, zero_division: float = 0.0
) -> float | None:
    """Mean of the F1 of each class.

    Without `classes`, over those that occur among labels or predictions (then there is no 0 / 0); with it, over
    all of them, one that occurs nowhere counting `zero_division`. None without any sample.
    """
    y, p = np.asarray(labels, np.int64), np.asarray(predictions, np.int64)
    if not y.size:
        return None
    seen = np.union1d(y, p) if classes is None else np.arange(classes)
    return float(np.mean([f1(y, p, int(k), zero_division) for k in seen]))


def participation(counts: ArrayLike) -> Participation:
    """Fairness of how often each client was asked."""
    n = np.asarray(counts, np.float64)
    if not n.size:
        return Participation(None, 0.0, None)
    least, most = int(n.min()), int(n.max())
    return Participation(jain(n) if most else None, float((n > 0).mean()), most / least if least else None)


def spread(accuracy: ArrayLike) -> Spread | None:
    """Of per-client accuracy; clients with NaN (no samples) are left out; None where nobody is left."""
    x = np.asarray(accuracy, np.float64)
    x = np.sort(x[np.isfinite(x)])
    if not x.size:
        return None
    tenth = x[: max(math.ceil(x.size / 10), 1)]
    return Spread(float(x.mean()), float(x.var()), float(tenth.mean()))


def regret(reward: ArrayLike, cohorts: Sequence[Index], available: Sequence[Index] | None = None) -> Double:
    """Cumulative regret per round against an oracle that knows every client's expected reward.

    `reward` is (N,), or (T, N) where it changes. In each round the oracle asks as many as were asked, the best of
    those available (everybody, where nothing is said). Means, not sums, so that the unit is that of one client.
    """
    given = np.asarray(reward, np.float64)
    loss = np.zeros(len(cohorts))
    for t, cohort in enumerate(cohorts):
        r = given if given.ndim == 1 else given[t]
        m = int(cohort.size)
        if not m:
            continue
        pool = r if available is None else r[available[t]]
        top = np.partition(pool, pool.size - m)[pool.size - m :]
        loss[t] = float(top.mean() - r[cohort].mean())
    return np.cumsum(loss)


def dueling_regret(preference: ArrayLike, cohorts: Sequence[Index]) -> Double | None:
    """Cumulative regret against the client that beats every other with a probability above 1/2; None: there is none.

    `preference[i, j]` is the probability that i beats j; its diagonal is not read.
    """
    p = np.asarray(preference, np.float64).copy()
    np.fill_diagonal(p, 0.5)
    others = p + np.eye(len(p))
    winners = np.flatnonzero((others > 0.5).all(axis=1))
    if not winners.size:
        return None
    loss = [float((p[winners[0], c] - 0.5).mean()) if c.size else 0.0 for c in cohorts]
    return np.cumsum(np.array(loss, np.float64))


def words(value: Any, missing: str = NOT_REACHED) -> str:
    """A number as a person reads it; None is "not reached", or another word for what is missing."""
    if value is None:
        return missing
    if isinstance(value, float) and not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    if isinstance(value, float) and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
