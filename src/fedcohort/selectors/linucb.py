"""LinUCB: a linear model of the reward, plus a bonus where it is uncertain.

    Lihong Li, Wei Chu, John Langford, Robert E. Schapire. A Contextual-Bandit Approach to Personalized News Article
    Recommendation. WWW 2010. https://arxiv.org/abs/1003.0146
    Several at once: Lijing Qin, Shouyuan Chen, Xiaoyan Zhu. Contextual Combinatorial Bandit and its Application on
    Diversified Online Recommendation. SDM 2014.

With a context x(i) and the reward y(i) of those that replied (Li et al., Alg. 1, one model shared by all clients):

    V <- rho V + (1 - rho) lambda I + sum_{i in S} x(i) x(i)' ;  b <- rho b + sum_{i in S} y(i) x(i)       (1)
    p(i) = x(i)' V^-1 b + alpha sqrt( x(i)' V^-1 x(i) )                                                    (2)
    S    = the K clients of largest p(i)                                                                   (3)

Context here: the share of its loss that a client removed when last asked, log of its last duration, log of its
samples, log of the rounds since it was last asked, and whether it was never asked. Reward: that share, per second,

    r(i) = max(1 - loss_after / loss_before, 0) / T_i,      y = r standardised within the round.           (4)

Departures from the paper
    * One shared model (the paper's Alg. 1 has one per choice, its Alg. 2 a mixture): clients are many and asked rarely.
    * Context and reward are ours: the paper's are about readers and news articles. A share of the loss does not depend
      on the scale on which a client reports, so that a liar gains nothing by exaggerating.
    * Features are trimmed z-scores over the clients known so far; unknown entries are 0, and the last feature, which
      is not scaled, marks them. Forgetting rho is ours (1: none).
    * alpha is the value of the paper's theory at delta = 0.05; its experiments tune it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import linalg
from fedcohort.core.constraints import Factor, NotNegative, Positive
from fedcohort.core.table import block, column
from fedcohort.errors import checked
from fedcohort.selectors._parts.feature_scaling import MovingReward, Scale, Trim, standardise
from fedcohort.selectors._parts.scoring import best, sample
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Mask, Real, Round, RoundResult

Double = NDArray[np.float64]
FEATURES = ("progress", "duration", "samples", "rest", "fresh")
D = len(FEATURES)


@dataclass
class LinUCBState(MovingReward):
    """What is known of each client, and the ridge sums."""

    progress: Real = column(-1.0)  # share of the loss removed, newest; negative: not known
    seconds: Real = column(0.0)  # T_i, newest; 0: never asked
    count: Real = column(0.0)  # samples behind the loss; 0: not known
    asked: NDArray[np.int32] = column(-1, np.int32)  # round last asked
    V: Double = block((D, D))  # V
    b: Double = block((D,))  # b


class LinUCB(StatefulSelector[LinUCBState]):
    """Ask the clients that may be best, judging by what similar clients have done.

    Args:
        explore: weight of the bonus [alpha]; 2.36 is 1 + sqrt(ln(2 / delta) / 2) at delta = 0.05.
        ridge: regularisation [lambda].
        forget: factor on the sums in every round [rho]; 1 forgets nothing.
        trim: share trimmed at each end of every feature before scaling.

    >>> sorted(LinUCB(explore=1.0).needs)
    ['loss_after', 'loss_before', 'loss_count']
    """

    needs = frozenset({"loss_before", "loss_after", "loss_count"})

    @checked
    def __init__(
        self, *, explore: NotNegative = 2.36, ridge: Positive = 1.0, forget: Factor = 1.0, trim: Trim = 0.05
    ) -> None:
        self.explore, self.ridge, self.forget, self.trim = explore, ridge, forget, trim
        self.state = LinUCBState(V=ridge * np.eye(D))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eqs. 2 and 3."""
        s = self.state
        s.grow(rnd.population)
        theta, sure = linalg.solve(s.V, s.b).astype(np.float32), self.explore * linalg.whitener(s.V)
        scale = self._scale(rnd.index)

        def score(rows: Index | slice) -> Real:
            x = self._context(rows, rnd.index, scale)
            p: Real = x @ theta + linalg.norms(x, sure)
            return p

        chosen = best(rnd.available, rnd.size, score, rng)
        x = self._context(chosen, rnd.index, scale)
        why = {name: x[:, j] * theta[j] for j, name in enumerate(FEATURES)}
        return Cohort(chosen, why={**why, "bonus": linalg.norms(x, sure), "score": score(chosen)})

    def observe(self, result: RoundResult) -> None:
        """Eqs. 1 and 4 for those that replied; durations of all."""
        s = self.state
        s.grow_for(result.clients)
        before, after = result.signals["loss_before"], result.signals["loss_after"]
        count, seconds = result.signals["loss_count"], result.duration
        timed = np.isfinite(seconds) & (seconds > 0)
        good = result.replied & timed & np.isfinite(before) & np.isfinite(after) & np.isfinite(count)
        good &= (before >= 0) & (after >= 0) & (count >= 0)
        clients = result.clients[good]
        x = self._context(clients, result.index, self._scale(result.index))
        if clients.size:
            share = np.maximum(1.0 - after[good] / np.maximum(before[good], 1e-9), 0.0)
            r = np.asarray(share / seconds[good], np.float64)  # eq. 4
            s.V, s.b = linalg.accumulate(s.V, s.b, x, standardise(s, r, self.trim), ridge=self.ridge, keep=self.forget)
            s.progress[clients], s.count[clients] = share, count[good]
        s.seconds[result.clients[timed]] = seconds[timed]
        s.asked[result.clients] = result.index

    def _scale(self, index: int) -> Scale:
        """The statistics of the scaled features over the clients asked so far."""
        rows = sample(np.flatnonzero(self.state.asked >= 0))
        return Scale.fit(*self._raw(rows, index), "zscore", self.trim)

    def _context(self, rows: Index | slice, index: int, scale: Scale) -> Real:
        """x of these clients, one row each."""
        x = np.empty((D, self.state.progress[rows].size), np.float32).T  # column after column in memory
        x[:, :-1] = scale.apply(*self._raw(rows, index))
        x[:, -1] = self.state.asked[rows] < 0
        return x

    def _raw(self, rows: Index | slice, index: int) -> tuple[Real, Mask]:
        """The features that are scaled, and which entries are known."""
        s = self.state
        progress, seconds, count, asked = s.progress[rows], s.seconds[rows], s.count[rows], s.asked[rows]
        raw = np.empty((D - 1, progress.size), np.float32).T
        raw[:, 0], raw[:, 1] = progress, np.log(np.maximum(seconds, 1e-9))
        raw[:, 2], raw[:, 3] = np.log(np.maximum(count, 1.0)), np.log(np.maximum(index - asked, 1))
        return raw, np.stack([progress >= 0, seconds > 0, count > 0, asked >= 0]).T
