"""Starvation floor: every available client is asked at least once in every R rounds, whatever the inner selector wants.

Each client has a due round, R rounds after it was last asked (or first seen available). With K seats and D_t(d) the
number of available clients whose due round is at most t + d - 1, the seats that must be given to the earliest due are

    F_t = min( K, max_{d >= 1} ( D_t(d) - K (d - 1) ) )                                                            (1)

and the inner selector fills the others. Serving the earliest due first, with this many seats, meets every due round
that can be met at all (unit jobs, K servers): while everybody is available and N <= K R nobody waits longer than R
rounds, and no seat is taken from the inner selector before it has to be.

Departures from a paper: there is none to depart from. Choices made here:
    * Waiting is counted in rounds, not in asks: a client that was away when it was due is first when it comes back.
    * Where N > K R no rule can keep the promise; then all seats go to the earliest due, which is round-robin.
    * Among those due at the same time the lot decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.table import Table, column
from fedcohort.errors import check
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import Wrapper, join, others
from fedcohort.types import Cohort, Index, Round, RoundResult

UNSEEN = -1


@dataclass
class FloorState(Table):
    """When everybody was served last."""

    since: NDArray[np.int64] = column(UNSEEN, np.int64)  # round after the last ask, or of the first sight


class Floor(Wrapper):
    """Nobody that is there waits longer than `every` rounds. The symbol is given in brackets."""

    state: FloorState

    def __init__(self, *, inner: Selector | None = None, every: int = 100) -> None:  # [R]
        super().__init__(inner)
        check(every >= 1, f"every = {every}", "it must be at least one round", "use e.g. 100")
        self.every, self.state = every, FloorState()
        self._seen: tuple[int, Index] | None = None  # round and who was available

    def narrow(self, rnd: Round) -> Round:
        """The seats that are left for the inner selector."""
        self.state.grow(rnd.population)
        return replace(rnd, size=rnd.size - self._forced(rnd))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice, and the earliest due on the seats of eq. 1."""
        narrowed = self.narrow(rnd)
        chosen = self.inner.select(narrowed, rng)
        self._seen = rnd.index, rnd.available
        rest = others(rnd.available, chosen.clients)
        urgent = -self._due(rest, rnd.index).astype(np.float64)
        return join(chosen, rest[draw.top(urgent, rnd.size - narrowed.size, rng)], "floor")

    def learn(self, result: RoundResult) -> None:
        """Those that were asked wait anew; those seen for the first time begin to wait."""
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
        seats = min(rnd.size, rnd.available.size)
        if seats == 0:
            return 0
        left = np.maximum(self._due(rnd.available, rnd.index) - rnd.index, 0)
        demand = np.cumsum(np.bincount(left, minlength=1))
        return int(np.clip((demand - seats * np.arange(demand.size)).max(), 0, seats))
