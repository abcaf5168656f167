"""Epsilon-greedy: mostly the best so far, sometimes anybody.

    Christopher Watkins. Learning from Delayed Rewards. Cambridge 1989. As in: Richard S. Sutton, Andrew G. Barto.
    Reinforcement Learning: An Introduction. 2nd ed., MIT Press 2018, sections 2.3 to 2.5.

A client that has been paid y (see `reward`) for the n-th time:

    Q_k <- Q_k + (y - Q_k) / n     or, with a constant step alpha,     Q_k <- Q_k + alpha (y - Q_k)          (1)
    each of the K seats goes by lot with probability eps, else to the largest Q_k left                       (2)
    eps = max(eps_0 decay^t, eps_min)                                                                        (3)

Departures from the source
    * K clients at once; those seated by lot are drawn after the best are seated, from all that are left.
    * Q_k starts at 1/2, which by construction of the pay is what clients usually earn: the untried come before those
      known to be worse, and after those known to be better. Ties by lot.
    * The reward is ours; a client that was asked and did not reply is paid 0.
    * The default step is constant: what a client earns changes as the model learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.table import column
from fedcohort.errors import check
from fedcohort.selectors._parts.bandit_reward import RewardState, needs, reward
from fedcohort.types import Arrays, Cohort, Real, Round, RoundResult


@dataclass
class EpsilonGreedyState(RewardState):
    """What is remembered of every client."""

    value: Real = column(0.5)  # Q_k
    times: Real = column(0.0)  # n, how often paid


class EpsilonGreedy:
    """The best so far, and a share by lot. The source's symbol for each parameter is given in brackets."""

    def __init__(
        self,
        *,
        explore: float = 0.2,  # [eps_0]
        explore_decay: float = 1.0,  # a round
        explore_min: float = 0.05,
        step: float = 0.3,  # [alpha]; 0: the mean of all pay so far
        reward: str = "improvement",  # or "utility"
    ) -> None:
        check(0 <= explore <= 1, f"explore = {explore}", "a share lies between 0 and 1", "use e.g. 0.2")
        check(0 < explore_decay <= 1, f"explore_decay = {explore_decay}", "a factor in (0, 1]", "1 keeps the share")
        check(0 <= explore_min <= 1, f"explore_min = {explore_min}", "a share lies between 0 and 1", "use e.g. 0.05")
        check(0 <= step <= 1, f"step = {step}", "a step lies between 0 and 1", "use e.g. 0.3, or 0 for the mean")
        self.needs = needs(reward)
        self.explore, self.explore_decay, self.explore_min = explore, explore_decay, min(explore_min, explore)
        self.step, self.reward = step, reward
        self.state = EpsilonGreedyState()

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 2."""
        self.state.grow(rnd.population)
        k = max(min(rnd.size, rnd.available.size), 0)
        value = self.state.value[rnd.available]
        best = draw.top(value, k - int(rng.binomial(k, self._eps(rnd.index))), rng)
        rest = np.ones(value.size, np.bool_)
        rest[best] = False
        at = np.concatenate([best, draw.uniform(np.flatnonzero(rest), k - best.size, rng)])
        return Cohort(rnd.available[at], why={"value": value[at], "draw_uniform": np.arange(k) >= best.size})

    def observe(self, result: RoundResult) -> None:
        """Eq. 1."""
        s = self.state
        s.grow(int(result.clients.max(initial=-1)) + 1)
        y, counts = reward(s, result, self.reward)
        who = result.clients[counts]
        s.times[who] += 1
        step = np.where(s.times[who] == 1, 1.0, self.step) if self.step > 0 else 1 / s.times[who]
        s.value[who] += step * (y[counts] - s.value[who])

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)

    def _eps(self, index: int) -> float:
        """Eq. 3."""
        return max(self.explore * self.explore_decay**index, self.explore_min)
