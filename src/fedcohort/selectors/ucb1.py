"""UCB1: the mean so far, and the benefit of the doubt.

    Peter Auer, Nicolo Cesa-Bianchi, Paul Fischer. Finite-time Analysis of the Multiarmed Bandit Problem. Machine
    Learning 47, 2002. Several at once (CUCB): Wei Chen, Yajun Wang, Yang Yuan. Combinatorial Multi-Armed Bandit:
    General Framework and Applications. ICML 2013.

A client paid n_k times, with mean pay y_k in [0, 1] (see `reward`), has in round t (1-based) the index

    index_k = y_k + c sqrt( 2 ln t / n_k ),     infinite while n_k = 0                                       (1)
    S       = the K clients of largest index                                                                 (2)

Departures from the source
    * K clients at once, and t counts rounds, as in CUCB (which has 3/2 in place of 2). Ties by lot.
    * The reward is ours; a client that was asked and did not reply is paid 0. A reply whose numbers make no sense
      counts as asked (n_k grows) and leaves the mean.
    * `forget` < 1 discounts all sums in every round (Garivier and Moulines 2011): pay is not stationary, for clients
      learn. 1, the default, is UCB1.
    * With more clients than K times the rounds everybody is untried: the choice is uniform, as published.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import column
from fedcohort.errors import check
from fedcohort.selectors._parts.bandit_reward import RewardState, needs, reward
from fedcohort.selectors._parts.flash_context import best
from fedcohort.types import Arrays, Cohort, Index, Real, Round, RoundResult


@dataclass
class UCB1State(RewardState):
    """What is remembered of every client."""

    mean: Real = column(0.0)  # y_k
    times: Real = column(0.0)  # n_k, discounted where `forget` says so


class UCB1:
    """Ask those that may be best. The source's symbol for each parameter is given in brackets."""

    def __init__(
        self,
        *,
        explore: float = 1.0,  # [c]
        forget: float = 1.0,  # [gamma] of discounted UCB
        reward: str = "improvement",  # or "utility"
    ) -> None:
        check(explore >= 0, f"explore = {explore}", "it must not be negative", "1 is the source's")
        check(0 < forget <= 1, f"forget = {forget}", "a factor in (0, 1]", "1 forgets nothing")
        self.needs = needs(reward)
        self.explore, self.forget, self.reward = explore, forget, reward
        self.state = UCB1State()

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
        """A running mean of the pay."""
        s, told = self.state, result.clients
        s.grow(int(told.max(initial=-1)) + 1)
        y, counts = reward(s, result, self.reward)
        if self.forget < 1:
            s.times *= np.float32(self.forget)
        s.times[told] += 1
        who = told[counts]
        s.mean[who] += (y[counts] - s.mean[who]) / s.times[who]

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)
