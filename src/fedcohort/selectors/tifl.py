"""TiFL: tiers of similar speed, one tier a round.

    Zheng Chai, Ahsan Ali, Syed Zawad, Stacey Truex, Ali Anwar, Nathalie Baracaldo, Yi Zhou, Heiko Ludwig, Feng Yan,
    Yue Cheng. TiFL: A Tier-based Federated Learning System. HPDC 2020. https://arxiv.org/abs/2001.09249

Clients are profiled and sorted by latency L_i into m tiers of equal size. Each round one tier is drawn among those
with credits left, with probabilities P, and K of its clients uniformly: nobody waits for somebody much slower. Every I
rounds the accuracy A_t of each tier is measured (the mean over its clients). If that of the running tier has not got
better since the last time, the probabilities change: with the n tiers that have credits in ascending order of accuracy,

    P_(j) = (n - j) / (n (n - 1) / 2),   j = 1 .. n          the worst tier is drawn most, the best not at all     (1)
    Credits_t <- Credits_t - 1                                after each round of tier t                           (2)

Departures from the paper
    * Its text was not at hand: (1), (2) and the condition are from memory [MEM].
    * Accuracy is asked of at most `sample` clients in each tier by a paid probe every I rounds (accuracy="probe"), or
      inferred for free from the loss that the cohort reports (accuracy="reports": low loss for high accuracy). The
      paper evaluates every client.
    * L_i is the profile `expected_seconds` until the server has measured the client, then a mean over its rounds that
      forgets (half of the weight on the newest); unknown ones count as the median. Tiers follow it.
    * Credits are a multiple of a tier's equal share of the planned rounds; they are given out anew when no tier has any
      left, for a run may be longer than planned.
    * A tier with fewer available clients than K is filled up from the tiers next to it [REC].
    * Losses that are reported are clipped within the tier at five times the median: one liar does not move its tier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.table import Table, TableError, column, ragged
from fedcohort.errors import check
from fedcohort.types import Arrays, Cohort, Index, Real, Round, RoundResult, Signals

Double = NDArray[np.float64]
KEEP = 0.5  # weight of the past in a latency
CLIP = 5.0  # medians that a reported loss may count


@dataclass
class TiflState(Table):
    """Latencies of the clients; odds, credits and accuracies of the tiers."""

    seconds: Real = column(-1.0)  # L_i as measured; negative: never
    odds: Double = ragged()  # P
    spent: Double = ragged()  # rounds of each tier since credits were given out
    quality: Double = ragged()  # A_t when last measured (or minus the loss)
    measured: NDArray[np.bool_] = ragged(np.bool_)  # whether it was


class Tifl:
    """Draw a tier of equally fast clients, more often one whose accuracy lags behind.

    The paper's symbol for each parameter is given in brackets.
    """

    def __init__(
        self,
        *,
        tiers: int = 5,  # [m]
        interval: int = 10,  # [I] rounds
        accuracy: str = "probe",  # or "reports"
        sample: int = 10,  # clients probed in each tier
        credits: float = 2.0,  # [Credits_t] in equal shares of the planned rounds
        rounds: int = 100,  # planned rounds
    ) -> None:
        check(1 <= tiers <= 100, f"tiers = {tiers}", "there are 1 to 100 tiers", "use e.g. 5")
        check(interval >= 1, f"interval = {interval}", "it has at least one round", "use e.g. 10")
        check(accuracy in ("probe", "reports"), f"accuracy = {accuracy!r}", "no such source", "use probe or reports")
        check(sample >= 1, f"sample = {sample}", "somebody must be asked", "use e.g. 10")
        check(credits >= 1, f"credits = {credits}", "below 1 the tiers cannot fill all rounds", "use e.g. 2")
        check(rounds >= 1, f"rounds = {rounds}", "a run has at least one round", "use e.g. 100")
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
        s.grow(int(told.max(initial=-1)) + 1)
        if self._asked is not None and self._asked[0] == result.index and told.size:
            _, tier, tiers = self._asked
            s.spent[tier] += 1.0
            if (s.spent >= self.credits).all():
                s.spent = np.zeros(self.tiers)
            self._compare(result, tier, tiers)
        self._asked = None
        known = s.seconds[told] >= 0
        s.seconds[told] = np.where(known, KEEP * s.seconds[told] + (1 - KEEP) * result.duration, result.duration)

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        if "odds" in arrays and np.shape(arrays["odds"]) != (self.tiers,):
            raise TableError(f"odds: saved as {np.shape(arrays['odds'])}, expected {self.tiers} tiers")
        self.state.load_arrays(arrays)

    def _tiers(self, rnd: Round) -> NDArray[np.int8]:
        """The tier of every slot, 0 the fastest: latency between m - 1 quantiles."""
        seconds = np.full(rnd.population, -1.0, np.float32)
        seconds[: self.state.rows] = self.state.seconds[: rnd.population]
        if "expected_seconds" in rnd.profiles:
            seconds = np.where(seconds >= 0, seconds, np.asarray(rnd.profiles["expected_seconds"], np.float32))
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
        """P over the tiers that have clients here and credits left; all alike where that leaves nothing."""
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
        now, heard = self._measure(result, tiers)
        due = result.index % self.interval == 0 and result.index > 0
        before = s.quality[running] if s.measured[running] else -math.inf
        s.quality, s.measured = np.where(heard, now, s.quality), s.measured | heard
        if not due or not heard[running] or now[running] > before or s.measured.sum() < 2:
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
        mean, heard = np.zeros(self.tiers), np.zeros(self.tiers, np.bool_)
        if signals is None or name not in signals:
            return mean, heard
        value = np.asarray(signals[name], np.float64)
        good = ok & np.isfinite(value)
        for t in range(self.tiers):
            mine = value[good & (tiers[clients] == t)]
            if mine.size:
                heard[t] = True
                mean[t] = mine.clip(0, 1).mean() if self.accuracy == "probe" else -_clipped_mean(mine)
        return mean, heard


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
