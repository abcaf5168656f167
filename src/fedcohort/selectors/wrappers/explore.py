"""Explore: a share of every cohort is drawn uniformly at random, whatever the inner selector says.

    n of the K places go to clients drawn at random from those the inner selector did not choose,
    n = eps_t K on average,  eps_t = max(eps decay^t, floor)                                                       (1)
    so that every available client is asked with probability at least eps_t K / |A|                                (2)

How state, probes, directives and inclusion pass through a wrapper is written in base.py.

Departures from a paper: there is none to depart from. Choices made here:
    * eps_t K is rounded up in some rounds and down in others, by the number of the round alone, so that the share is
      exact in the long run and a probe sees the same number of places as the choice that follows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedcohort.core import draw
from fedcohort.errors import check
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import Wrapper, draw_uniform, join, others
from fedcohort.types import Cohort, Round


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
        """Seats given by lot in this round (eq. 1)."""
        wanted = max(self.share * self.decay**rnd.index, self.floor) * min(rnd.size, rnd.available.size)
        return evenly_rounded(wanted, rnd.index)

    def narrow(self, rnd: Round) -> Round:
        """All clients, but fewer seats."""
        return replace(rnd, size=min(rnd.size, rnd.available.size) - self.seats(rnd))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice, and a few by lot from the others."""
        inside = self.narrow(rnd)
        if inside.size == 0:
            return draw_uniform(rnd, rng, "explored")
        chosen = self.inner.select(inside, rng)
        return join(chosen, draw.uniform(others(rnd.available, chosen.clients), self.seats(rnd), rng), "explored")


def evenly_rounded(wanted: float, index: int) -> int:
    """`wanted`, rounded down in some rounds and up in others, so that the sum over the rounds is never off by one."""
    return math.floor(wanted * (index + 1) + 1e-9) - math.floor(wanted * index + 1e-9)
