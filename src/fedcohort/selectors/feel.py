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
    * Its body was not at hand: (1) to (3) are from memory [MEM] and derived again, (4) is the textbook estimator [DER].
    * a is divided by its sum and T by its mean, so that rho has no unit and means the same for any N (with a divided by
      its mean, time would lose its weight as 1 / N^2); rho = 0.5 by default; p is at least 1e-3 / N [REC].
    * T_i is the whole duration last measured by the server; who was never measured, or never answered, has the mean.
    * Norms above ten times the median count as that much: one liar cannot draw the draw to itself.
    * probe="sample:k" asks k clients a round and keeps the last answer of the others; probe="none" hears the norm only
      from those that train. The paper asks everybody.
    * lambda is found by bisection with Newton steps inside the bracket. Above `resolve` available clients (3) is solved
      once a round and p renormalised after each draw, which is the same but for terms of order M / N.
    * The weights w_j are the directive "des_raj". `Cohort.inclusion` is left open, for (4) is not a sum over inclusion
      probabilities; with unbiased=True it holds 1 / w_j (at most 1), so that FedPdp's weighted sum is (4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.table import Table, column
from fedcohort.errors import check
from fedcohort.types import Arrays, Cohort, Index, Probed, Real, Round, RoundResult, Signals

Double = NDArray[np.float64]
LONGEST = 10.0  # a norm counts up to this many medians
FLOOR = 1e-3  # p is at least this over N


@dataclass
class FeelState(Table):
    """The newest answer of each client."""

    norm: Real = column(-1.0)  # |g_i|; negative: never heard
    seconds: Real = column(-1.0)  # T_i; negative: never measured


class Feel:
    """Draw by gradient norm and speed, with known odds.

    The paper's symbol for each parameter is given in brackets.
    """

    def __init__(
        self,
        *,
        rho: float = 0.5,  # [rho] importance against time
        probe: str = "all",  # whom to ask for a norm: "all", "sample:k" or "none"
        unbiased: bool = False,  # hand 1 / w_j to the method as inclusion
        resolve: int = 2_000,  # above so many available clients, solve (3) once a round
    ) -> None:
        check(0 < rho <= 1, f"rho = {rho}", "it lies in (0, 1]", "use 0.5, or 1 for importance alone")
        kind, _, number = probe.partition(":")
        legal = probe in ("all", "none") or (kind == "sample" and number.isdigit() and int(number) > 0)
        check(legal, f"probe = {probe!r}", "it names whom to ask", "use 'all', 'sample:100' or 'none'")
        check(resolve >= 0, f"resolve = {resolve}", "a number of clients is not negative", "use 2000")
        self.rho, self.unbiased, self.resolve = rho, unbiased, resolve
        self.probes = {"all": -1, "none": 0}.get(probe) if kind != "sample" else int(number)
        self._norm = "grad_norm" if probe == "none" else "probe_grad_norm"
        self.needs = frozenset({"samples", self._norm})
        self.state = FeelState()

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Everybody, some, or nobody."""
        if self.probes == -1:
            return rnd.available
        return np.sort(draw.uniform(rnd.available, self.probes or 0, rng))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 3, drawn M times."""
        s, here = self.state, rnd.available
        s.grow(rnd.population)
        m = min(rnd.size, here.size)
        if m <= 0:
            return Cohort(np.empty(0, np.int64))
        norm = s.norm
        if rnd.probed is not None:
            who, value = heard(rnd.probed, self._norm)
            norm = norm.copy()
            norm[who] = value
        a, seconds = (
            importance(norm[here].astype(np.float64), _samples(rnd, here)),
            _or_mean(s.seconds[here].astype(np.float64)),
        )
        picked, q = self._sequence(a, seconds, m, rng)
        weight = des_raj(q)
        exact = q if m == 1 else np.ones(m) if m == here.size else None
        inclusion = np.minimum(1.0 / weight, 1.0) if self.unbiased else exact
        why = {"importance": a[picked], "seconds": seconds[picked], "odds": q}
        return Cohort(here[picked], {"des_raj": weight}, inclusion, why)

    def observe(self, result: RoundResult) -> None:
        """Keep the newest norms and durations."""
        s, told = self.state, result.clients
        s.grow(
            int(max(told.max(initial=-1), -1 if result.probed is None else result.probed.clients.max(initial=-1))) + 1
        )
        s.seconds[told] = result.duration
        if result.probed is not None:
            who, value = heard(result.probed, self._norm)
            s.norm[who] = value
        if self._norm == "grad_norm":
            who, value = heard(Probed(told, result.signals), self._norm, result.replied)
            s.norm[who] = value

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)

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
    """Eq. 3: probabilities that sum to 1. With nothing to go by (all a = 0), all are alike."""
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


def heard(answers: Probed, name: str, replied: NDArray[np.bool_] | None = None) -> tuple[Index, Real]:
    """Who gave a usable (finite, not negative) number, and the number."""
    value = np.asarray(answers.signals[name]) if name in answers.signals else np.full(answers.clients.size, np.nan)
    good = np.isfinite(value) & (value >= 0)
    good = np.flatnonzero(good if replied is None else good & replied)
    return answers.clients[good], value[good]


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


def _samples(rnd: Round, clients: Index) -> Double:
    """n_i, at least 1; all alike where nobody says."""
    given: Signals = rnd.profiles
    if "samples" not in given:
        return np.ones(clients.size)
    value = np.asarray(given["samples"], np.float64)[clients]
    return np.where(np.isfinite(value), np.maximum(value, 1.0), 1.0)


def _or_mean(value: Double) -> Double:
    """Negative entries are not known: they become the mean of the others (1 where nothing is known)."""
    known = value >= 0
    return value if known.all() else np.where(known, value, float(value[known].mean()) if known.any() else 1.0)
