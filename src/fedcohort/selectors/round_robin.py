"""Round-robin: whoever has waited longest goes first.

    A textbook schedule; in federated learning compared with random choice and proportional fairness by
    Howard H. Yang, Zuozhu Liu, Tony Q. S. Quek, H. Vincent Poor.
    Scheduling Policies for Federated Learning in Wireless Networks. IEEE Trans. Communications 68(1), 2020.
    https://arxiv.org/abs/1908.06287

With L(i) the round in which client i was last asked (-1: never) and h(i) how often, the cohort is the K available
clients that come first by (L(i), h(i)); ties are broken at random. If all are always available, nobody waits longer
than ceil(N / K) rounds, and no two clients ever differ by more than one turn.

Departures from the paper
    * The paper forms fixed groups and goes through them; here groups form as clients are available.
    * Being asked counts, whatever the outcome: a client that fails goes to the end of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcohort.core import draw
from fedcohort.core.table import Table, column
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Round, RoundResult


@dataclass
class RoundRobinState(Table):
    """The queue."""

    last: Index = column(-1, np.int64)  # L(i)
    turns: Index = column(0, np.int64)  # h(i)


class RoundRobin(StatefulSelector[RoundRobinState]):
    """Ask everybody in turn.

    >>> RoundRobin().needs
    frozenset()
    """

    exempt: Mapping[str, str] = {"learns": "gives everybody the same number of turns"}

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The K that waited longest."""
        self.state.grow(rnd.population)
        last, turns = self.state.last[rnd.available], self.state.turns[rnd.available]
        place = last * (turns.max(initial=0) + 1) + turns  # (L, h) as one number
        at = draw.top(-place.astype(np.float64), rnd.size, rng)
        return Cohort(rnd.available[at], why={"waited": rnd.index - last[at], "turns": turns[at]})

    def observe(self, result: RoundResult) -> None:
        """Everybody that was asked goes to the end of the queue."""
        if result.clients.size:
            self.state.grow(int(result.clients.max()) + 1)
        self.state.last[result.clients] = result.index
        self.state.turns[result.clients] += 1
