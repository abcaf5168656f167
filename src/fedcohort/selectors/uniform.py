"""Uniform: draw by lot.

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
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.table import Table
from fedcohort.types import Arrays, Cohort, Round, RoundResult


@dataclass
class UniformState(Table):
    """Nothing is remembered."""


class Uniform:
    """Every available client is as likely as any other, whatever it did before."""

    needs: ClassVar[frozenset[str]] = frozenset()
    exempt: ClassVar[Mapping[str, str]] = {"learns": "draws by lot and remembers nothing"}

    def __init__(self) -> None:
        self.state = UniformState()

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 1."""
        chosen = draw.uniform(rnd.available, rnd.size, rng)
        inclusion = np.full(chosen.size, chosen.size / max(rnd.available.size, 1))
        return Cohort(chosen, inclusion=inclusion, why={"inclusion": inclusion})

    def observe(self, result: RoundResult) -> None:
        """Nothing to learn."""

    def state_dict(self) -> Arrays:
        """No state."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)
