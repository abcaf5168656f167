"""Four wrappers that take any selector: warm-up, exploration share, cool-down and blocklist.

    warm-up     rounds 0 .. W - 1 are drawn by lot; the inner selector watches and learns                          (1)
    explore     n of the K seats go to clients drawn by lot from those the inner selector did not choose,
                n = eps_t K on average,  eps_t = max(eps decay^t, floor)                                           (2)
                so that every available client is asked with probability at least eps_t K / |A|                    (3)
    cool-down   who was asked in round t is not asked in rounds t + 1 .. t + R                                     (4)
    blocklist   the clients on the list are never asked; who stayed away (FAILED, LATE or REJECTED) n times in a row
                rests for R rounds and then has one chance                                                         (5)

Fairness quota and probability cap have files of their own. How state, probes, directives and inclusion pass through is
written in wrapping.py.

Departures from a paper: there is none to depart from. Choices made here:
    * In a warm-up the inner selector still probes, and pays for it: it learns from the answers (FedCor needs them).
    * eps_t K is rounded up in some rounds and down in others, by the number of the round alone, so that the share is
      exact in the long run and a probe sees the same number of seats as the choice that follows.
    * Cool-down and blocklist are kept even if the cohort gets smaller; `fill=True` fills the seats with those that have
      rested longest (never with those on the list).
    * A round in which nobody replied says more about the server than about the clients: it blocks nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.table import Table, column
from fedcohort.errors import check
from fedcohort.protocols import Selector
from fedcohort.selectors.wrapping import Wrapper, by_lot, fill_up, join, others
from fedcohort.types import Cohort, Index, Real, Round, RoundResult

NEVER = -(2**31)  # a round long before the first


class WarmUp(Wrapper):
    """Draw the first rounds by lot while the inner selector watches."""

    def __init__(self, *, inner: Selector | None = None, rounds: int = 5) -> None:  # [W]
        super().__init__(inner)
        check(rounds >= 0, f"rounds = {rounds}", "a number of rounds is not negative", "use e.g. 5")
        self.rounds = rounds

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 1."""
        if rnd.index < self.rounds:
            return by_lot(rnd, rng, "warm_up")
        return super().select(rnd, rng)


class Explore(Wrapper):
    """Keep a share of the seats for clients drawn by lot, whatever anybody reported."""

    def __init__(
        self,
        *,
        inner: Selector | None = None,
        share: float = 0.1,  # [eps]
        decay: float = 1.0,
        floor: float = 0.0,
    ) -> None:
        super().__init__(inner)
        check(0 <= share <= 1, f"share = {share}", "a share lies between 0 and 1", "use e.g. 0.1")
        check(0 <= floor <= 1, f"floor = {floor}", "a share lies between 0 and 1", "use e.g. 0.05")
        check(0 < decay <= 1, f"decay = {decay}", "it lies in (0, 1]", "use 1 for no decay")
        self.share, self.decay, self.floor = share, decay, floor

    def seats(self, rnd: Round) -> int:
        """Seats given by lot in this round (eq. 2)."""
        wanted = max(self.share * self.decay**rnd.index, self.floor) * min(rnd.size, rnd.available.size)
        return evenly_rounded(wanted, rnd.index)

    def narrow(self, rnd: Round) -> Round:
        """All clients, but fewer seats."""
        return replace(rnd, size=min(rnd.size, rnd.available.size) - self.seats(rnd))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice, and a few by lot from the others."""
        inside = self.narrow(rnd)
        if inside.size == 0:
            return by_lot(rnd, rng, "explored")
        chosen = self.inner.select(inside, rng)
        return join(chosen, draw.uniform(others(rnd.available, chosen.clients), self.seats(rnd), rng), "explored")


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
        """Those that have rested (eq. 4)."""
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
        """Those that are neither listed nor resting (eq. 5)."""
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


def evenly_rounded(wanted: float, index: int) -> int:
    """`wanted`, rounded down in some rounds and up in others, so that the sum over the rounds is never off by one."""
    return math.floor(wanted * (index + 1) + 1e-9) - math.floor(wanted * index + 1e-9)
