"""Blocklist: some clients are never asked, and those that keep failing rest.

    the clients on the list are never asked; who stayed away (FAILED, LATE or REJECTED) n times in a row rests for
    R rounds and then has one chance                                                                               (1)

How state, probes, directives and inclusion pass through a wrapper is written in base.py.

Departures from a paper: there is none to depart from. Choices made here:
    * The list is kept even if the cohort gets smaller; `fill=True` fills it up with those that have rested longest
      (never with those on the list).
    * A round in which nobody replied says more about the server than about the clients: it blocks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import Table, column
from fedcohort.errors import check
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import NEVER, Wrapper, fill_up
from fedcohort.types import Cohort, Index, Real, Round, RoundResult


@dataclass
class BlocklistState(Table):
    """Who stayed away how often."""

    misses: Real = column(0.0)  # times in a row without a valid reply
    until: NDArray[np.int64] = column(NEVER, np.int64)  # first round in which the client may be asked again


class Blocklist(Wrapper):
    """Never ask the clients on the list; let those that keep failing rest."""

    state: BlocklistState

    def __init__(
        self,
        *,
        inner: Selector | None = None,
        clients: Sequence[int] = (),  # slots that are never asked
        misses: int = 3,  # [n] times in a row without a valid reply; 0: never mind
        rounds: int = 20,  # [R]
        fill: bool = False,
    ) -> None:
        super().__init__(inner)
        listed = np.unique(np.asarray(clients, np.int64))
        check(bool((listed >= 0).all()), f"clients = {clients}", "slots are not negative", "list slots of the roster")
        check(misses >= 0, f"misses = {misses}", "a count is not negative", "use 3, or 0 for never")
        check(rounds >= 1, f"rounds = {rounds}", "a rest has at least one round", "use e.g. 20")
        self.clients, self.misses, self.rounds, self.fill = listed, misses, rounds, fill
        self.state = BlocklistState()
        if listed.size or (misses and not fill):
            self.exempt = {**self.exempt, "exact_size": "blocked clients are not asked, even if seats stay empty"}

    def narrow(self, rnd: Round) -> Round:
        """Those that are neither listed nor resting (eq. 1)."""
        self.state.grow(rnd.population)
        free = self._unlisted(rnd.available)
        return replace(rnd, available=free[np.flatnonzero(self.state.until[free] <= rnd.index)])

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice among the others, filled up with resting ones if so wished."""
        chosen = self.inner.select(self.narrow(rnd), rng)
        if not self.fill:
            return chosen
        unlisted = replace(rnd, available=self._unlisted(rnd.available))
        return fill_up(unlisted, chosen, -self.state.until.astype(np.float64), rng, "filled")

    def learn(self, result: RoundResult) -> None:
        """Count what was missed in a row; a valid reply wipes the slate clean."""
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
