"""Blocklist: some clients are never asked, and those that keep failing rest.

    clients on the list are never asked; a client that did not reply (FAILED, LATE or REJECTED) n times in a row
    rests for R rounds and then has one chance                                                                     (1)

`base.py` says how state, probes, directives and inclusion pass through a wrapper.

Departures from the paper: none, there is no paper. Choices made here:
    * Blocked clients are not asked even if the cohort gets smaller; `fill=True` adds those that have rested longest
      (never those on the list).
    * A round in which nobody replied says more about the server than about the clients: it blocks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import CountOrZero, ModerateCount
from fedcohort.core.table import Table, column
from fedcohort.errors import check, checked
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import NEVER, Wrapper, fill_up
from fedcohort.types import Cohort, Index, Real, Round, RoundResult


@dataclass
class BlocklistState(Table):
    """Who failed to reply how often."""

    misses: Real = column(0.0)  # times in a row without a valid reply
    until: NDArray[np.int64] = column(NEVER, np.int64)  # first round in which the client may be asked again


class Blocklist(Wrapper[BlocklistState]):
    """Never ask the clients on the list; let those that keep failing rest.

    Args:
        inner: any selector; None: uniform.
        clients: slots that are never asked.
        misses: rounds in a row without a valid reply after which a client rests [n]; 0: it never rests.
        rounds: of rest [R].
        fill: complete a cohort that is too small with those that have rested longest.

    >>> Blocklist(clients=(3, 1, 3)).clients
    array([1, 3])
    """

    @checked
    def __init__(
        self,
        *,
        inner: Selector | None = None,
        clients: Sequence[int] = (),
        misses: CountOrZero = 3,
        rounds: ModerateCount = 20,
        fill: bool = False,
    ) -> None:
        given = np.asarray(clients)
        slots = given.ndim == 1 and (given.size == 0 or (given.dtype.kind in "iu" and bool((given >= 0).all())))
        check(slots, f"clients = {clients!r}", "it must be a list of slots, whole numbers from 0", "use e.g. (3, 17)")
        blocks = given.size > 0 or (misses > 0 and not fill)
        super().__init__(inner, inexact="blocked clients are not asked" if blocks else "")
        self.clients: Index = np.unique(given.astype(np.int64))
        self.misses, self.rounds, self.fill = misses, rounds, fill

    def narrow(self, rnd: Round) -> Round:
        """Those that are neither listed nor resting (eq. 1)."""
        self.state.grow(rnd.population)
        free = self._unlisted(rnd.available)
        return replace(rnd, available=free[np.flatnonzero(self.state.until[free] <= rnd.index)])

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice among the others, filled up with resting ones if `fill`."""
        chosen = self.inner.select(self.narrow(rnd), rng)
        if not self.fill:
            return chosen
        unlisted = replace(rnd, available=self._unlisted(rnd.available))
        return fill_up(unlisted, chosen, -self.state.until.astype(np.float64), rng, "filled")

    def learn(self, result: RoundResult) -> None:
        """Count the misses in a row; a valid reply resets the count."""
        s, came = self.state, result.replied
        s.misses[result.clients[came]] = 0.0
        if not self.misses or not came.any():
            return
        away = result.clients[~came]
        s.misses[away] += 1.0
        over = away[s.misses[away] >= self.misses]
        s.until[over] = result.index + 1 + self.rounds
        s.misses[over] = self.misses - 1.0  # one more miss after the rest is enough

    def _unlisted(self, available: Index) -> Index:
        return np.setdiff1d(available, self.clients, assume_unique=True) if self.clients.size else available
