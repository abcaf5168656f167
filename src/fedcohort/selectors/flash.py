"""FLASH: contextual linear Thompson sampling over what makes clients differ.

    Xiangyu Chang, Sk Miraj Ahmed, Srikanth V. Krishnamurthy, Basak Guler, Ananthram Swami, Samet Oymak,
    Amit K. Roy-Chowdhury. FLASH: Federated Learning Across Simultaneous Heterogeneities.

With the context x_t(i) and the reward r_t(i) of `_parts/flash_context.py` (C1, C2; y is the reward after scaling):

    V <- rho V + (1 - rho) lambda I + sum_{i in S_t} x_t(i) x_t(i)'       V_0 = lambda I      (Alg. 2, line 4)
    b <- rho b + sum_{i in S_t} y_t(i) x_t(i)                             b_0 = 0             (Alg. 2, line 5)
    theta  = V^-1 b                                                                           (Alg. 2, line 6)
    theta~ ~ N(theta, v^2 gamma_t^2 V^-1)                                                     (Alg. 2, line 7)
    gamma_t = sqrt(lambda) + sqrt(d ln((1 + t m) / delta))                                    (Alg. 1, line 8)
    S_t = the M clients of largest x_t(i)' theta~                                             (Alg. 1, line 24)

method="ucb" scores x' theta + v gamma_t sqrt(x' V^-1 x) instead of drawing theta~ (LinUCB).

The robust loss L_rob = CE + alpha CE(pseudo-labels) + beta RCE is part of the task's objective; this file only reads
the signals `robust_loss` and `probe_robust_loss`.

Departures from the paper
    * Rewards are standardised within the round. As printed (preset "literal"), rewards are around 1e-6 while gamma_t,
      made for rewards of unit size, is 4 to 9: theta~ is a random direction, and the choice no better than uniform.
    * Contexts are scaled: "literal" not at all, "paper_scaled" divides each column by its norm over the clients
      (as the ancestor of FLASH does), "robust" uses trimmed z-scores and log-durations.
    * v (1 as printed, 0.3 in "model" and "robust") and forgetting rho (1 as printed) are ours; 0.3 is a cautious
      choice, not an optimum.
    * Time: the reward of S_t is the change from w^t to w^{t+1} and is paired with the contexts with which S_t was
      chosen; the paper pairs it with those of the next round, and passes contexts where Alg. 2 expects rewards.
    * The reward "model" (default) reads Alg. 1, line 20, as a vector: the fall of the server's validation loss under
      each uploaded model. The fall of a client's own loss, the other readings, is largest where the data are skewed;
      it is what is paid where the server has no validation data.
    * V is X'X (d x d), not XX'. Rewards are per client; scope="global" is Alg. 1, line 20.
    * |.| also rewards a loss that rises, as noisy labels make it do: "robust" counts decreases only.
    * Only the last cohort and those not measured for 20 rounds are probed; refresh="all" is the paper.
    * S_0 = everybody only as far as the size of round 0 allows: the run's key size_schedule = "0:all, 1:10" asks
      everybody in round 0 and 10 from round 1 on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import linalg
from fedcohort.core.constraints import Choice, CountOrZero, Factor, Interval, NotNegative, Positive
from fedcohort.core.table import block
from fedcohort.errors import checked
from fedcohort.selectors._parts.feature_scaling import Trim
from fedcohort.selectors._parts.flash_context import (
    Context,
    ContextState,
    Initial,
    Refresh,
    RewardForm,
    Scaling,
    Scope,
    fork,
    opening,
)
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Probed, Real, Round, RoundResult

Double = NDArray[np.float64]


@dataclass
class FlashState(ContextState):
    """The context's memory and the ridge sums."""

    V: Double = block((4, 4))  # V, (d, d)
    b: Double = block((4,))  # b, (d,)


@dataclass(frozen=True, slots=True)
class Preset:
    """What the paper leaves open, decided in one of four ways."""

    scaling: str
    standardise: bool
    trim: float
    reward: str
    explore: float


PRESETS: Mapping[str, Preset] = {
    "literal": Preset(scaling="raw", standardise=False, trim=0.0, reward="abs", explore=1.0),
    "paper_scaled": Preset(scaling="l2", standardise=True, trim=0.05, reward="abs", explore=1.0),
    "robust": Preset(scaling="zscore", standardise=True, trim=0.05, reward="improvement", explore=0.3),
    "model": Preset(scaling="zscore", standardise=True, trim=0.05, reward="model", explore=0.3),
}


class Flash(StatefulSelector[FlashState]):
    """Learn what a client's context says about its next contribution; draw a belief; take the best under it.

    Args:
        preset: "model", "robust", "paper_scaled" or "literal" (as printed); sets the arguments that are None.
        method: "thompson", or "ucb" for LinUCB.
        context: comma-separated elements of the context [x]; leave some out for the ablation of Fig. 4.
        explore: width of the belief [v]; 0 is greedy.
        scaling: how contexts are scaled: "zscore", "l2" or "raw".
        standardise: whether rewards are standardised within the round.
        trim: share trimmed at each end before scaling.
        reward: "abs" (the absolute change of the loss), "improvement" (only decreases count), or "model" (by how much
            the client's own model lowers the loss on the server's validation data).
        per_second: whether rewards are divided by the client's duration [T_i].
        scope: reward per "client", or "global" for one reward for the whole cohort.
        refresh: who is probed: "all", "selected" (the last cohort and the stale), "sample:k" or "none".
        staleness: rounds after which refresh="selected" probes a client again; 0: never.
        forget: factor on the sums in every round [rho]; 1 forgets nothing.
        ridge: regularisation [lambda].
        confidence: probability that the true parameters lie outside the belief [delta].
        initial: the first cohort [S_0], "all" (as many as round 0 asks: all with the run's key
            size_schedule="0:all, 1:10") or "random:k".

    >>> sorted(Flash(context="loss,duration").needs)
    ['model_gain', 'probe_robust_loss', 'robust_loss']
    """

    @checked
    def __init__(
        self,
        *,
        preset: Annotated[str, Choice(*PRESETS)] = "model",
        method: Annotated[str, Choice("thompson", "ucb")] = "thompson",
        context: str = "loss,val,duration,reward",
        explore: NotNegative | None = None,
        scaling: Scaling | None = None,
        standardise: bool | None = None,
        trim: Trim | None = None,
        reward: RewardForm | None = None,
        per_second: bool = True,
        scope: Scope = "client",
        refresh: Refresh = "selected",
        staleness: CountOrZero = 20,
        forget: Factor = 1.0,
        ridge: Positive = 1.0,
        confidence: Annotated[float, Interval(0, 1, ends="()")] = 0.05,
        initial: Initial = "all",
    ) -> None:
        p = PRESETS[preset]
        self.context = Context(
            Context.split(context),
            scaling=p.scaling if scaling is None else scaling,
            standardise=p.standardise if standardise is None else standardise,
            trim=p.trim if trim is None else trim,
            reward=p.reward if reward is None else reward,
            scope=scope,
            refresh=refresh,
            staleness=staleness,
            per_second=per_second,
        )
        self.needs, self.learns_from = self.context.needs, self.context.learns_from
        by_preset = reward is None and refresh != "none"
        self.does_without = {k: "preset='robust'" if by_preset else v for k, v in self.context.does_without.items()}
        self.explore = p.explore if explore is None else explore
        self.method, self.forget, self.ridge, self.confidence, self.initial = method, forget, ridge, confidence, initial
        d = len(self.context.elements)
        self.state = FlashState(V=ridge * np.eye(d), b=np.zeros(d))

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Whose losses at the new model are needed; every probe costs time and traffic."""
        return self.context.probe(self.state, rnd, rng)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Learn from the answers (on a copy), then take the best under the drawn belief."""
        if self.state.asked_round < 0:
            return Cohort(opening(self.initial, rnd, rng))
        s = fork(self.state, rnd.population)
        self._learn(s, rnd.index, rnd.probed)
        theta, sure = linalg.solve(s.V, s.b), linalg.whitener(s.V)
        width = self.explore * gamma(rnd.index, rnd.population, theta.size, self.ridge, self.confidence)
        if self.method == "thompson":
            theta, width = linalg.sample(theta, s.V, width, rng), 0.0
        part = theta.astype(np.float32)

        def score(x: Real) -> Real:
            mean: Real = x @ part
            return mean + np.float32(width) * linalg.norms(x, sure) if width else mean

        chosen, x = self.context.best(s, rnd, score, rng)
        why = {name: x[:, j] * part[j] for j, name in enumerate(self.context.elements)}
        return Cohort(chosen, why={**why, "bonus": width * linalg.norms(x, sure), "score": score(x)})

    def observe(self, result: RoundResult) -> None:
        """Learn permanently what `select` learned on a copy, and store what the cohort did."""
        self._learn(self.state, result.index, result.probed)
        self.context.record(self.state, result)

    def _learn(self, s: FlashState, index: int, probed: Probed | None) -> None:
        """Alg. 2, lines 4 and 5, for the rewards that these answers settle."""
        x, y = self.context.settle(s, index, probed)
        if y.size:
            s.V, s.b = linalg.accumulate(s.V, s.b, x, y, ridge=self.ridge, keep=self.forget)


def gamma(t: int, m: int, d: int, ridge: float, confidence: float) -> float:
    """Alg. 1, line 8: how wide the belief is in round t with m clients and d features."""
    return math.sqrt(ridge) + math.sqrt(d * math.log((1 + t * m) / confidence))
