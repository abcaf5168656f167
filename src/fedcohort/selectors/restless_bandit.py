"""Restless bandit: linear rewards under a hidden regime that changes for all clients at once.

    Michal Yemini, Amir Leshem, Anelia Somekh-Baruch.
    The Restless Hidden Markov Bandit with Linear Rewards and Side Information. IEEE Transactions on Signal
    Processing 69, 2021. https://arxiv.org/abs/1910.10271
    Mode "discounted": Yoan Russac, Claire Vernade, Olivier Cappe. Weighted Linear Bandits for Non-Stationary
    Environments. NeurIPS 2019.

On FLASH's context x_t(i) and scaled reward y_t(i) (`_parts/flash_context.py`), with H regimes z and transitions P_gh:

    l(h)    = prod_i N(y_i; x_i' theta_h, sigma^2)                     likelihood of regime h            (1)
    xi(g,h) = pi(g) P_gh l(h) / sum                                    two-slice posterior               (2)
    pi'(h)  = sum_g xi(g, h) ;  n_gh += xi(g, h) ;  P_gh = n_gh / sum_h n_gh                             (3)
    V_h += pi'(h) sum_i x_i x_i' ;  b_h += pi'(h) sum_i y_i x_i ;  theta_h = V_h^-1 b_h                  (4)
    round t explores (uniform choice) while #explored < D ln(1 + t), else takes the M best of            (5)
    score(i) = sum_h (pi P)_h x_i' theta_h                                                               (6)

Discounted: V <- g V + X'X + (1 - g) lambda I ; W <- g^2 W + X'X + (1 - g^2) lambda I ; b <- g b + X'y   (7)
    score(i) = x_i' V^-1 b + beta sqrt(x_i' V^-1 W V^-1 x_i)                                             (8)

Departures from the paper
    * The paper is about a generic bandit, not a client selector, and only its abstract and introduction were available.
      FLASH says that it used this bandit instead of its own for comparison, not how. Eqs. 1 to 6 are our adaptation.
    * sigma^2 is a running mean of squared residuals, n_gh starts at ten rounds of 0.9 / 0.1, and b_h at N(0, 0.01)
      noise that tells the regimes apart: our choices.
    * (7) and (8) are from memory of the cited paper; beta is a constant here.
    * Context, reward, probes and the first round are those of FLASH in its "robust" preset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw, linalg
from fedcohort.core.constraints import Choice, CountOrZero, Factor, Interval, NotNegative, Positive
from fedcohort.core.rng import generator
from fedcohort.core.table import block
from fedcohort.errors import checked
from fedcohort.selectors._parts.flash_context import (
    Context,
    ContextState,
    Initial,
    Refresh,
    RewardForm,
    Scope,
    fork,
    opening,
)
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Probed, Real, Round, RoundResult

Double = NDArray[np.float64]
MEMORY = 10.0  # rounds of experience behind the first transition matrix
DRIFT = 0.1  # weight of the newest residuals in sigma^2


@dataclass
class RestlessState(ContextState):
    """The context's memory and one linear model per regime (discounted: V and W are the two rows)."""

    V: Double = block((2, 4, 4))  # V_h, (H, d, d)
    b: Double = block((2, 4))  # b_h, (H, d)
    belief: Double = block((2,))  # pi, (H,)
    counts: Double = block((2, 2))  # n_gh, (H, H)
    noise: float = 1.0  # sigma^2
    explored: int = 0  # rounds of (5) so far


class RestlessBandit(StatefulSelector[RestlessState]):
    """Filter the hidden regime, then take the clients that are best under the regime expected next.

    Args:
        mode: "hidden" (regimes) or "discounted" (D-LinUCB).
        regimes: how many there are [H].
        stay: probability of staying in a regime, at first [P_hh].
        explore: rounds of exploration per unit of ln(1 + t) [D].
        discount: factor on the sums of mode "discounted" [g].
        width: weight of the bonus of mode "discounted" [beta].
        ridge: regularisation [lambda].
        context: comma-separated elements of FLASH's context.
        scope: reward per "client", or "global" for one reward for the whole cohort.
        reward: "improvement" (only decreases of the loss count), "abs" (any change), or "model" (by how much the
            client's own model lowers the loss on the server's validation data).
        per_second: whether rewards are divided by the client's duration [T_i].
        refresh: who is probed: "all", "selected" (the last cohort and the stale), "sample:k" or "none".
        staleness: rounds after which refresh="selected" probes a client again; 0: never.
        initial: the first cohort, "all" or "random:k".
        seed: of the noise that tells the regimes apart.

    >>> sorted(RestlessBandit(context="loss,duration").needs)
    ['probe_robust_loss', 'robust_loss']
    """

    @checked
    def __init__(
        self,
        *,
        mode: Annotated[str, Choice("hidden", "discounted")] = "hidden",
        regimes: Annotated[int, Interval(2)] = 2,
        stay: Annotated[float, Interval(0, 1, ends="()")] = 0.9,
        explore: NotNegative = 5.0,
        discount: Factor = 0.98,
        width: NotNegative = 1.0,
        ridge: Positive = 1.0,
        context: str = "loss,val,duration,reward",
        scope: Scope = "client",
        reward: RewardForm = "improvement",
        per_second: bool = True,
        refresh: Refresh = "selected",
        staleness: CountOrZero = 20,
        initial: Initial = "all",
        seed: CountOrZero = 0,
    ) -> None:
        self.context = Context(
            Context.split(context),
            scope=scope,
            reward=reward,
            refresh=refresh,
            staleness=staleness,
            per_second=per_second,
        )
        self.needs, self.learns_from = self.context.needs, self.context.learns_from
        self.does_without = self.context.does_without
        self.mode, self.explore, self.discount, self.width, self.ridge = mode, explore, discount, width, ridge
        self.initial = initial
        d, h = len(self.context.elements), regimes if mode == "hidden" else 2
        apart = 0.1 * generator(seed, "restless-bandit").standard_normal((h, d)) * (mode == "hidden")
        move = np.where(np.eye(h) > 0, stay, (1 - stay) / (h - 1))
        self.state = RestlessState(
            V=np.repeat(ridge * np.eye(d)[None], h, axis=0),
            b=apart,
            belief=np.full(h, 1.0 / h),
            counts=MEMORY * move,
        )

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Whose losses at the new model are needed; every probe costs time and traffic."""
        return self.context.probe(self.state, rnd, rng)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 5: uniformly at random, or the best by eq. 6 (discounted: eq. 8)."""
        if self.state.asked_round < 0:
            return Cohort(opening(self.initial, rnd, rng))
        if self._explores(rnd.index):
            return Cohort(draw.uniform(rnd.available, rnd.size, rng))
        s = fork(self.state, rnd.population)
        self._learn(s, rnd.index, rnd.probed)
        theta, sure = self._belief(s)

        def score(x: Real) -> Real:
            out: Real = x @ theta + linalg.norms(x, sure)
            return out

        chosen, x = self.context.best(s, rnd, score, rng)
        why = {name: x[:, j] * theta[j] for j, name in enumerate(self.context.elements)}
        return Cohort(chosen, why={**why, "bonus": linalg.norms(x, sure), "score": score(x)})

    def observe(self, result: RoundResult) -> None:
        """Learn permanently what `select` learned on a copy, and store what the cohort did."""
        s = self.state
        s.explored += int(s.asked_round >= 0 and self._explores(result.index))
        self._learn(s, result.index, result.probed)
        self.context.record(s, result)

    def _explores(self, t: int) -> bool:
        """Eq. 5; the discounted mode explores by its bonus."""
        return self.mode == "hidden" and self.state.explored < self.explore * math.log(1 + t)

    def _belief(self, s: RestlessState) -> tuple[Real, Double]:
        """(theta of eq. 6 or 8, F such that |x F| is the bonus of eq. 8; none in eq. 6)."""
        if self.mode == "hidden":
            ahead = s.belief @ (s.counts / s.counts.sum(axis=1, keepdims=True))
            return (ahead @ thetas(s)).astype(np.float32), np.zeros((s.b.shape[1], 1))
        sure = self.width * np.linalg.solve(s.V[0], linalg.root(s.V[1]))
        return linalg.solve(s.V[0], s.b[0]).astype(np.float32), sure

    def _learn(self, s: RestlessState, index: int, probed: Probed | None) -> None:
        """Eqs. 1 to 4, or eq. 7, for the rewards that these answers settle."""
        x, y = self.context.settle(s, index, probed)
        if y.size == 0:
            return
        if self.mode == "discounted":
            g = self.discount
            V, b = linalg.accumulate(s.V[0], s.b[0], x, y, ridge=self.ridge, keep=g)
            W, _ = linalg.accumulate(s.V[1], s.b[0], x, y, ridge=self.ridge, keep=g * g)
            s.V, s.b = np.stack([V, W]), np.stack([b, s.b[1]])
            return
        residual = (y[:, None] - x @ thetas(s).T) ** 2  # (n, H)
        joint, s.belief = regimes(s.belief, s.counts, residual.sum(axis=0), s.noise)
        s.counts = s.counts + joint
        s.noise = (1 - DRIFT) * s.noise + DRIFT * max(float((residual @ s.belief).mean()), 1e-3)
        sums = [
            linalg.accumulate(V, b, x, y, ridge=self.ridge, weight=float(share))
            for V, b, share in zip(s.V, s.b, s.belief, strict=True)
        ]
        s.V, s.b = np.stack([V for V, _ in sums]), np.stack([b for _, b in sums])


def thetas(s: RestlessState) -> Double:
    """theta_h of every regime (eq. 4)."""
    return np.array([linalg.solve(V, b) for V, b in zip(s.V, s.b, strict=True)])


def regimes(belief: Double, counts: Double, squares: Double, noise: float) -> tuple[Double, Double]:
    """Eqs. 1 to 3: (two-slice posterior, filtered belief), from the squared residuals summed per regime."""
    move = counts / counts.sum(axis=1, keepdims=True)
    likelihood = np.exp(-0.5 * (squares - squares.min()) / noise)  # up to a factor common to all regimes
    joint = belief[:, None] * move * likelihood[None, :]
    joint /= joint.sum()
    return joint, joint.sum(axis=0)
