"""Explore: a share of every cohort is drawn uniformly at random, whatever the inner selector says.

    n of the K places go to clients drawn at random from those the inner selector did not choose,
    n = eps_t K on average,  eps_t = max(eps decay^t, floor)                                                       (1)
    so that every available client is asked with probability at least eps_t K / |A|                                (2)

`base.py` says how state, probes, directives and inclusion pass through a wrapper.

Departures from the paper: none, there is no paper. Choices made here:
    * eps_t K is rounded up in some rounds and down in others, by the number of the round alone, so that the share is
      exact in the long run and a probe sees the same number of places as the choice that follows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedcohort.core import draw
from fedcohort.core.constraints import Factor, Share
from fedcohort.errors import checked
from fedcohort.protocols import Selector
from fedcohort.selectors.base import NoState
from fedcohort.selectors.wrappers.base import Wrapper, draw_uniform, join, others
from fedcohort.types import Cohort, Round


class Explore(Wrapper[NoState]):
    """Keep a share of the cohort for clients drawn uniformly at random, whatever anybody reported.

    Args:
        inner: any selector; None: uniform.
        share: of the places in the cohort [eps].
        decay: factor on the share per round; 1: no decay.
        floor: the share never falls below this.

    >>> Explore(share=0.3).share
    0.3
    """

    @checked
    def __init__(
        self, *, inner: Selector | None = None, share: Share = 0.1, decay: Factor = 1.0, floor: Share = 0.0
    ) -> None:
        super().__init__(inner)
        self.share, self.decay, self.floor = share, decay, floor

    def places(self, rnd: Round) -> int:
        """Places in the cohort that go to random clients in this round (eq. 1)."""
        wanted = max(self.share * self.decay**rnd.index, self.floor) * min(rnd.size, rnd.available.size)
        return evenly_rounded(wanted, rnd.index)

    def narrow(self, rnd: Round) -> Round:
        """All clients, but fewer places."""
        return replace(rnd, size=min(rnd.size, rnd.available.size) - self.places(rnd))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner choice, and a few random ones of the others."""
        inside = self.narrow(rnd)
        if inside.size == 0:
            return draw_uniform(rnd, rng, "explored")
        chosen = self.inner.select(inside, rng)
        return join(chosen, draw.uniform(others(rnd.available, chosen.clients), self.places(rnd), rng), "explored")


def evenly_rounded(wanted: float, index: int) -> int:
    """`wanted`, rounded down in some rounds and up in others, so that the sum over the rounds is never off by one."""
    return math.floor(wanted * (index + 1) + 1e-9) - math.floor(wanted * index + 1e-9)
