"""Restless bandit: linear rewards under a hidden regime that changes for all clients at once.

    Michal Yemini, Amir Leshem, Anelia Somekh-Baruch.
    The Restless Hidden Markov Bandit with Linear Rewards and Side Information. IEEE Transactions on Signal
    Processing 69, 2021. https://arxiv.org/abs/1910.10271
    Mode "discounted": Yoan Russac, Claire Vernade, Olivier Cappe. Weighted Linear Bandits for Non-Stationary
    Environments. NeurIPS 2019.

On FLASH's context x_t(i) and scaled reward y_t(i) (`context.py`), with H regimes z and transitions P_gh:

    l(h)    = prod_i N(y_i; x_i' theta_h, sigma^2)                     likelihood of regime h            (1)
    xi(g,h) = pi(g) P_gh l(h) / sum                                    two-slice posterior               (2)
    pi'(h)  = sum_g xi(g, h) ;  n_gh += xi(g, h) ;  P_gh = n_gh / sum_h n_gh                             (3)
    V_h += pi'(h) sum_i x_i x_i' ;  b_h += pi'(h) sum_i y_i x_i ;  theta_h = V_h^-1 b_h                  (4)
    round t explores (uniform choice) while #explored < D ln(1 + t), else takes the M best of            (5)
    score(i) = sum_h (pi P)_h x_i' theta_h                                                               (6)

Discounted: V <- g V + X'X + (1 - g) lambda I ; W <- g^2 W + X'X + (1 - g^2) lambda I ; b <- g b + X'y   (7)
    score(i) = x_i' V^-1 b + beta sqrt(x_i' V^-1 W V^-1 x_i)                                             (8)

Departures from the paper
    * The paper is a generic bandit, not a client selector, and only its abstract and introduction were at hand. FLASH
      says that it put this bandit in the place of its own, not how. Equations 1 to 6 are our adaptation [REC].
    * sigma^2 is a running mean of squared residuals, n_gh starts at ten rounds of 0.9 / 0.1, and b_h at N(0, 0.01)
      noise that tells the regimes apart [REC].
    * (7) and (8) are from memory of the cited paper [MEM]; beta is a constant here.
    * Context, reward, probes and the first round are those of FLASH in its "robust" preset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw, linalg
from fedcohort.core.rng import generator
from fedcohort.core.table import block
from fedcohort.errors import check
from fedcohort.selectors._parts.flash_context import NEEDS, Context, ContextState, fork, opening
from fedcohort.types import Arrays, Cohort, Index, Probed, Real, Round, RoundResult

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


class RestlessBandit:
    """Filter the hidden regime, then take the clients that are best under the regime expected next.

    The symbol for each parameter is given in brackets.
    """

    needs: frozenset[str] = NEEDS

    def __init__(
        self,
        *,
        mode: str = "hidden",  # or "discounted"
        regimes: int = 2,  # [H]
        stay: float = 0.9,  # [P_hh] at the start
        explore: float = 5.0,  # [D] rounds of exploration per unit of ln(1 + t)
        discount: float = 0.98,  # [g]
        width: float = 1.0,  # [beta]
        ridge: float = 1.0,  # [lambda]
        context: str = "loss,val,duration,reward",
        scope: str = "client",
        reward: str = "improvement",
        refresh: str = "selected",
        staleness: int = 20,
        initial: str = "all",  # or "random:k"
        seed: int = 0,  # of the noise that tells the regimes apart
    ) -> None:
        check(mode in ("hidden", "discounted"), f"mode {mode!r}", "hidden or discounted", "choose one of them")
        check(regimes >= 2, f"regimes {regimes}", "at least 2", "use flash where there is one")
        check(0 < stay < 1, f"stay {stay}", "inside (0, 1)", "0.9 is the default")
        check(0 < discount <= 1, f"discount {discount}", "a factor in (0, 1]", "0.98 is the default")
        check(explore >= 0, f"explore {explore}", "not negative", "5 is the default")
        check(width >= 0, f"width {width}", "not negative", "1 is the default")
        check(ridge > 0, f"ridge {ridge}", "positive", "1 is the default")
        self.context = Context.of(context, scope=scope, reward=reward, refresh=refresh, staleness=staleness)
        self.needs = self.context.needs
        self.mode, self.explore, self.discount, self.width, self.ridge = mode, explore, discount, width, ridge
        self.initial = initial
        opening(initial, Round(0, 0, np.empty(0, np.int64), 0), generator(0, "check"))  # refuses a bad word now
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
        """Whose losses at the new model are wanted; each is paid for."""
        return self.context.probe(self.state, rnd, rng)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 5: by lot, or the best by eq. 6 (discounted: eq. 8)."""
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
        """Learn for good what `select` learnt on a copy, and note what the cohort did."""
        s = self.state
        s.explored += int(s.asked_round >= 0 and self._explores(result.index))
        self._learn(s, result.index, result.probed)
        self.context.record(s, result)

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)

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
