"""UCB1: the mean reward so far, plus a bonus for clients that are little known.

    Peter Auer, Nicolo Cesa-Bianchi, Paul Fischer. Finite-time Analysis of the Multiarmed Bandit Problem. Machine
    Learning 47, 2002. Several at once (CUCB): Wei Chen, Yajun Wang, Yang Yuan. Combinatorial Multi-Armed Bandit:
    General Framework and Applications. ICML 2013.

A client with n_k rewards of mean y_k in [0, 1] (`_parts/bandit_reward.py`) has in round t (from 1) the index

    index_k = y_k + c sqrt( 2 ln t / n_k ),     infinite while n_k = 0                                       (1)
    S       = the K clients of largest index                                                                 (2)

Departures from the source
    * K clients at once, and t counts rounds, as in CUCB (which has 3/2 instead of 2). Ties are broken at random.
    * The reward is ours; a client that was asked and did not reply gets 0. A reply whose numbers make no sense
      counts as asked (n_k grows) and leaves the mean as it is.
    * `forget` < 1 discounts all sums in every round (Garivier and Moulines 2011): rewards drift as the model learns.
      1, the default, is UCB1.
    * With more clients than K times the rounds, nobody is tried twice: the choice is uniform, as published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcohort.core.constraints import Factor, Moderate
from fedcohort.core.table import column
from fedcohort.errors import checked
from fedcohort.selectors._parts.bandit_reward import REWARDS, RewardKind, RewardState, reward
from fedcohort.selectors._parts.scoring import best
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Real, Round, RoundResult


@dataclass
class UCB1State(RewardState):
    """What is remembered of every client."""

    mean: Real = column(0.0)  # y_k
    times: Real = column(0.0)  # n_k, discounted where `forget` says so


class UCB1(StatefulSelector[UCB1State]):
    """Ask the clients that may be best.

    Args:
        explore: weight of the bonus [c]; 1 is the source's.
        forget: factor on all sums in every round [gamma of discounted UCB]; 1 forgets nothing.
        reward: "improvement" (share of the loss removed, per second) or "utility" (Oort's, per second).

    >>> sorted(UCB1(explore=0.3).needs)
    ['loss_after', 'loss_before']
    """

    @checked
    def __init__(self, *, explore: Moderate = 1.0, forget: Factor = 1.0, reward: RewardKind = "improvement") -> None:
        super().__init__()
        self.needs = frozenset(REWARDS[reward])
        self.explore, self.forget, self.reward = explore, forget, reward

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eqs. 1 and 2."""
        s = self.state
        s.grow(rnd.population)
        doubt = np.float32(2 * self.explore**2 * math.log(rnd.index + 1))

        def bonus(rows: Index | slice) -> Real:
            times = s.times[rows]
            fresh = times <= 0
            return np.where(fresh, np.float32(np.inf), np.sqrt(doubt / np.where(fresh, np.float32(1), times)))

        chosen = best(rnd.available, rnd.size, lambda rows: s.mean[rows] + bonus(rows), rng)
        mean, extra = s.mean[chosen], bonus(chosen)
        return Cohort(chosen, why={"score": mean + extra, "mean": mean, "bonus": extra})

    def observe(self, result: RoundResult) -> None:
        """A running mean of the rewards."""
        s, told = self.state, result.clients
        s.grow_for(told)
        y, counts = reward(s, result, self.reward)
        if self.forget < 1:
            s.times *= np.float32(self.forget)
        s.times[told] += 1
        who = told[counts]
        s.mean[who] += (y[counts] - s.mean[who]) / s.times[who]
