"""Neural bandit: a small network predicts a client's reward, its gradient says how sure it is.

    Hangrui Cao, Qiying Pan, Yifei Zhu, Jiangchuan Liu. Birds of a Feather Help: Context-Aware Client Selection for
    Federated Learning. FL-AAAI workshop, 2022.
    Dongruo Zhou, Lihong Li, Quanquan Gu. Neural Contextual Bandits with UCB-based Exploration. ICML 2020.
    Weitong Zhang, Dongruo Zhou, Lihong Li, Quanquan Gu. Neural Thompson Sampling. ICLR 2021.

On FLASH's context x and scaled reward y (`context.py`), with f(x; w) a ReLU network d - 64 - 64 - 1 of width q:

    g(x)     = grad_w f(x; w) / sqrt(q)                                                           (1)
    sigma(x) = sqrt( sum_j g_j(x)^2 / Z_j ),      Z_0 = lambda                                    (2)
    UCB:       score = f(x) + nu sigma(x)                                                         (3)
    Thompson:  score ~ N(f(x), nu^2 sigma(x)^2)                                                   (4)
    S_t = the M largest scores;   Z_j += sum_{i in S_t} g_j(x_i)^2                                (5)
    w: 20 Adam steps on mean (f(x) - y)^2 / 2 + lambda |w|^2 / (2 n) over the n newest pairs      (6)

Departures from the paper
    * The text of the first paper was not at hand; FLASH only says that it compared with this bandit in the place of
      its own. What is here is that drop-in [REC]. The sharing between similar clients that the paper's title
      speaks of [MEM] is not: clients of like context already share through the network.
    * Z is diagonal (the second and third papers analyse the full matrix, and use the diagonal in experiments [MEM]).
    * nu is 0.3, not the 0.1 first proposed [REC]: rewards are standardised within the round, so a cohort of equally
      poor clients teaches nothing, and at 0.1 some runs never leave one.
    * Above `candidates` available clients, a uniform sample of that size is scored: a pass over a million clients
      is 12 billion multiplications. candidates=0 scores all.
    * Context, reward, probes and the first round are those of FLASH in its "robust" preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.rng import generator
from fedcohort.core.table import block, ragged
from fedcohort.errors import check
from fedcohort.selectors._parts.flash_context import NEEDS, Context, ContextState, chunks, fork, opening
from fedcohort.types import Arrays, Cohort, Index, Probed, Real, Round, RoundResult

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


class NeuralBandit:
    """Predict the next reward with a network; add a bonus, or noise, where it has seen little."""

    needs: frozenset[str] = NEEDS

    def __init__(
        self,
        *,
        mode: str = "ucb",  # or "thompson"
        explore: float = 0.3,  # [nu]
        width: int = 64,  # [q]
        ridge: float = 1.0,  # [lambda]
        lr: float = 1e-3,
        steps: int = 20,
        batch: int = 64,
        memory: int = 5000,  # [n] pairs kept
        candidates: int = 20_000,  # clients scored at most; 0: all
        context: str = "loss,val,duration,reward",
        scope: str = "client",
        reward: str = "improvement",
        refresh: str = "selected",
        staleness: int = 20,
        initial: str = "all",  # or "random:k"
        seed: int = 0,  # of the first weights and of the batches
    ) -> None:
        check(mode in ("ucb", "thompson"), f"mode {mode!r}", "ucb or thompson", "choose one of them")
        check(explore >= 0, f"explore {explore}", "not negative", "0.3 is the default")
        check(ridge > 0, f"ridge {ridge}", "positive", "1 is the default")
        check(lr > 0, f"lr {lr}", "positive", "0.001 is the default")
        for name, value in (("width", width), ("batch", batch), ("memory", memory)):
            check(value >= 1, f"{name} {value}", "at least 1", "leave it at its default")
        check(
            min(steps, candidates) >= 0, f"steps {steps}, candidates {candidates}", "not negative", "use the defaults"
        )
        self.context = Context.of(context, scope=scope, reward=reward, refresh=refresh, staleness=staleness)
        self.needs = self.context.needs
        self.mode, self.explore, self.ridge, self.lr, self.steps = mode, explore, ridge, lr, steps
        self.batch, self.memory, self.candidates, self.seed = batch, memory, candidates, seed
        opening(initial, Round(0, 0, np.empty(0, np.int64), 0), generator(0, "check"))  # refuses a bad word now
        self.initial, self.net = initial, RewardNetwork(len(self.context.elements), width)
        first = self.net.initial(generator(seed, "neural-bandit"))
        zero = np.zeros_like(first)
        self.state = NeuralState(w=first, Z=zero + np.float32(ridge), adam_m=zero, adam_v=zero.copy())

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Whose losses at the new model are wanted; each is paid for."""
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
        """Learn for good what `select` learnt on a copy, note what the cohort did, and grow surer of it (eq. 5)."""
        s = self.state
        self._learn(s, result.index, result.probed)
        self.context.record(s, result)
        s.Z = s.Z + self.net.squares(s.w, s.asked_x.astype(np.float32))

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)

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


class RewardNetwork:
    """f(x; w): d - q - q - 1 with ReLU, parameters in one flat vector, gradients by hand."""

    def __init__(self, d: int, q: int) -> None:
        self.q = q
        self.shapes = ((d, q), (q,), (q, q), (q,), (q,), (1,))
        self.ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])

    def initial(self, rng: np.random.Generator) -> Single:
        """He's initialisation, biases zero."""
        parts = [
            np.zeros(shape) if j in (1, 3, 5) else rng.standard_normal(shape) * np.sqrt((1 + (j < 4)) / shape[0])
            for j, shape in enumerate(self.shapes)
        ]
        return self.join(parts)

    def split(self, flat: Real) -> list[Real]:
        """Views of the flat vector: W1, b1, W2, b2, w3, b3."""
        pieces = np.split(flat, self.ends[:-1])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def join(self, parts: list[Any]) -> Single:
        """Inverse of :meth:`split`."""
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)

    def passes(self, w: Real, x: Real) -> tuple[Real, Real, Real, Real, Real]:
        """(f, h1, h2, df/da1, df/da2) for every row, where a1 and a2 are what goes into the ReLUs."""
        w1, b1, w2, b2, w3, b3 = self.split(w)
        h1 = np.maximum(x @ w1 + b1, 0)
        h2 = np.maximum(h1 @ w2 + b2, 0)
        d2 = (h2 > 0) * w3
        d1 = (h1 > 0) * (d2 @ w2.T)
        return h2 @ w3 + b3, h1, h2, d1, d2

    def gradient(self, w: Real, x: Real, y: Real) -> Single:
        """Gradient of mean (f - y)^2 / 2."""
        f, h1, h2, d1, d2 = self.passes(w, x)
        e = ((f - y) / np.float32(y.size))[:, None]
        d1, d2 = d1 * e, d2 * e
        return self.join([x.T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), (h2 * e).sum(0), e.sum(0)])

    def squares(self, w: Real, x: Real) -> Single:
        """sum over rows of g_j(x)^2: per-row gradients are outer products, so their squares are too."""
        _, h1, h2, d1, d2 = (part * part for part in self.passes(w, x))
        ones = np.full(1, x.shape[0])
        return self.join([(x * x).T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), h2.sum(0), ones]) / np.float32(self.q)

    def predict(self, w: Real, z: Real, x: Real) -> tuple[Real, Real]:
        """(f, sigma) of eqs. 1 and 2 for every row."""
        f, h1, h2, d1, d2 = self.passes(w, x)
        i1, ib1, i2, ib2, i3, ib3 = self.split(1 / z)
        total = np.einsum("ij,ij->i", (x * x) @ i1 + ib1, d1 * d1)
        total += np.einsum("ij,ij->i", (h1 * h1) @ i2 + ib2, d2 * d2)
        total += (h2 * h2) @ i3 + ib3
        return f, np.sqrt(total / np.float32(self.q))
