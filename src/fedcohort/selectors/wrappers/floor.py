"""Starvation floor: every available client is asked at least once in every R rounds, whatever the inner selector wants.

Each client has a due round, R rounds after it was last asked (or first seen available). With K places and D_t(d) the
number of available clients whose due round is at most t + d - 1, the places that must go to the earliest due are

    F_t = min( K, max_{d >= 1} ( D_t(d) - K (d - 1) ) )                                                            (1)

and the inner selector fills the others. Serving the earliest due first, with this many places, meets every due round
that can be met at all (unit jobs, K servers): while everybody is available and N <= K R nobody waits longer than R
rounds, and no place is taken from the inner selector before it has to be.

Departures from the paper: none, there is no paper. Choices made here:
    * Waiting is counted in rounds, not in asks: a client that was away when it was due is first when it comes back.
    * Where N > K R no rule can keep the promise; then all places go to the earliest due, which is round-robin.
    * Among those due at the same time, the choice is random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import ModerateCount
from fedcohort.core.table import Table, column
from fedcohort.errors import checked
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import Wrapper, join, others
from fedcohort.types import Cohort, Index, Round, RoundResult

UNSEEN = -1


@dataclass
class FloorState(Table):
    """When everybody was asked last."""

    since: NDArray[np.int64] = column(UNSEEN, np.int64)  # round after the last ask, or of the first sight


class Floor(Wrapper[FloorState]):
    """Ask every available client at least once in `every` rounds.

    Args:
        inner: any selector; None: uniform.
        every: rounds [R].

    >>> Floor(every=50).every
    50
    """

    @checked
    def __init__(self, *, inner: Selector | None = None, every: ModerateCount = 100) -> None:
        super().__init__(inner)
        self.every = every
        self._seen: tuple[int, Index] | None = None  # round and who was available

    def narrow(self, rnd: Round) -> Round:
        """The places that are left for the inner selector."""
        self.state.grow(rnd.population)
        return replace(rnd, size=rnd.size - self._forced(rnd))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice, and the earliest due in the places of eq. 1."""
        narrowed = self.narrow(rnd)
        chosen = self.inner.select(narrowed, rng)
        self._seen = rnd.index, rnd.available
        rest = others(rnd.available, chosen.clients)
        urgent = -self._due(rest, rnd.index).astype(np.float64)
        return join(chosen, rest[draw.top(urgent, rnd.size - narrowed.size, rng)], "floor")

    def learn(self, result: RoundResult) -> None:
        """Those that were asked start to wait again; those seen for the first time begin to wait."""
        since = self.state.since
        if self._seen is not None and self._seen[0] == result.index:
            there = self._seen[1]
            since[there[since[there] == UNSEEN]] = result.index
        since[result.clients] = result.index + 1
        self._seen = None

    def _due(self, clients: Index, index: int) -> Index:
        """The last round in which each of these must be asked."""
        since = self.state.since[clients]
        due: Index = np.where(since == UNSEEN, index, since) + self.every - 1
        return due

    def _forced(self, rnd: Round) -> int:
        """Eq. 1."""
        places = min(rnd.size, rnd.available.size)
        if places == 0:
            return 0
        left = np.maximum(self._due(rnd.available, rnd.index) - rnd.index, 0)
        demand = np.cumsum(np.bincount(left, minlength=1))
        return int(np.clip((demand - places * np.arange(demand.size)).max(), 0, places))
