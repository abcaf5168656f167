"""Cool-down: whoever was asked rests for some rounds.

    who was asked in round t is not asked in rounds t + 1 .. t + R                                                 (1)

How state, probes, directives and inclusion pass through a wrapper is written in base.py.

Departures from a paper: there is none to depart from. Choices made here:
    * The rest is kept even if the cohort gets smaller; `fill=True` fills it up with those that have rested longest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import Table, column
from fedcohort.errors import check
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import NEVER, Wrapper, fill_up
from fedcohort.types import Cohort, Round, RoundResult


@dataclass
class CoolDownState(Table):
    """When each client was last asked."""

    last: NDArray[np.int64] = column(NEVER, np.int64)


class CoolDown(Wrapper):
    """Let everybody rest for some rounds after being asked."""

    state: CoolDownState

    def __init__(self, *, inner: Selector | None = None, rounds: int = 1, fill: bool = False) -> None:  # [R]
        super().__init__(inner)
        check(rounds >= 0, f"rounds = {rounds}", "a number of rounds is not negative", "use e.g. 1")
        self.rounds, self.fill, self.state = rounds, fill, CoolDownState()
        if not fill:
            self.exempt = {**self.exempt, "exact_size": "nobody is asked while resting, even if seats stay empty"}

    def narrow(self, rnd: Round) -> Round:
        """Those that have rested (eq. 1)."""
        self.state.grow(rnd.population)
        rested = self.state.last[rnd.available] < rnd.index - self.rounds
        return replace(rnd, available=rnd.available[np.flatnonzero(rested)])

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice among the rested, filled up if so wished."""
        chosen = self.inner.select(self.narrow(rnd), rng)
        return fill_up(rnd, chosen, -self.state.last.astype(np.float64), rng, "filled") if self.fill else chosen

    def learn(self, result: RoundResult) -> None:
        """Note the round."""
        self.state.last[result.clients] = result.index
