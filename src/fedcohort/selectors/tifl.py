"""TiFL: tiers of similar speed, one tier a round.

    Zheng Chai, Ahsan Ali, Syed Zawad, Stacey Truex, Ali Anwar, Nathalie Baracaldo, Yi Zhou, Heiko Ludwig, Feng Yan,
    Yue Cheng. TiFL: A Tier-based Federated Learning System. HPDC 2020. https://arxiv.org/abs/2001.09249

Clients are profiled and sorted by latency L_i into m tiers of equal size. Each round one tier is drawn among those
with credits left, with probabilities P, and K of its clients uniformly: nobody waits for somebody much slower. Every I
rounds the accuracy A_t of each tier is measured (the mean over its clients). If that of the running tier has not
improved since the last time, the probabilities change: with the n tiers that have credits, worst accuracy first,

    P_(j) = (n - j) / (n (n - 1) / 2),   j = 1 .. n          the worst tier is drawn most, the best not at all     (1)
    Credits_t <- Credits_t - 1                                after each round of tier t                           (2)

Departures from the paper
    * Its text was not available: (1), (2) and the condition are from memory.
    * Every I rounds, at most `sample` clients of each tier are probed for their accuracy (accuracy="probe"), or it is
      inferred for free from the losses that the cohort reports (accuracy="reports": low loss for high accuracy). The
      paper evaluates every client.
    * L_i is the profile `expected_seconds`, times the median ratio of durations to profiles, until the server has
      measured the client, then a moving mean over its rounds (half of the weight on the newest); unknown ones count as
      the median. Tiers follow it.
    * Credits are a multiple of a tier's equal share of the planned rounds; when no tier has any left, all get new ones,
      because a run may be longer than planned.
    * A tier with fewer available clients than K is filled up from the tiers next to it.
    * Reported losses are clipped within the tier at five times the median: one liar does not move its tier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, Count, Interval
from fedcohort.core.table import Table, block, column
from fedcohort.errors import checked
from fedcohort.selectors._parts.profile_pace import profile_factor
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Real, Round, RoundResult, Signals

Double = NDArray[np.float64]
KEEP = 0.5  # weight of the past in a latency
CLIP = 5.0  # medians at which a reported loss is cut


@dataclass
class TiflState(Table):
    """Latencies of the clients; odds, credits and accuracies of the tiers."""

    seconds: Real = column(-1.0)  # L_i as measured; negative: never
    odds: Double = block((5,))  # P
    spent: Double = block((5,))  # rounds of each tier since credits were given out
    quality: Double = block((5,))  # A_t when last measured (or minus the loss)
    measured: NDArray[np.bool_] = block((5,), False, np.bool_)  # whether it was


class Tifl(StatefulSelector[TiflState]):
    """Draw a tier of equally fast clients, more often one whose accuracy lags behind.

    Args:
        tiers: how many [m], 1 to 100.
        interval: rounds between measurements [I].
        accuracy: from a "probe", or inferred from the losses in the "reports".
        sample: clients probed in each tier.
        credits: rounds that a tier may run, in equal shares of the planned rounds [Credits_t]; at least 1.
        rounds: planned rounds.

    >>> sorted(Tifl(accuracy="reports").needs)
    ['expected_seconds', 'loss_before']
    """

    @checked
    def __init__(
        self,
        *,
        tiers: Annotated[int, Interval(1, 100)] = 5,
        interval: Count = 10,
        accuracy: Annotated[str, Choice("probe", "reports")] = "probe",
        sample: Count = 10,
        credits: Annotated[float, Interval(1, ends="[)")] = 2.0,
        rounds: Count = 100,
    ) -> None:
        self.tiers, self.interval, self.accuracy, self.sample = tiers, interval, accuracy, sample
        self.credits = max(1, math.ceil(credits * rounds / tiers))
        self.needs = frozenset({"expected_seconds", "probe_accuracy" if accuracy == "probe" else "loss_before"})
        fresh = np.zeros(tiers)
        self.state = TiflState(
            odds=np.full(tiers, 1.0 / tiers), spent=fresh, quality=fresh.copy(), measured=np.zeros(tiers, np.bool_)
        )
        self._asked: tuple[int, int, NDArray[np.int8]] | None = None  # round, tier drawn, tier of every slot

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """A few of each tier, every I rounds."""
        if self.accuracy != "probe" or rnd.index % self.interval:
            return np.empty(0, np.int64)
        tier = self._tiers(rnd)[rnd.available]
        some = [draw.uniform(rnd.available[tier == t], self.sample, rng) for t in range(self.tiers)]
        return np.sort(np.concatenate(some))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Draw a tier, then clients of it."""
        self.state.grow(rnd.population)
        k = min(rnd.size, rnd.available.size)
        if k <= 0:
            return Cohort(np.empty(0, np.int64))
        tiers = self._tiers(rnd)
        here = tiers[rnd.available]
        odds = self._odds(np.bincount(here, minlength=self.tiers) > 0)
        chosen_tier = int(draw.weighted(odds, 1, rng)[0])
        self._asked = rnd.index, chosen_tier, tiers
        near = -np.abs(here.astype(np.float64) - chosen_tier)
        clients = rnd.available[draw.top(near, k, rng)]
        blank = np.full(k, chosen_tier, np.float32)
        why = {"tier": tiers[clients].astype(np.float32), "drawn_tier": blank, "odds": np.full(k, odds[chosen_tier])}
        return Cohort(clients, why=why)

    def observe(self, result: RoundResult) -> None:
        """Latencies, credits (eq. 2), and every I rounds the accuracies and odds (eq. 1)."""
        s, told = self.state, result.clients
        s.grow_for(told)
        if self._asked is not None and self._asked[0] == result.index and told.size:
            _, tier, tiers = self._asked
            s.spent[tier] += 1.0
            if (s.spent >= self.credits).all():
                s.spent = np.zeros(self.tiers)
            self._compare(result, tier, tiers)
        self._asked = None
        known = s.seconds[told] >= 0
        s.seconds[told] = np.where(known, KEEP * s.seconds[told] + (1 - KEEP) * result.duration, result.duration)

    def _tiers(self, rnd: Round) -> NDArray[np.int8]:
        """The tier of every slot, 0 the fastest: latency between m - 1 quantiles."""
        seconds = np.full(rnd.population, -1.0, np.float32)
        seconds[: self.state.rows] = self.state.seconds[: rnd.population]
        if "expected_seconds" in rnd.profiles:
            profile = np.asarray(rnd.profiles["expected_seconds"], np.float32)
            seconds = np.where(seconds >= 0, seconds, profile * profile_factor(seconds, profile))
        known = np.isfinite(seconds) & (seconds >= 0)
        if not known.all():
            seconds = np.where(known, seconds, np.median(seconds[known]) if known.any() else np.float32(1.0))
        n = seconds.size
        cuts = sorted({math.ceil(n * t / self.tiers) for t in range(1, self.tiers)} - {n})
        if not cuts:
            return np.zeros(n, np.int8)
        border = np.partition(seconds, cuts)[cuts]
        return np.searchsorted(border, seconds, side="right").astype(np.int8)

    def _odds(self, there: NDArray[np.bool_]) -> Double:
        """P over the tiers that have available clients and credits left; equal odds if that leaves nothing."""
        s = self.state
        funded = s.spent < self.credits
        for mask in (there & funded & (s.odds > 0), there & funded, there):
            if mask.any():
                odds: Double = np.where(mask, s.odds if s.odds[mask].any() else 1.0, 0.0)
                odds /= odds.sum()
                return odds
        return np.full(self.tiers, 1.0 / self.tiers)

    def _compare(self, result: RoundResult, running: int, tiers: NDArray[np.int8]) -> None:
        """Measure the tiers; change the odds if the running one has not improved."""
        s = self.state
        now, known = self._measure(result, tiers)
        due = result.index % self.interval == 0 and result.index > 0
        before = s.quality[running] if s.measured[running] else -math.inf
        s.quality, s.measured = np.where(known, now, s.quality), s.measured | known
        if not due or not known[running] or now[running] > before or s.measured.sum() < 2:
            return
        rated = np.flatnonzero(s.measured & (s.spent < self.credits))
        if rated.size >= 2:
            s.odds = change_odds(s.quality, rated)

    def _measure(self, result: RoundResult, tiers: NDArray[np.int8]) -> tuple[Double, NDArray[np.bool_]]:
        """(mean accuracy of each tier, or minus its loss; whether there was anything to measure)."""
        signals: Signals | None = result.signals
        clients, name, ok = result.clients, "loss_before", result.replied
        if self.accuracy == "probe":
            signals = None if result.probed is None else result.probed.signals
            clients, name = (result.clients if result.probed is None else result.probed.clients), "probe_accuracy"
            ok = np.ones(clients.size, np.bool_)
        mean, known = np.zeros(self.tiers), np.zeros(self.tiers, np.bool_)
        if signals is None or name not in signals:
            return mean, known
        value = np.asarray(signals[name], np.float64)
        good = ok & np.isfinite(value)
        for t in range(self.tiers):
            mine = value[good & (tiers[clients] == t)]
            if mine.size:
                known[t] = True
                mean[t] = mine.clip(0, 1).mean() if self.accuracy == "probe" else -_clipped_mean(mine)
        return mean, known


def change_odds(quality: Double, rated: Index) -> Double:
    """Eq. 1 over the rated tiers; the others get nothing. Ties share the mean of their places."""
    n = rated.size
    worse = (quality[rated][:, None] > quality[rated][None, :]).sum(axis=1)
    equal = (quality[rated][:, None] == quality[rated][None, :]).sum(axis=1)
    place = worse + (equal + 1) / 2  # j, 1-based
    odds = np.zeros(quality.size)
    odds[rated] = (n - place) / (n * (n - 1) / 2)
    return odds


def _clipped_mean(loss: Double) -> float:
    return float(np.minimum(loss, CLIP * max(float(np.median(loss)), 1e-12)).mean())
