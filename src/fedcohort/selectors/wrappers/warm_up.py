"""Warm-up: the first rounds are drawn uniformly at random.

    rounds 0 .. W - 1 are drawn uniformly at random; the inner selector watches and learns                         (1)

`base.py` says how state, probes, directives and inclusion pass through a wrapper.

Departures from the paper: none, there is no paper. Choices made here:
    * In a warm-up the inner selector still probes, at the usual cost: it learns from the answers (FedCor needs them).
"""

from __future__ import annotations

import numpy as np

from fedcohort.core.constraints import CountOrZero
from fedcohort.errors import checked
from fedcohort.protocols import Selector
from fedcohort.selectors.base import NoState
from fedcohort.selectors.wrappers.base import Wrapper, draw_uniform
from fedcohort.types import Cohort, Round


class WarmUp(Wrapper[NoState]):
    """Draw the first rounds uniformly at random while the inner selector watches.

    Args:
        inner: any selector; None: uniform.
        rounds: how many first rounds [W].

    >>> WarmUp(rounds=3).rounds
    3
    """

    @checked
    def __init__(self, *, inner: Selector | None = None, rounds: CountOrZero = 5) -> None:
        super().__init__(inner)
        self.rounds = rounds

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 1."""
        if rnd.index < self.rounds:
            return draw_uniform(rnd, rng, "warm_up")
        return super().select(rnd, rng)
