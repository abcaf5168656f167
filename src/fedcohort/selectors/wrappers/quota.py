"""Fairness quota and participation cap around any selector.

    Tiansheng Huang, Weiwei Lin, Wentai Wu, Ligang He, Keqin Li, Albert Zomaya. An Efficiency-Boosting Client
    Selection Scheme for Federated Learning with Fairness Guarantee. IEEE TPDS 2021 (the queue of eq. 1).

Every client has a queue Z_i of places that it is owed. With K places, available clients A_t and guaranteed share beta:

    Z_i <- Z_i + beta K / |A_t| [i in A_t] - [i was asked]                                                         (1)
    m_t places, beta K on average, go to those with the largest Z_i among those the inner selector did not choose  (2)

All clients together are owed beta K places in a round, and as many are given, so nobody falls behind for long: while
everybody is available, a client has been asked at least beta K t / N - 2 times after t rounds. A cap is simpler:

    a client is asked at most `most` times in any `window` consecutive rounds (0: in the whole run)                (3)

Departures from the paper
    * Written from memory: there, the queue is weighed against the training time in one optimisation; here it is a
      rule of its own around any selector.
    * A queue is kept within [-1, 2 + 1 / beta]: neither credit nor debt grows without bound.
    * A failed client counts as asked.
    * A capped client is not asked even if the cohort gets smaller; `fill=True` adds those asked least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import CountOrZero, Share
from fedcohort.core.table import Table, column, ragged
from fedcohort.errors import checked
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import Wrapper, fill_up, join, others
from fedcohort.selectors.wrappers.explore import evenly_rounded
from fedcohort.types import Cohort, Index, Round, RoundResult


@dataclass
class QuotaState(Table):
    """Who is owed what, and who was asked when."""

    owed: NDArray[np.float64] = column(0.0, np.float64)  # Z_i
    times: NDArray[np.int64] = column(0, np.int64)  # how often asked within the window (or in the run)
    asked: Index = ragged(np.int64)  # clients asked within the window, oldest first
    when: Index = ragged(np.int64)  # and the rounds of it


class Quota(Wrapper[QuotaState]):
    """Guarantee everybody a share of the uniform rate; cap how often anybody is asked.

    Args:
        inner: any selector; None: uniform.
        least: guaranteed share of the uniform rate K / |A| [beta].
        most: a client is asked at most this many times per window; 0: no cap.
        window: rounds; 0: the whole run.
        fill: complete a cohort that is too small with those asked least.

    >>> Quota(least=0.5, most=3, window=10).most
    3
    """

    @checked
    def __init__(
        self,
        *,
        inner: Selector | None = None,
        least: Share = 0.2,
        most: CountOrZero = 0,
        window: CountOrZero = 0,
        fill: bool = False,
    ) -> None:
        super().__init__(inner, inexact="a capped client is not asked" if most and not fill else "")
        self.least, self.most, self.window, self.fill = least, most, window, fill
        self._asked: tuple[int, Index, int] | None = None  # round, available, places

    def narrow(self, rnd: Round) -> Round:
        """Those below the cap (eq. 3), and the places that are not owed to anybody (eq. 2)."""
        self.state.grow(rnd.population)
        open_ = rnd.available
        if self.most:
            open_ = open_[np.flatnonzero(self._times(rnd)[open_] < self.most)]
        size = min(rnd.size, open_.size)
        return replace(rnd, available=open_, size=size - self._owed_places(open_, size, rnd.index))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice, then those furthest behind."""
        inside = self.narrow(rnd)
        self._asked = rnd.index, rnd.available, min(rnd.size, rnd.available.size)
        size = min(rnd.size, inside.available.size)
        chosen = self.inner.select(inside, rng)
        rest = others(inside.available, chosen.clients)
        owed = self.state.owed[rest] + self.least * size / max(rnd.available.size, 1)
        behind = rest[draw.top(owed, size - inside.size, rng)]
        cohort = join(chosen, behind, "owed")
        if self.fill and cohort.clients.size < min(rnd.size, rnd.available.size):
            return fill_up(rnd, cohort, -self._times(rnd).astype(np.float64), rng, "filled")
        return cohort

    def learn(self, result: RoundResult) -> None:
        """Eq. 1, and the window of eq. 3."""
        s, told = self.state, result.clients
        available, places = np.arange(s.rows), told.size  # as if everybody had been available
        if self._asked is not None and self._asked[0] == result.index:
            available, places = self._asked[1], self._asked[2]
        if available.size:
            s.owed[available] += self.least * places / available.size
        s.owed[told] -= 1.0
        np.clip(s.owed, -1.0, 2.0 + 1.0 / max(self.least, 0.01), out=s.owed)
        self._asked = None
        s.times[told] += 1
        if self.window:
            s.asked = np.concatenate([s.asked, told])
            s.when = np.concatenate([s.when, np.full(told.size, result.index, np.int64)])
            gone = s.when <= result.index + 1 - self.window
            np.subtract.at(s.times, s.asked[gone], 1)
            s.asked, s.when = s.asked[~gone], s.when[~gone]

    def _times(self, rnd: Round) -> NDArray[np.int64]:
        """How often each was asked in the window that this round closes (rounds may have been skipped since)."""
        s = self.state
        gone = s.asked[s.when <= rnd.index - self.window] if self.window else s.asked[:0]
        if gone.size == 0:
            return s.times
        times = s.times.copy()
        np.subtract.at(times, gone, 1)
        return times

    def _owed_places(self, open_: Index, size: int, index: int) -> int:
        """Places for those behind: beta K on average, and no more than there are clients behind."""
        if not self.least or size == 0:
            return 0
        step = self.least * size / open_.size
        behind = int(np.count_nonzero(self.state.owed[open_] + step > 1e-9))
        return min(evenly_rounded(self.least * size, index), behind, size)
