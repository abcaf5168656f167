"""Epsilon-greedy: mostly the best so far, sometimes anybody.

    Christopher Watkins. Learning from Delayed Rewards. Cambridge 1989. As in: Richard S. Sutton, Andrew G. Barto.
    Reinforcement Learning: An Introduction. 2nd ed., MIT Press 2018, sections 2.3 to 2.5.

A client that gets its n-th reward y (`_parts/bandit_reward.py`):

    Q_k <- Q_k + (y - Q_k) / n     or, with a constant step alpha,     Q_k <- Q_k + alpha (y - Q_k)          (1)
    each of the K places goes to a random client with probability eps, else to the largest Q_k left          (2)
    eps = max(eps_0 decay^t, eps_min)                                                                        (3)

Departures from the source
    * K clients at once; the random ones are drawn after the best are chosen, from all that are left.
    * Q_k starts at 1/2, which is the usual reward by construction: untried clients come before those known to be
      worse, and after those known to be better. Ties are broken at random.
    * The reward is ours; a client that was asked and did not reply gets 0.
    * The default step is constant: what a client contributes changes as the model learns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcohort.core import draw
from fedcohort.core.constraints import Factor, Share
from fedcohort.core.table import column
from fedcohort.errors import checked
from fedcohort.selectors._parts.bandit_reward import REWARDS, RewardKind, RewardState, reward
from fedcohort.selectors._parts.scoring import unchosen
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Real, Round, RoundResult


@dataclass
class EpsilonGreedyState(RewardState):
    """What is remembered of every client."""

    value: Real = column(0.5)  # Q_k
    times: Real = column(0.0)  # n, how often rewarded


class EpsilonGreedy(StatefulSelector[EpsilonGreedyState]):
    """Choose the best so far, and a share of the cohort at random.

    Args:
        explore: probability that a place goes to a random client, at first [eps_0].
        explore_decay: factor on `explore` per round; 1 keeps the share.
        explore_min: the share never falls below this.
        step: weight of the newest reward [alpha]; 0 takes the mean of all rewards so far.
        reward: "improvement" (share of the loss removed, per second) or "utility" (Oort's, per second).

    >>> EpsilonGreedy(explore=0.5, reward="utility").needs
    frozenset({'utility'})
    """

    @checked
    def __init__(
        self,
        *,
        explore: Share = 0.2,
        explore_decay: Factor = 1.0,
        explore_min: Share = 0.05,
        step: Share = 0.3,
        reward: RewardKind = "improvement",
    ) -> None:
        super().__init__()
        self.needs = frozenset(REWARDS[reward])
        self.explore, self.explore_decay, self.explore_min = explore, explore_decay, min(explore_min, explore)
        self.step, self.reward = step, reward

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 2."""
        self.state.grow(rnd.population)
        k = max(min(rnd.size, rnd.available.size), 0)
        value = self.state.value[rnd.available]
        best = draw.top(value, k - int(rng.binomial(k, self._eps(rnd.index))), rng)
        at = np.concatenate([best, draw.uniform(unchosen(value.size, best), k - best.size, rng)])
        return Cohort(rnd.available[at], why={"value": value[at], "explored": np.arange(k) >= best.size})

    def observe(self, result: RoundResult) -> None:
        """Eq. 1."""
        s = self.state
        s.grow_for(result.clients)
        y, counts = reward(s, result, self.reward)
        who = result.clients[counts]
        s.times[who] += 1
        step = np.where(s.times[who] == 1, 1.0, self.step) if self.step > 0 else 1 / s.times[who]
        s.value[who] += step * (y[counts] - s.value[who])

    def _eps(self, index: int) -> float:
        """Eq. 3."""
        return max(self.explore * self.explore_decay**index, self.explore_min)
