"""FEEL: scheduling by importance and channel.

    Jinke Ren, Yinghui He, Dingzhu Wen, Guanding Yu, Kaibin Huang, Dongning Guo. Scheduling for Cellular Federated Edge
    Learning with Importance and Channel Awareness. IEEE Transactions on Wireless Communications 2020.
    https://arxiv.org/abs/2004.00490

With gradient norms |g_i| at the broadcast model, data shares n_i / n and upload times T_i, one client is drawn with the
probabilities that minimise variance and expected time together:

    a_i = (n_i / n) |g_i|                                                                                          (1)
    min_p   rho sum_i a_i^2 / p_i + (1 - rho) sum_i p_i T_i     subject to sum_i p_i = 1                           (2)
    p_i = a_i sqrt( rho / ((1 - rho) T_i + lambda) ),   lambda > -(1 - rho) min T such that sum_i p_i = 1          (3)

rho = 1 is importance alone (p proportional to a), rho -> 0 the fastest client. M clients are drawn one after the other,
each time with (3) over those left. If q_j is the probability with which the j-th was drawn from those left and
v_k = (n_k / n) g_k, the estimate of Des Raj is unbiased for sum_k v_k:

    mean_j [ sum_{l < j} v_{k_l} + v_{k_j} / q_j ]  =  sum_j w_j v_{k_j},     w_j = (1 / q_j + M - j) / M          (4)

Departures from the paper
    * Its body was not available: (1) to (3) are from memory and derived again, (4) is the textbook estimator.
    * a is divided by its sum and T by its mean, so that rho has no unit and means the same for any N (with a divided by
      its mean, time would lose its weight as 1 / N^2); rho = 0.5 by default; p is at least 1e-3 / N: our choices.
    * T_i is the whole duration last measured by the server; clients never measured, or that never answered, get the
      mean.
    * Norms above ten times the median count as that much: one liar cannot dominate the draw.
    * probe="sample:k" asks k clients a round and keeps the last answer of the others; probe="none" takes the norm only
      from those that train. The paper asks everybody.
    * lambda is found by bisection with Newton steps inside the bracket. Above `resolve` available clients (3) is solved
      once a round and p renormalised after each draw, which is the same except for terms of order M / N.
    * The weights w_j are the directive "des_raj". `Cohort.inclusion` is None, because (4) is not a sum over inclusion
      probabilities; with unbiased=True it holds 1 / w_j, so that FedPdp's weighted sum is (4), where that is at most
      1. A probability is not larger: where w_j < 1 (many asked of few, or very uneven odds) it is cut, and the sum is
      too large (6 clients, rho = 1: by 1 % with 3 asked, 16 % with 5, 33 % with 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, CountOrZero, Factor, counted
from fedcohort.core.table import Table, column
from fedcohort.errors import checked
from fedcohort.selectors._parts.last_reports import sample_counts, usable
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Probed, Real, Round, RoundResult

Double = NDArray[np.float64]
LONGEST = 10.0  # a norm counts up to this many medians
FLOOR = 1e-3  # p is at least this over N


@dataclass
class FeelState(Table):
    """The newest answer of each client."""

    norm: Real = column(-1.0)  # |g_i|; negative: not known
    seconds: Real = column(-1.0)  # T_i; negative: never measured


class Feel(StatefulSelector[FeelState]):
    """Draw by gradient norm and speed, with known odds.

    Args:
        rho: weight of importance against time [rho]; 1 is importance alone.
        probe: who is asked for the gradient norm, "all", "sample:k" or "none".
        unbiased: hand 1 / w_j, at most 1, to the method as inclusion probabilities.
        resolve: above this many available clients, eq. 3 is solved once a round.

    >>> sorted(Feel(rho=0.3, probe="sample:50").needs)
    ['probe_grad_norm', 'samples']
    """

    @checked
    def __init__(
        self,
        *,
        rho: Factor = 0.5,
        probe: Annotated[str, Choice("all", "none", counted="sample")] = "all",
        unbiased: bool = False,
        resolve: CountOrZero = 2_000,
    ) -> None:
        super().__init__()
        self.rho, self.unbiased, self.resolve = rho, unbiased, resolve
        self.everybody, self.probes = probe == "all", counted(probe, "sample")
        self._norm = "grad_norm" if probe == "none" else "probe_grad_norm"
        self.needs = frozenset({"samples", self._norm})

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Everybody, some, or nobody."""
        return rnd.available if self.everybody else np.sort(draw.uniform(rnd.available, self.probes, rng))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 3, drawn M times."""
        s, here = self.state, rnd.available
        s.grow(rnd.population)
        m = min(rnd.size, here.size)
        if m <= 0:
            return Cohort(np.empty(0, np.int64))
        norm = s.norm
        if rnd.probed is not None:
            who, value = usable(rnd.probed, self._norm)
            norm = norm.copy()
            norm[who] = value
        a = importance(norm[here].astype(np.float64), sample_counts(rnd))
        seconds = _or_mean(s.seconds[here].astype(np.float64))
        picked, q = self._sequence(a, seconds, m, rng)
        weight = des_raj(q)
        exact = q if m == 1 else np.ones(m) if m == here.size else None
        inclusion = np.minimum(1.0 / weight, 1.0) if self.unbiased else exact
        why = {"importance": a[picked], "seconds": seconds[picked], "odds": q}
        return Cohort(here[picked], {"des_raj": weight}, inclusion, why)

    def observe(self, result: RoundResult) -> None:
        """Keep the newest norms and durations."""
        s, told = self.state, result.clients
        s.grow_for(told)
        s.seconds[told] = result.duration
        if result.probed is not None:
            s.grow_for(result.probed.clients)
            who, value = usable(result.probed, self._norm)
            s.norm[who] = value
        if self._norm == "grad_norm":
            who, value = usable(Probed(told, result.signals), self._norm, result.replied)
            s.norm[who] = value

    def _sequence(self, a: Double, seconds: Double, m: int, rng: np.random.Generator) -> tuple[Index, Double]:
        """M positions drawn one after the other, and the odds q_j with which each was drawn."""
        left = np.arange(a.size)
        p = schedule(a, seconds, self.rho)
        if a.size > self.resolve:
            race = rng.standard_exponential(a.size) / p  # the first m, in the order in which they arrive
            picked = np.argpartition(race, m - 1)[:m]
            picked = picked[np.argsort(race[picked])]
            return picked, p[picked] / (1.0 - np.concatenate([[0.0], np.cumsum(p[picked])[:-1]]))
        picked, q = np.empty(m, np.int64), np.empty(m)
        for j in range(m):
            if j:
                p = schedule(a[left], seconds[left], self.rho)
            at = min(int(np.searchsorted(np.cumsum(p), rng.random() * p.sum(), side="right")), left.size - 1)
            picked[j], q[j] = left[at], p[at]
            left = np.delete(left, at)
        return picked, q


def importance(norm: Double, samples: Double) -> Double:
    """Eq. 1, with unknown (negative) norms at the mean and norms clipped at ten medians."""
    known = norm[norm >= 0]
    if known.size:
        norm = np.minimum(norm, LONGEST * max(float(np.median(known)), 1e-12))
    out: Double = samples / samples.sum() * _or_mean(norm)
    return out


def schedule(a: Double, seconds: Double, rho: float) -> Double:
    """Eq. 3: probabilities that sum to 1; all equal if all a are 0."""
    n = a.size
    live = np.flatnonzero(a > 0)
    p = np.zeros(n)
    if live.size == 0:
        p[:] = 1.0 / n
        return p
    weight = a[live] / a[live].sum()
    time = seconds[live] / max(float(seconds.mean()), 1e-300)
    p[live] = _probabilities(weight, (1.0 - rho) * (time - time.min()) / rho)
    np.maximum(p, FLOOR / n, out=p)
    p /= p.sum()
    return p


def des_raj(odds: Real) -> Double:
    """Eq. 4: the weight w_j of each draw, from the odds with which it was drawn from those left, in the order drawn."""
    m = odds.size
    out: Double = (1.0 / np.asarray(odds, np.float64) + np.arange(m - 1, -1, -1)) / max(m, 1)
    return out


def _probabilities(a: Double, d: Double) -> Double:
    """a / sqrt(d + x) with x > 0 such that the sum is 1; d >= 0 with smallest entry 0.

    h(x) = (sum a / sqrt(d + x))^-2 is increasing and concave, so Newton steps on h = 1 come from below; the bracket
    x in [(sum of a at d = 0)^2, (sum a)^2] is kept, and halved in the logarithm where a step would leave it.
    """
    total = float(a.sum())
    low, high = float(a[d <= 0].sum()) ** 2, total**2
    x = max(low, high - float((a * d).sum()) / total)  # h is a power mean of d + x: at most the arithmetic one
    for _ in range(60):
        inverse = 1.0 / (d + x)
        root = np.sqrt(inverse)
        total = float((a * root).sum())
        if abs(total - 1.0) < 1e-10:
            break
        low, high = (x, high) if total > 1.0 else (low, x)
        slope = float((a * (root * inverse)).sum()) / total**3  # h'
        step = x + (1.0 - total**-2) / slope
        x = step if low < step < high else float(np.sqrt(low * high))
    out: Double = a / np.sqrt(d + x)
    return out


def _or_mean(value: Double) -> Double:
    """Negative entries are unknown: they become the mean of the others (1 if nothing is known)."""
    known = value >= 0
    return value if known.all() else np.where(known, value, float(value[known].mean()) if known.any() else 1.0)
