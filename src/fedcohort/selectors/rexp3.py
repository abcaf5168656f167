"""Rexp3: Exp3 with restarts, for several plays a round, on the skewness rewards of FedACS.

    Omar Besbes, Yonatan Gur, Assaf Zeevi.
    Stochastic Multi-Armed-Bandit Problem with Non-stationary Rewards. NIPS 2014. https://arxiv.org/abs/1405.3316
    Taishi Uchiya, Atsuyoshi Nakamura, Mineichi Kudo.
    Algorithms for Adversarial Bandit Problems with Multiple Plays (Exp3.M). ALT 2010.
    As a baseline in FedACS (see fedacs.py), whose reward it uses.

With weights w_i, N available clients and K plays:

    v_i   = min(w_i, c)            c such that no pi_i exceeds 1 (none where all fit)                               (1)
    pi_i  = K [ (1 - gamma) v_i / sum v + gamma / N ]                      inclusion probability, sums to K         (2)
    S     = DepRound(pi)                                                   exactly K clients with these marginals   (3)
    x_i   = rank of -Q_i within the round, best 1, worst 0                 Q_i: eq. 13 of FedACS                    (4)
    w_i   <- w_i exp( K gamma x_i / (N pi_i) )     for i in S with pi_i < 1                                         (5)

Every Delta rounds all weights start again at 1, to follow a drift.

Departures from the papers
    * Besbes et al. was not available: gamma and Delta are those of the FedACS code, not the theory's
      Delta = (N ln N)^(1/3) (T / V)^(2/3) and gamma = sqrt(N ln N / ((e - 1) Delta)), which are from memory.
    * Rewards are mapped to [0, 1] by rank: -Q_i has neither bounds nor a stable scale, and Exp3 needs both.
    * DepRound is systematic sampling in a random order: the same marginals, one pass.
    * Weights are kept as logarithms, scaled to mean 1 after every update, so that clients that register later start at
      the mean. A client that does not reply gains nothing. A round with fewer than two insights teaches nothing.
    * pi_i is kept between `select` and `observe`; for a cohort that was not chosen here it is computed as if everybody
      had been available.
    * preset "fedacs" is the authors' comparison version: K clients without replacement with odds
      p_i = (1 - gamma) w_i / sum w + gamma / N, x_i = -Q_i as it is, w_i <- w_i exp(gamma x_i / (N p_i)), no restart
      (in their code the round counter never moves), and no protection against liars in the mean of the insights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, CountOrZero, Factor
from fedcohort.core.stats import rank
from fedcohort.core.table import column
from fedcohort.errors import checked
from fedcohort.selectors._parts.last_reports import Samples
from fedcohort.selectors.base import StatefulSelector
from fedcohort.selectors.fedacs import reported_skewness
from fedcohort.types import Cohort, Index, Real, Round, RoundResult

LIGHTEST = -60.0  # log-weights this far below the heaviest are not told apart
CLIP = 10.0  # as FedACS: how long an insight may be in the mean, in median lengths
CERTAIN = 1.0 - 1e-9


@dataclass
class Rexp3State(Samples):
    """The weights of the running batch of rounds."""

    weight: Real = column(0.0)  # ln w_i
    batch: int = 0  # how many restarts there were


class Rexp3(StatefulSelector[Rexp3State]):
    """Raise the odds of the least skewed exponentially; forget everything at regular intervals.

    Args:
        preset: "rank", or "fedacs" for the comparison version of the FedACS authors.
        explore: share of every probability that is the same for all [gamma].
        restart: rounds between restarts [Delta]; 0: never; None: 250, and never in preset "fedacs".

    >>> Rexp3(explore=0.3).restart
    250
    """

    needs = frozenset({"samples", "insight"})

    @checked
    def __init__(
        self,
        *,
        preset: Annotated[str, Choice("rank", "fedacs")] = "rank",
        explore: Factor = 0.2,
        restart: CountOrZero | None = None,
    ) -> None:
        super().__init__()
        self.preset, self.explore = preset, explore
        self.restart = (0 if preset == "fedacs" else 250) if restart is None else restart
        self._asked: tuple[int, Index, NDArray[np.float64], int] | None = None  # round, clients, pi (or p), N

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 1 to 3."""
        self.state.register(rnd)
        if rnd.size <= 0 or rnd.available.size == 0:
            return Cohort(np.empty(0, np.int64))
        odds = self._odds(rnd.available, rnd.size, rnd.index)
        drawn = draw.weighted(odds, rnd.size, rng) if self.preset == "fedacs" else draw.depround(odds, rng)
        chosen, odds = rnd.available[drawn], odds[drawn]
        self._asked = rnd.index, chosen, odds, rnd.available.size
        why = {"log_weight": self._weights(chosen, rnd.index), "odds": odds}
        return Cohort(chosen, inclusion=None if self.preset == "fedacs" else odds, why=why)

    def observe(self, result: RoundResult) -> None:
        """Eq. 4 and 5, after a restart if one is due."""
        s = self.state
        s.grow_for(result.clients)
        if self._batch(result.index) != s.batch:
            s.batch = self._batch(result.index)
            s.weight[:] = 0.0
        who, q = reported_skewness(s, result, math.inf if self.preset == "fedacs" else CLIP)
        if who.size == 0:
            return
        odds, n = self._odds_at_the_draw(result, who)
        s.weight[who] += self._gain(q, odds, n, result.clients.size).astype(np.float32)
        s.weight -= _log_mean(s.weight)

    def _batch(self, index: int) -> int:
        """Which batch of rounds this one belongs to."""
        return index // self.restart if self.restart else 0

    def _weights(self, clients: Index, index: int) -> Real:
        """ln w_i; 0 for everybody in the first round after a restart."""
        s = self.state
        return s.weight[clients] if self._batch(index) == s.batch else np.zeros(clients.size, np.float32)

    def _odds(self, clients: Index, k: int, index: int) -> NDArray[np.float64]:
        """Eq. 2: pi_i; in preset "fedacs" the odds p_i of one draw."""
        log = self._weights(clients, index).astype(np.float64)
        w = np.exp(np.maximum(log - log.max(), LIGHTEST))
        if self.preset == "fedacs":
            p: NDArray[np.float64] = (1 - self.explore) * w / w.sum() + self.explore / w.size
            return p
        return exp3m(w, k, self.explore)

    def _odds_at_the_draw(self, result: RoundResult, who: Index) -> tuple[NDArray[np.float64], int]:
        """What :meth:`select` drew these clients with, and from how many."""
        if self._asked is not None and self._asked[0] == result.index:
            _, clients, odds, n = self._asked
            order = np.argsort(clients, kind="stable")
            at = order[np.minimum(np.searchsorted(clients[order], who), max(clients.size - 1, 0))]
            if clients.size and np.array_equal(clients[at], who):
                return odds[at], n
        n = self.state.rows
        return self._odds(np.arange(n), result.clients.size, result.index)[who], n

    def _gain(self, q: NDArray[np.float64], odds: NDArray[np.float64], n: int, k: int) -> NDArray[np.float64]:
        """The exponent of eq. 5; preset "fedacs": that of one play with reward -Q."""
        if self.preset == "fedacs":
            return np.maximum(-self.explore * q / (n * odds), -1e6)
        x = rank(-q) / (q.size - 1)  # eq. 4
        return np.where(odds < CERTAIN, self.explore * k * x / (n * odds), 0.0)


def exp3m(weight: NDArray[np.float64], k: int, gamma: float) -> NDArray[np.float64]:
    """Eq. 1 and 2: inclusion probabilities of positive weights, at least gamma k / n, at most 1, with sum k."""
    n = weight.size
    if k >= n:
        return np.ones(n)
    floor = gamma * k / n
    room = 1.0 - floor
    return np.minimum(floor + room * _capped(weight, (1 - gamma) * k / room), 1.0)


def _capped(weight: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """min(1, c w_i) with c such that the sum is `total`, which is less than the number of rows."""
    most = math.ceil(total)
    if most == 0:
        return np.zeros(weight.size)
    parts = np.partition(weight, weight.size - most)
    head = np.sort(parts[weight.size - most :])[::-1]  # only these can reach 1
    tail = np.cumsum(head[::-1])[::-1] + parts[: weight.size - most].sum()  # tail[j]: all but the j heaviest
    fits = head * (total - np.arange(most)) <= tail * (1 + 1e-12)
    capped = int(np.argmax(fits))
    return np.minimum(weight * ((total - capped) / float(tail[capped])), 1.0)


def _log_mean(log: Real) -> np.float32:
    """ln of the mean of exp(log)."""
    top = float(log.max())
    return np.float32(top + math.log(float(np.exp(log - np.float32(top)).mean(dtype=np.float64))))
