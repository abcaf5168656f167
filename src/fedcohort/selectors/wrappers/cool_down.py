"""Cool-down: whoever was asked rests for some rounds.

    who was asked in round t is not asked in rounds t + 1 .. t + R                                                 (1)

`base.py` says how state, probes, directives and inclusion pass through a wrapper.

Departures from the paper: none, there is no paper. Choices made here:
    * Nobody is asked while resting, even if the cohort gets smaller; `fill=True` adds those that have rested longest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import CountOrZero
from fedcohort.core.table import Table, column
from fedcohort.errors import checked
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import NEVER, Wrapper, fill_up
from fedcohort.types import Cohort, Round, RoundResult


@dataclass
class CoolDownState(Table):
    """When each client was last asked."""

    last: NDArray[np.int64] = column(NEVER, np.int64)


class CoolDown(Wrapper[CoolDownState]):
    """Let everybody rest for some rounds after being asked.

    Args:
        inner: any selector; None: uniform.
        rounds: of rest [R].
        fill: complete a cohort that is too small with those that have rested longest.

    >>> CoolDown(rounds=2).exempt
    {'learns': 'draws uniformly at random and remembers nothing', 'exact_size': 'nobody is asked while resting'}
    """

    @checked
    def __init__(self, *, inner: Selector | None = None, rounds: CountOrZero = 1, fill: bool = False) -> None:
        super().__init__(inner, inexact="" if fill else "nobody is asked while resting")
        self.rounds, self.fill = rounds, fill

    def narrow(self, rnd: Round) -> Round:
        """Those that have rested (eq. 1)."""
        self.state.grow(rnd.population)
        rested = self.state.last[rnd.available] < rnd.index - self.rounds
        return replace(rnd, available=rnd.available[np.flatnonzero(rested)])

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice among the rested, filled up if `fill`."""
        chosen = self.inner.select(self.narrow(rnd), rng)
        return fill_up(rnd, chosen, -self.state.last.astype(np.float64), rng, "filled") if self.fill else chosen

    def learn(self, result: RoundResult) -> None:
        """Store the round."""
        self.state.last[result.clients] = result.index
