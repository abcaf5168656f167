"""Uniform: every available client is equally likely.

    H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Agüera y Arcas.
    Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017.
    https://arxiv.org/abs/1602.05629

K of the available clients A, without replacement, every set equally likely:

    pi(i) = K / |A|                                                                      (1)

Departures from the paper
    * The draw is from those that are available, not from all that are registered.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcohort.core import draw
from fedcohort.selectors.base import NoState, StatefulSelector
from fedcohort.types import Cohort, Round, RoundResult


class Uniform(StatefulSelector[NoState]):
    """Draw uniformly at random: the baseline of everything.

    >>> Uniform().needs
    frozenset()
    """

    exempt: Mapping[str, str] = {"learns": "draws uniformly at random and remembers nothing"}

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 1."""
        chosen = draw.uniform(rnd.available, rnd.size, rng)
        inclusion = np.full(chosen.size, chosen.size / max(rnd.available.size, 1))
        return Cohort(chosen, inclusion=inclusion, why={"inclusion": inclusion})

    def observe(self, result: RoundResult) -> None:
        """Nothing to learn."""
