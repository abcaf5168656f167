"""Warm-up: the first rounds are drawn uniformly at random.

    rounds 0 .. W - 1 are drawn uniformly at random; the inner selector watches and learns                         (1)

How state, probes, directives and inclusion pass through a wrapper is written in base.py.

Departures from a paper: there is none to depart from. Choices made here:
    * In a warm-up the inner selector still probes, and pays for it: it learns from the answers (FedCor needs them).
"""

from __future__ import annotations

import numpy as np

from fedcohort.errors import check
from fedcohort.protocols import Selector
from fedcohort.selectors.wrappers.base import Wrapper, draw_uniform
from fedcohort.types import Cohort, Round


class WarmUp(Wrapper):
    """Draw the first rounds by lot while the inner selector watches."""

    def __init__(self, *, inner: Selector | None = None, rounds: int = 5) -> None:  # [W]
        super().__init__(inner)
        check(rounds >= 0, f"rounds = {rounds}", "a number of rounds is not negative", "use e.g. 5")
        self.rounds = rounds

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 1."""
        if rnd.index < self.rounds:
            return draw_uniform(rnd, rng, "warm_up")
        return super().select(rnd, rng)
