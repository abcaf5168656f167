"""Ledger, eq. 8: the search for the cohort, by bounds on the seconds and, below the best of them, by swaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.types import Index, Real

Double = NDArray[np.float64]
BOUNDS = 24  # on the seconds
POOL = 4  # times K clients are left below a bound
TRIES = 8  # bounds below which swaps are tried, at most
PASSES = 3  # over the members of a cohort, at most
VISITS = 600  # members that may be exchanged at most, over all tries and passes
EXACT = 8192  # rows from which bounds are taken from a sample of this many
GAIN = 1e-9  # a swap must bring more
JITTER = 1e-9  # breaks ties; relative and larger where debts are in single precision


@dataclass(frozen=True, slots=True)
class Terms:
    """The weights of eq. 8."""

    pace: float  # V
    balance: float  # rho
    data: float  # v


@dataclass(frozen=True, slots=True)
class Found:
    """The cohort, as positions among the candidates, and for each member the parts of the reason."""

    at: Index
    pace: Double  # its seconds, in units of T0
    balance: Double  # by how much the balance term would be worse without it
    data: Double  # the same of the data term


@dataclass(frozen=True, slots=True)
class Pace:
    """What a round may take: bounds on the log-seconds, ascending, the last one lets everybody in."""

    bounds: Double
    usual: float  # T0, seconds


def pace_of(log_seconds: Real, k: int, rng: np.random.Generator) -> Pace:
    """Up to 24 bounds, from the k fastest to all, in equal steps of the number of clients; T0."""
    n = log_seconds.size
    some = log_seconds if n <= EXACT else log_seconds[rng.integers(0, n, EXACT)]
    ordered = np.sort(some).astype(np.float64)
    upto = np.linspace(k, n, min(BOUNDS, n - k + 1)).astype(np.int64)
    bounds = np.unique(ordered[np.maximum(upto * ordered.size // n, 1) - 1])
    bounds[-1] = max(bounds[-1], float(log_seconds.max()))
    return Pace(bounds, float(np.quantile(np.exp(ordered), 1 - 1 / k if k > 1 else 0.5)))


def without_ties(debts: Real, rng: np.random.Generator) -> Real:
    """The same debts with tiny differences, so that equal ones are in random order."""
    if debts.size <= EXACT:
        return debts + JITTER * rng.random(debts.size)
    out = rng.random(debts.size, np.float32)
    out *= np.float32(1e5 * JITTER)
    out *= debts
    out += debts
    return out


def search(
    owed: Real,
    log_seconds: Real,
    samples: Real,
    sketch: Callable[[Index], Real],
    k: int,
    terms: Terms,
    rng: np.random.Generator,
) -> Found:
    """Eq. 8 for k of these candidates; `sketch` gives the x_i of some of them."""
    pace = pace_of(log_seconds, k, rng)
    pools = best_bounds(owed, log_seconds, samples, k, pace, terms)
    v, rho, best = terms.data * k * float(samples.mean(dtype=np.float64)), -1.0, np.inf
    for rows in pools:
        w = samples[rows].astype(np.float64)
        z = sketch(rows) * w[:, None]
        if rho < 0:
            rho = terms.balance / max(float((z * z).sum(axis=1).mean()) / (k * float(w.mean()) ** 2), 1e-12)  # rho / D0
        members, value = exchange(owed[rows].astype(np.float64), w, z, k, rho, v)
        seconds = np.exp(log_seconds[rows[members]].astype(np.float64)) / pace.usual
        value += terms.pace * k * float(seconds.max())
        if value < best - GAIN:
            best, found = value, Found(rows[members], seconds, *parts(z[members], w[members], rho, v))
    return found


def best_bounds(owed: Real, log_seconds: Real, samples: Real, k: int, pace: Pace, terms: Terms) -> list[Index]:
    """The 4 k largest debts below a bound, largest first, for the best few bounds, best first (balance left aside)."""
    mean, rows = float(samples.mean(dtype=np.float64)), _relevant(owed, log_seconds, POOL * k, pace)
    place = np.searchsorted(pace.bounds, log_seconds[rows])
    order = np.argsort(place, kind="stable")
    start = np.searchsorted(place, np.arange(pace.bounds.size + 1), sorter=order)
    kept, found = rows[:0], []
    for b, seconds in enumerate(np.exp(pace.bounds)):
        kept = np.concatenate([kept, rows[order[start[b] : start[b + 1]]]])
        kept = kept[np.argsort(-owed[kept], kind="stable")[: POOL * k]]
        if kept.size >= k:
            top = kept[:k]
            cost = terms.pace * k * seconds / pace.usual - owed[top].sum(dtype=np.float64)
            found.append((cost + terms.data * k * mean / samples[top].sum(dtype=np.float64), kept))
    tries = max(min(TRIES, VISITS // (PASSES * k)), 1)
    return [pool for _, pool in sorted(found, key=lambda pair: pair[0])[:tries]]


def _relevant(owed: Real, log_seconds: Real, m: int, pace: Pace) -> Index:
    """Rows that can be among the m largest debts below some bound: all, or those found in one pass over many."""
    if owed.size <= EXACT or pace.bounds.size < 2:
        return np.arange(owed.size)
    fast = owed[np.flatnonzero(log_seconds <= float(pace.bounds[1]))]
    if fast.size <= m:
        return np.arange(owed.size)
    least = np.partition(fast, fast.size - m)[fast.size - m]
    return np.flatnonzero((owed >= least) | (log_seconds <= float(pace.bounds[0])))


def exchange(owed: Double, w: Double, z: Double, k: int, rho: float, v: float) -> tuple[Index, float]:
    """Start with the first k rows, swap one member at a time while eq. 8 without its first term falls.

    z_i = n_i x_i and w_i = n_i. Returns the positions of the cohort and that value.
    """
    square = (z * z).sum(axis=1)
    members, inside = np.arange(k), np.arange(w.size) < k
    total, weight, debt = z[:k].sum(axis=0), float(w[:k].sum()), float(owed[:k].sum())
    best, idle = (rho * float(total @ total) / weight + v) / weight - debt, 0
    for visit in range(min(PASSES * k, VISITS) if w.size > k else 0):
        i = members[visit % k]
        rest, left, owing = total - z[i], weight - w[i] + w, debt - owed[i] + owed
        value = (rho * (float(rest @ rest) + 2 * (z @ rest) + square) / left + v) / left - owing
        value[inside] = np.inf
        j = int(np.argmin(value))
        idle += 1
        if value[j] < best - GAIN:
            members[visit % k], inside[i], inside[j] = j, False, True
            total, weight, debt, best, idle = rest + z[j], float(left[j]), float(owing[j]), float(value[j]), 0
        if idle == k:
            break
    return members, best


def parts(z: Double, w: Double, rho: float, v: float) -> tuple[Double, Double]:
    """By how much the balance and the data terms would be worse without each member of the cohort."""
    if w.size < 2:
        return np.zeros(w.size), np.zeros(w.size)
    total, weight = z.sum(axis=0), float(w.sum())
    rest, left = total - z, weight - w
    balance = rho * ((rest * rest).sum(axis=1) / left**2 - float(total @ total) / weight**2)
    return balance, v / left - v / weight
