"""Probability cap: bounds how much anything a client reports can raise its chance of being asked.

A bucket of credit per client (a token bucket). With K places, available clients A_t and cap c >= 1:

    credit_i <- min(credit_i, B) + c K / |A_t|                          if i in A_t;  starts at B                  (1)
    credit_i <- credit_i - 1                                            if i was asked                             (2)
    the inner selector may choose i only if credit_i >= 1 after eq. 1                                              (3)

A uniform choice asks i in round t with probability K / |A_t|. From (1) to (3), whatever i and everybody else report,
in any window W of rounds

    times asked  <=  c * sum_{t in W, i in A_t} K / |A_t|  +  B                                                    (4)

that is c times its share in a uniform draw, plus B (1 by default): c K T / N + 1 in T rounds if all are available.

Departures from the paper: none, there is no paper. Choices made here:
    * The bound is hard: if too few have credit the cohort gets smaller. `fill=True` adds those with most credit,
      which no report can change; (4) then holds for what the inner selector decides.
    * Credit accrues while a client is available, so that clients that are seldom available are neither capped below
      their share nor come back with more than B.
    * K is the size of the round, even if fewer clients were chosen.
    * Inclusion probabilities are those of the inner selector given who has credit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Interval
from fedcohort.core.table import Table, column
from fedcohort.errors import checked
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import Wrapper, fill_up
from fedcohort.types import Cohort, Index, Round, RoundResult

AtLeastOne = Annotated[float, Interval(1, ends="[)")]
ROUNDING = 1e-9  # a sum of shares that falls short of 1 by less is 1


@dataclass
class ProbabilityCapState(Table):
    """The buckets."""

    spent: NDArray[np.float64] = column(0.0, np.float64)  # B - credit_i: a new client starts full


class ProbabilityCap(Wrapper[ProbabilityCapState]):
    """Ask no client more often than c times as often as a uniform draw would, whatever it reports.

    Args:
        inner: any selector; None: uniform.
        cap: multiple of the uniform rate [c]; at least 1, or not even a uniform draw would fit.
        burst: credit that can be saved up [B].
        fill: complete a cohort that is too small with those of most credit.

    >>> ProbabilityCap(cap=2.0, fill=True).cap
    2.0
    """

    @checked
    def __init__(
        self, *, inner: Selector | None = None, cap: AtLeastOne = 1.5, burst: AtLeastOne = 1.0, fill: bool = False
    ) -> None:
        super().__init__(inner, inexact="" if fill else "a client without credit is not asked")
        self.cap, self.burst, self.fill = cap, burst, fill
        self._asked: tuple[int, Index, int] | None = None  # round, available, places

    def narrow(self, rnd: Round) -> Round:
        """Those with credit for one more request (eq. 3)."""
        self.state.grow(rnd.population)
        credit = self._credit(rnd.available, rnd.size)
        return replace(rnd, available=rnd.available[np.flatnonzero(credit >= 1.0 - ROUNDING)])

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice among those with credit."""
        chosen = self.inner.select(self.narrow(rnd), rng)
        self._asked = rnd.index, rnd.available, rnd.size
        if self.fill:
            return fill_up(rnd, chosen, -self.state.spent, rng, "filled")
        credit = self._credit(chosen.clients, rnd.size, rnd.available.size)
        return replace(chosen, why={**chosen.why, "credit": credit})

    def learn(self, result: RoundResult) -> None:
        """Eq. 1 and 2."""
        s, told = self.state, result.clients
        available, places = np.arange(s.rows), told.size  # as if everybody had been available
        if self._asked is not None and self._asked[0] == result.index:
            available, places = self._asked[1], self._asked[2]
        s.spent[available] = self.burst - self._credit(available, places)
        s.spent[told] += 1.0
        self._asked = None

    def _credit(self, clients: Index, places: int, available: int | None = None) -> NDArray[np.float64]:
        """Eq. 1: the credit of these clients in a round of this many places and available clients (default: these)."""
        n = clients.size if available is None else available
        share = self.cap * min(places, n) / max(n, 1)
        return np.minimum(self.burst - self.state.spent[clients], self.burst) + share
