"""Oort: guided participant selection.

    Fan Lai, Xiangfeng Zhu, Harsha V. Madhyastha, Mosharaf Chowdhury.
    Oort: Efficient Federated Learning via Guided Participant Selection. OSDI 2021.
    https://arxiv.org/abs/2010.06081

Score of an explored client i in round R (1-based) that last took part in round L(i) and took t(i) seconds:

    u(i) = |B_i| sqrt( mean_{k in B_i} loss(k)^2 )                        statistical utility, the signal       (1)
    s(i) = scale(clip(u(i))) + sqrt(0.1 ln R / L(i))                      clip at a quantile, then to [0, 1]    (2)
    s(i) = s(i) * (T / t(i))^alpha   if t(i) > T                          system penalty                        (3)

T is a percentile of all measured durations. With exploration share eps, floor((1 - eps) K) clients are drawn with
odds s(i) from those scoring at least c times the k-th best; the others from the never-tried, with odds given by
their number of samples. eps decays to a floor. Every `pacer_step` rounds the pacer compares the utility gathered in
the last two windows and raises the percentile when it stalls (or lowers it after a jump):                      (4)
Clients chosen more than `blacklist` times are not chosen again, at most 30 % of all.

Departures from the paper
    * The paper's text was not available: what is not in the authors' code is from memory (the 0.98 decay, the 0.95
      cut-off, the blacklist after 10 rounds, the pacer rule U1 > U2 of preset "paper"); preset "code" is from the code.
    * T is a percentile in both presets, as in the code; the paper moves it by seconds.
    * Clipping comes before scaling: the code scales by the unclipped maximum, so that one liar flattens all others.
    * A client that fails counts as tried, with the time that the server waited for it; its utility stays as it was.
    * The k-th best, not the (k+1)-th, sets the cut-off (the code's index runs off the end when all are admitted).
    * Where preset "code" is not the authors' code: utilities are scaled, and T is taken, over the tried clients that
      are available (there: utilities over all available ones, the untried with their prior, and T over all that are
      registered); all untried are drawn from (there: the `sample_window` = 5 times as many as wanted with the largest
      prior), with odds by their samples (there: times the speed penalty, for speeds are told at registration); the
      percentile is at int(p (n - 1)) of the sorted durations (there: at int(p n), at most n - 1); eps decays after
      each round (there: before its first use, too); the pacer looks at all that replied (there: at the exploited).
    * preset "fedacs" is the comparison version of the FedACS authors: utility is the mean training loss, everybody is
      tried once first, the best are admitted, as many as a fifth of all clients, no system term, and a ban with the
      100th round that is never lifted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, Count, CountOrZero, Factor, NotNegative, Positive, Share
from fedcohort.core.stats import winsorise
from fedcohort.core.table import Table, column, ragged
from fedcohort.errors import checked
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Mask, Real, Round, RoundResult

MAX_BLACKLISTED = 0.3  # share of the population
PRESETS: dict[str, dict[str, float]] = {
    "paper": {"explore_decay": 0.98, "cutoff": 0.95, "clip": 0.95, "blacklist": 10},
    "code": {"explore_decay": 0.95, "cutoff": 0.7, "clip": 0.98, "blacklist": 0},
    "fedacs": {"explore_decay": 1.0, "cutoff": 0.0, "clip": 1.0, "blacklist": 100},
}


@dataclass
class OortState(Table):
    """Everything Oort remembers."""

    utility: Real = column(0.0)  # u(i), eq. 1, as last reported
    seconds: Real = column(0.0)  # t(i), as last measured
    seen: Real = column(0.0)  # L(i), 1-based round last asked
    times: Real = column(0.0)  # how often asked
    explored: Mask = column(False, np.bool_)
    gathered: NDArray[np.float64] = ragged()  # mean utility of each round so far, the last two windows of the pacer
    percentile: float = 10.0  # where T is, in percent of the durations


class Oort(StatefulSelector[OortState]):
    """Exploit clients of high utility that are fast enough; explore the never-tried at a decaying rate.

    Args:
        preset: "paper", "code" (the authors' repository) or "fedacs"; sets the arguments that are None.
        explore: share of the cohort for never-tried clients, at first [eps].
        explore_decay: factor on `explore` per round.
        explore_min: the share never falls below this.
        penalty: exponent for clients slower than T [alpha].
        cutoff: admit clients that score at least this times the k-th best [c].
        clip: quantile at which utilities are cut.
        percentile: where T starts, in percent of the durations; 100 for no penalty.
        pacer_step: rounds between two looks of the pacer [W].
        pacer_delta: by how much the pacer moves T, in percent [Delta].
        blacklist: clients asked more often than this are not asked again (preset "fedacs": this often); 0: never.

    >>> sorted(Oort(explore=0.8).needs)
    ['samples', 'utility']
    """

    @checked
    def __init__(
        self,
        *,
        preset: Annotated[str, Choice(*PRESETS)] = "paper",
        explore: Share = 0.9,
        explore_decay: Factor | None = None,
        explore_min: Share = 0.2,
        penalty: NotNegative = 2.0,
        cutoff: Share | None = None,
        clip: Share | None = None,
        percentile: Positive = 10.0,
        pacer_step: Count = 20,
        pacer_delta: NotNegative = 5.0,
        blacklist: CountOrZero | None = None,
    ) -> None:
        default = PRESETS[preset]
        self.preset, self.explore, self.explore_min, self.penalty = preset, explore, explore_min, penalty
        self.explore_decay = default["explore_decay"] if explore_decay is None else explore_decay
        self.cutoff = default["cutoff"] if cutoff is None else cutoff
        self.clip = default["clip"] if clip is None else clip
        self.blacklist = int(default["blacklist"]) if blacklist is None else blacklist
        self.pacer_step, self.pacer_delta = pacer_step, pacer_delta
        self.needs = frozenset({"train_loss"} if preset == "fedacs" else {"utility", "samples"})
        self.state = OortState(percentile=percentile)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Draw (1 - eps) K by score and eps K from the never-tried."""
        s = self.state
        s.grow(rnd.population)
        tried, fresh = draw.split(self._allowed(rnd.available, rnd.population, rnd.size), s.explored)
        n_explore = min(math.ceil(self._eps(rnd.index) * rnd.size), fresh.size)
        n_exploit = min(rnd.size - n_explore, tried.size)
        n_explore = min(rnd.size - n_exploit, fresh.size)  # one side may be short

        score, bonus, slow = self._score(tried, rnd.index + 1)
        picked = self._exploit(score, n_exploit, rnd.population, rng)
        new = fresh[draw.weighted(self._prior(fresh, rnd), n_explore, rng)]
        blank = np.full(new.size, np.nan, np.float32)
        why = {"score": score, "bonus": bonus, "penalty": slow}
        return Cohort(
            np.concatenate([tried[picked], new]),
            why={name: np.concatenate([part[picked], blank]) for name, part in why.items()},
        )

    def observe(self, result: RoundResult) -> None:
        """Keep the newest report of each client, then run the pacer."""
        s, told = self.state, result.clients
        s.grow_for(told)
        s.explored[told] = True
        s.seconds[told] = result.duration
        s.seen[told] = result.index + 1
        s.times[told] += 1
        reported = result.signals["train_loss" if self.preset == "fedacs" else "utility"]
        good = result.replied & np.isfinite(reported)
        s.utility[told[good]] = np.maximum(reported[good], 0.0)
        mean = float(reported[good].mean()) if good.any() else 0.0
        s.gathered = np.append(s.gathered, mean)[-2 * self.pacer_step :]
        if self.preset != "fedacs" and (result.index + 1) % self.pacer_step == 0:
            self._pace()

    def _eps(self, index: int) -> float:
        """Exploration share; the FedACS version tries everybody first."""
        return 1.0 if self.preset == "fedacs" else max(self.explore * self.explore_decay**index, self.explore_min)

    def _allowed(self, available: Index, population: int, size: int) -> Index:
        """Leave out the blacklisted, at most 30 % of all, and never so many that the cohort cannot be filled."""
        if self.blacklist <= 0:
            return available
        times, room = self.state.times[available], available.size - size
        if self.preset == "fedacs":
            over = np.flatnonzero(times >= self.blacklist)
        else:
            over, room = np.flatnonzero(times > self.blacklist), min(room, int(MAX_BLACKLISTED * population))
        if over.size == 0 or room <= 0:
            return available
        if over.size > room:  # leave out the most often asked
            over = over[np.argsort(-times[over], kind="stable")[:room]]
        return np.delete(available, over)

    def _prior(self, fresh: Index, rnd: Round) -> Real:
        """Odds of the never-tried: their number of samples."""
        if self.preset == "fedacs" or "samples" not in rnd.profiles:
            return np.ones(fresh.size, np.float32)
        return np.maximum(np.asarray(rnd.profiles["samples"], np.float32)[fresh], 1.0)

    def _score(self, clients: Index, now: int) -> tuple[Real, Real, Real]:
        """Eq. 2 and 3: the score, and its bonus and penalty parts."""
        s = self.state
        u = winsorise(s.utility[clients], self.clip)
        if u.size and self.preset != "fedacs":
            low = np.float32(0.999) * u.min()
            u = (u - low) / max(float(u.max() - low), 1e-4)
        bonus = np.sqrt(np.float32(0.1 * math.log(now)) / np.maximum(s.seen[clients], 1))
        penalty = np.ones_like(u)
        if self.preset != "fedacs" and s.percentile < 100 and u.size:
            seconds = s.seconds[clients]
            at = int(s.percentile / 100 * (seconds.size - 1))
            preferred = max(float(np.partition(seconds, at)[at]), 1e-9)  # [T]
            slow = np.flatnonzero(seconds > preferred)
            penalty[slow] = (np.float32(preferred) / seconds[slow]) ** np.float32(self.penalty)
        return (u + bonus) * penalty, bonus, penalty

    def _exploit(self, score: Real, k: int, population: int, rng: np.random.Generator) -> Index:
        """Admit above the cut-off (or as many as a fifth of all clients), then draw by score."""
        if k == 0:
            return np.empty(0, np.int64)
        if self.preset == "fedacs":
            pool = draw.top(score, max(k, int(0.2 * population)), rng)
            return pool[draw.weighted(score[pool], k, rng)]
        border = np.partition(score, score.size - k)[score.size - k]
        admitted = np.flatnonzero(score >= self.cutoff * border)
        return admitted[draw.weighted(score[admitted], k, rng)]

    def _pace(self) -> None:
        """Eq. 4: move T when the gathered utility stalls."""
        s, w = self.state, self.pacer_step
        if s.gathered.size < 2 * w:
            return
        before, last = float(s.gathered[:w].sum()), float(s.gathered[w:].sum())
        if self.preset == "paper":
            s.percentile += self.pacer_delta if before > last else 0.0
        elif abs(last - before) <= 0.1 * before:
            s.percentile += self.pacer_delta
        elif abs(last - before) >= 5 * before:
            s.percentile = max(s.percentile - self.pacer_delta, self.pacer_delta)
