"""The choice of somebody who knows the truth: what selection could gain at most, roughly, in a given study.

    misfit(i) = (1/2) sum_c | mix_i(c) - mix(c) | + wrong_i   mix_i: its true labels, wrong_i: share of wrong ones

    "even"      uniformly at random among the share `pool` of the clients of least misfit
    "complete"  one after the other the client after which the true labels served lately are nearest to everybody's mix,
                less what wrong labels and having just been asked count against it

It is told the built world (`inform`), which only a simulation has: `experiment.runs.build` does that for any selector
that has this method. It knows nothing about time. It is a strong rule, not a bound. In the text of a run it is
"fedcohort.experiment.perfect_choice:PerfectChoice(pool=0.7)".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, Share
from fedcohort.core.table import Table, column, ragged
from fedcohort.errors import ContractError, checked
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Round, RoundResult
from fedcohort.worlds.built_world import BuiltWorld

Double = NDArray[np.float64]
PERFECT = "fedcohort.experiment.perfect_choice:PerfectChoice"
_MEMORY = 0.8  # of labels and clients that were served, per round
_WRONG, _RECENT = 3.0, 0.15  # weight of wrong labels, and of having been asked lately, beside the distance of mixes


@runtime_checkable
class Informed(Protocol):
    """A selector that may know the truth of a simulated world."""

    def inform(self, world: BuiltWorld) -> None:
        """Called once, before the first round."""


@dataclass
class ServedState(Table):
    """What was served lately."""

    recent: Double = column(0.0, np.float64)  # how often a client was used, fading
    served: Double = ragged(np.float64)  # true labels by class, fading


class PerfectChoice(StatefulSelector[ServedState]):
    """Chooses by the true labels of everybody.

    Args:
        rule: "even" (each client should be like the whole) or "complete" (the cohorts together should).
        pool: with "even", the share of the clients that is drawn from.

    >>> PerfectChoice(pool=0.7).rule
    'even'
    """

    exempt = {"learns": "knows everything from the start"}  # noqa: RUF012 - a constant of the class

    @checked
    def __init__(self, *, rule: Annotated[str, Choice("even", "complete")] = "even", pool: Share = 0.7) -> None:
        super().__init__()
        self.rule, self.pool = rule, pool
        self.mix: Double | None = None

    def inform(self, world: BuiltWorld) -> None:
        """True mixes, sizes and shares of wrong labels."""
        self.samples: Double = world.train.sizes.astype(np.float64)
        self.wrong: Double = world.wrong_labels()
        self.mix = world.histogram(clean=True).astype(np.float64)
        self.whole: Double = self.mix.T @ self.samples / max(float(self.samples.sum()), 1.0)

    def misfit(self) -> Double:
        """The distance of every client's true mix from everybody's, and its wrong labels."""
        found: Double = 0.5 * np.abs(self._known() - self.whole).sum(axis=1) + self.wrong
        return found

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """By one of the two rules."""
        if self.rule == "complete":
            return Cohort(np.sort(self._complete(rnd.available, rnd.size)))
        count = max(round(self.pool * rnd.population), rnd.size)
        best = draw.top(-self.misfit()[rnd.available], count, rng)
        return Cohort(draw.uniform(rnd.available[best], rnd.size, rng))

    def observe(self, result: RoundResult) -> None:
        """Remember what was served, for a while."""
        mix, used = self._known(), result.clients[result.ok]
        self.state.grow(mix.shape[0])
        self.state.recent *= _MEMORY
        self.state.recent[used] += 1.0
        self.state.served = _MEMORY * self._served() + mix[used].T @ self.samples[used]

    def _complete(self, pool: Index, size: int) -> Index:
        mix = self._known()
        total, left = _MEMORY * self._served(), pool.copy()
        chosen: list[int] = []
        recent = np.zeros(mix.shape[0])
        recent[: self.state.rows] = self.state.recent
        own = _WRONG * self.wrong + _RECENT * recent
        while left.size and len(chosen) < size:
            after = total + mix[left] * self.samples[left][:, None]
            gap = np.abs(after / np.maximum(after.sum(axis=1, keepdims=True), 1.0) - self.whole).sum(axis=1)
            at = int(np.argmin(gap + own[left]))
            total = after[at]
            chosen.append(int(left[at]))
            left = np.delete(left, at)
        return np.array(chosen, np.int64)

    def _served(self) -> Double:
        return self.state.served if self.state.served.size else np.zeros(self._known().shape[1])

    def _known(self) -> Double:
        if self.mix is None:
            rule = "it chooses by the truth, which only a simulated run can tell it"
            raise ContractError("PerfectChoice", rule, "use it in fedcohort run, sweep or reproduce")
        return self.mix
