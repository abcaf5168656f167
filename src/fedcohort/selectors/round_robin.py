"""Round-robin: who waited longest goes first.

    A textbook schedule; in federated learning compared with random choice and proportional fairness by
    Howard H. Yang, Zuozhu Liu, Tony Q. S. Quek, H. Vincent Poor.
    Scheduling Policies for Federated Learning in Wireless Networks. IEEE Trans. Communications 68(1), 2020.
    https://arxiv.org/abs/1908.06287

With L(i) the round in which client i was last asked (-1: never), the cohort is the K available clients of least L(i);
ties are drawn by lot. If all are always available, everybody is asked once in every ceil(N / K) rounds.

Departures from the paper
    * The paper forms fixed groups and goes through them; here groups form as clients are available.
    * Being asked counts, whatever the outcome: a client that fails goes to the end of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.table import Table, column
from fedcohort.types import Arrays, Cohort, Index, Round, RoundResult


@dataclass
class RoundRobinState(Table):
    """When each client was last asked."""

    last: Index = column(-1, np.int64)  # L(i)


class RoundRobin:
    """Everybody in turn."""

    needs: ClassVar[frozenset[str]] = frozenset()
    exempt: ClassVar[Mapping[str, str]] = {"learns": "gives everybody the same number of turns"}

    def __init__(self) -> None:
        self.state = RoundRobinState()

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The K that waited longest."""
        self.state.grow(rnd.population)
        last = self.state.last[rnd.available]
        at = draw.top(-last.astype(np.float64), rnd.size, rng)
        return Cohort(rnd.available[at], why={"waited": rnd.index - last[at]})

    def observe(self, result: RoundResult) -> None:
        """Everybody that was asked goes to the end of the queue."""
        if result.clients.size:
            self.state.grow(int(result.clients.max()) + 1)
        self.state.last[result.clients] = result.index

    def state_dict(self) -> Arrays:
        """When each client was last asked."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)
