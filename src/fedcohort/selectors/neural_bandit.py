"""Neural bandit: a small network predicts a client's reward, its gradient says how sure it is.

    Hangrui Cao, Qiying Pan, Yifei Zhu, Jiangchuan Liu. Birds of a Feather Help: Context-Aware Client Selection for
    Federated Learning. FL-AAAI workshop, 2022.
    Dongruo Zhou, Lihong Li, Quanquan Gu. Neural Contextual Bandits with UCB-based Exploration. ICML 2020.
    Weitong Zhang, Dongruo Zhou, Lihong Li, Quanquan Gu. Neural Thompson Sampling. ICLR 2021.

On FLASH's context x and scaled reward y (`_parts/flash_context.py`), with f(x; w) a ReLU network d - q - q - 1:

    g(x)     = grad_w f(x; w) / sqrt(q)                                                           (1)
    sigma(x) = sqrt( sum_j g_j(x)^2 / Z_j ),      Z_0 = lambda                                    (2)
    UCB:       score = f(x) + nu sigma(x)                                                         (3)
    Thompson:  score ~ N(f(x), nu^2 sigma(x)^2)                                                   (4)
    S_t = the M largest scores;   Z_j += sum_{i in S_t} g_j(x_i)^2                                (5)
    w: 20 Adam steps on mean (f(x) - y)^2 / 2 + lambda |w|^2 / (2 n) over the n newest pairs      (6)

Departures from the paper
    * The text of the first paper was not available; FLASH only says that it used this bandit instead of its own for
      comparison. This file is such a drop-in replacement. The sharing between similar clients that gave the paper its
      title is not implemented: clients with similar contexts already share through the network.
    * Z is diagonal (as far as we remember, the second and third papers analyse the full matrix and use the diagonal in
      experiments).
    * nu is 0.3, not a more common 0.1: rewards are standardised within the round, so a cohort of equally poor clients
      teaches nothing, and at 0.1 some runs never leave such a cohort.
    * Above `candidates` available clients, a uniform sample of that size is scored: a pass over a million clients
      is 12 billion multiplications. candidates=0 scores all.
    * Context, reward, probes and the first round are those of FLASH in its "robust" preset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, Count, CountOrZero, Interval, NotNegative, Positive
from fedcohort.core.rng import generator
from fedcohort.core.table import block, ragged
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
from fedcohort.selectors._parts.reward_network import RewardNetwork
from fedcohort.selectors._parts.scoring import chunks
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Probed, Round, RoundResult

Single = NDArray[np.float32]


@dataclass
class NeuralState(ContextState):
    """The context's memory, the network, its optimiser and the pairs it learns from."""

    w: Single = block((0,), dtype=np.float32)  # all parameters, flat
    Z: Single = block((0,), dtype=np.float32)  # diagonal of the confidence matrix
    adam_m: Single = block((0,), dtype=np.float32)  # first moment
    adam_v: Single = block((0,), dtype=np.float32)  # second moment
    steps: int = 0  # Adam steps so far
    pairs_x: NDArray[np.float32] = ragged(np.float32, ndim=2)  # contexts, oldest first
    pairs_y: NDArray[np.float32] = ragged(np.float32)  # their rewards


class NeuralBandit(StatefulSelector[NeuralState]):
    """Predict the next reward with a network; add a bonus, or noise, where it has seen little.

    Args:
        mode: "ucb" (a bonus) or "thompson" (noise).
        explore: size of the bonus or the noise [nu].
        width: units of each hidden layer [q].
        ridge: regularisation [lambda].
        lr: learning rate of Adam.
        steps: Adam steps a round.
        batch: pairs in a step.
        memory: pairs kept [n].
        candidates: clients scored at most; 0: all.
        context: comma-separated elements of FLASH's context.
        scope: reward per "client", or "global" for one reward for the whole cohort.
        reward: "improvement" (only decreases of the loss count), "abs" (any change), or "model" (by how much the
            client's own model lowers the loss on the server's validation data).
        per_second: whether rewards are divided by the client's duration [T_i].
        refresh: who is probed: "all", "selected" (the last cohort and the stale), "sample:k" or "none".
        staleness: rounds after which refresh="selected" probes a client again; 0: never.
        initial: the first cohort, "all" or "random:k".
        seed: of the first weights and of the batches.

    >>> NeuralBandit(mode="thompson", explore=1.0).net.shapes[0]
    (4, 64)
    """

    @checked
    def __init__(
        self,
        *,
        mode: Annotated[str, Choice("ucb", "thompson")] = "ucb",
        explore: NotNegative = 0.3,
        width: Count = 64,
        ridge: Positive = 1.0,
        lr: Positive = 1e-3,
        steps: Annotated[int, Interval(0, 10_000)] = 20,
        batch: Count = 64,
        memory: Count = 5000,
        candidates: CountOrZero = 20_000,
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
        self.mode, self.explore, self.ridge, self.lr, self.steps = mode, explore, ridge, lr, steps
        self.batch, self.memory, self.candidates, self.seed = batch, memory, candidates, seed
        self.initial, self.net = initial, RewardNetwork(len(self.context.elements), width)
        first = self.net.initial(generator(seed, "neural-bandit"))
        zero = np.zeros_like(first)
        self.state = NeuralState(w=first, Z=zero + np.float32(ridge), adam_m=zero, adam_v=zero.copy())

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Whose losses at the new model are needed; every probe costs time and traffic."""
        return self.context.probe(self.state, rnd, rng)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The M largest by eq. 3 or 4."""
        if self.state.asked_round < 0:
            return Cohort(opening(self.initial, rnd, rng))
        s, pool = fork(self.state, rnd.population), rnd.available
        self._learn(s, rnd.index, rnd.probed)
        if 0 < self.candidates < pool.size:
            pool = np.sort(draw.uniform(pool, max(self.candidates, rnd.size), rng))
        scale = self.context.scale(s)
        mean, bonus = np.empty((2, pool.size), np.float32)
        lo = 0
        for part, rows in chunks(pool):
            at = slice(lo, lo + part.size)
            mean[at], bonus[at] = self.net.predict(s.w, s.Z, self.context.matrix(s, rows, scale))
            lo += part.size
        bonus *= np.float32(self.explore)
        if self.mode == "thompson":
            bonus *= rng.standard_normal(pool.size, np.float32)
        best = draw.top(mean + bonus, rnd.size, rng)
        return Cohort(pool[best], why={"mean": mean[best], "bonus": bonus[best], "score": mean[best] + bonus[best]})

    def observe(self, result: RoundResult) -> None:
        """Learn permanently what `select` learned on a copy, store what the cohort did, narrow the bonus (eq. 5)."""
        s = self.state
        self._learn(s, result.index, result.probed)
        self.context.record(s, result)
        s.Z = s.Z + self.net.squares(s.w, s.asked_x.astype(np.float32))

    def _learn(self, s: NeuralState, index: int, probed: Probed | None) -> None:
        """Eq. 6, with the rewards that these answers settle."""
        x, y = self.context.settle(s, index, probed)
        if y.size == 0:
            return
        s.pairs_x = np.concatenate([s.pairs_x.reshape(-1, x.shape[1]), x.astype(np.float32)])[-self.memory :]
        s.pairs_y = np.concatenate([s.pairs_y, y.astype(np.float32)])[-self.memory :]
        rng, n = generator(self.seed, "neural-bandit", index), s.pairs_y.size
        s.w, s.adam_m, s.adam_v = s.w.copy(), s.adam_m.copy(), s.adam_v.copy()
        for _ in range(self.steps):
            at = rng.integers(0, n, min(self.batch, n))
            grad = self.net.gradient(s.w, s.pairs_x[at], s.pairs_y[at]) + np.float32(self.ridge / n) * s.w
            s.steps += 1
            s.adam_m += np.float32(0.1) * (grad - s.adam_m)
            s.adam_v += np.float32(0.001) * (grad * grad - s.adam_v)
            step = self.lr * np.sqrt(1 - 0.999**s.steps) / (1 - 0.9**s.steps)
            s.w -= np.float32(step) * s.adam_m / (np.sqrt(s.adam_v) + np.float32(1e-8))
