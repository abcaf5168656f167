"""The oracle: a selector that is given the built world and so knows true noise, label mix, speed and faults.

It shows how much there is to gain where the truth is known. It exists in the arena only: a real federation has nobody
to ask. It is a strong heuristic, not an upper bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.selectors.base import NoState, StatefulSelector
from fedcohort.types import Cohort, Round, RoundResult, Work
from fedcohort.worlds.built_world import NOMINAL_PARAMS, BuiltWorld
from fedcohort.worlds.faults import HONEST

Double = NDArray[np.float64]
ORACLE = "oracle"
REVISION = 1  # of the rule below: part of the digest of its runs
_MEMORY = 0.8  # how long served labels and clients are remembered, per round
_LIMITS = (0.2, 0.35, 0.5, 0.7, 0.85, 1.0)  # quantiles of speed that are tried as the slowest client of a cohort
_PATIENCE = 0.5  # exponent of time: 1 would be progress per second


class Oracle(StatefulSelector[NoState]):
    """Chooses clean, honest, fast clients whose labels complete what was served lately."""

    exempt = {"learns": "knows everything from the start"}  # noqa: RUF012 - a constant of the class

    def __init__(self, world: BuiltWorld) -> None:
        super().__init__()
        part = world.train
        ids = np.arange(world.population)
        sent = np.full(world.population, 4.0 * NOMINAL_PARAMS)
        self.wrong: Double = world.wrong_labels()
        self.mix: Double = world.histogram(clean=True).astype(np.float64)
        self.whole: Double = self.mix.T @ part.sizes / max(float(part.sizes.sum()), 1.0)
        self.samples: Double = part.sizes.astype(np.float64)
        self.seconds: Double = world.expected_seconds(
            ids, Work(part.sizes, np.ones(ids.size), sent, sent, NOMINAL_PARAMS)
        )
        lost = np.asarray(world.fixed.get("dropout", np.zeros(ids.size)), np.float64)
        lie = np.asarray(world.fixed.get("lie", np.full(ids.size, HONEST)))
        self.usable: Double = np.where((lie == HONEST) & (part.sizes > 0), 1.0 - lost, 0.0)
        self.served = np.zeros(world.classes)
        self.recent = np.zeros(ids.size)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The best cohort among those of several speed limits."""
        del rng
        pool = rnd.available
        good = pool[self.usable[pool] > 0.0]
        if good.size < rnd.size:
            rest = np.setdiff1d(pool, good)
            return Cohort(np.concatenate([good, rest[: rnd.size - good.size]]))
        best, value = good[: rnd.size], -np.inf
        for limit in np.unique(np.quantile(self.seconds[good], _LIMITS)):
            fast = good[self.seconds[good] <= limit]
            if fast.size < min(rnd.size, good.size):
                continue
            chosen = self._greedy(fast, rnd.size)
            worth = self._worth(chosen) / float(self.seconds[chosen].max()) ** _PATIENCE
            if worth > value:
                best, value = chosen, worth
        return Cohort(np.sort(best))

    def observe(self, result: RoundResult) -> None:
        """Remember what was served, a little."""
        ok = result.clients[result.ok]
        self.served = _MEMORY * self.served + self.mix[ok].T @ self.samples[ok]
        self.recent *= _MEMORY
        self.recent[ok] += 1.0

    def _greedy(self, pool: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Add the client that brings the labels closest to everybody's mix, clean and not just served ones first."""
        chosen: list[int] = []
        total, left = self.served * _MEMORY, pool.copy()
        own = 3.0 * self.wrong - 0.3 * np.log(np.maximum(self.samples, 1.0)) + 0.3 * (1.0 - self.usable)
        while left.size and len(chosen) < size:
            after = total + self.mix[left] * self.samples[left][:, None]
            gap = np.abs(after / after.sum(axis=1, keepdims=True) - self.whole).sum(axis=1)
            at = int(np.argmin(gap + own[left] + 0.15 * self.recent[left]))
            total = after[at]
            chosen.append(int(left[at]))
            left = np.delete(left, at)
        return np.array(chosen, np.int64)

    def _worth(self, chosen: NDArray[np.int64]) -> float:
        """How much a round with this cohort is worth, whatever it lasts."""
        weight = self.samples[chosen] * self.usable[chosen]
        total = self.served * _MEMORY + self.mix[chosen].T @ weight
        gap = float(np.abs(total / max(total.sum(), 1e-9) - self.whole).sum())
        wrong = float(self.wrong[chosen] @ weight) / max(float(weight.sum()), 1e-9)
        fresh = 1.0 / (1.0 + 0.2 * float(self.recent[chosen].mean()))
        return max(1.0 - wrong, 0.05) ** 2 * max(2.0 - gap, 0.05) * fresh * float(np.sqrt(weight.sum()))
