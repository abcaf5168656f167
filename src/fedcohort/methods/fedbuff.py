"""FedBuff: gather updates in a buffer, and move the model whenever the buffer is full.

    John Nguyen, Kshitiz Malik, Hongyuan Zhan, Ashkan Yousefpour, Michael Rabbat, Mani Malek, Dzmitry Huba.
    Federated Learning with Buffered Asynchronous Aggregation. AISTATS 2022. https://arxiv.org/abs/2106.06639

An update x_k that was computed on a model s_k versions old enters the buffer with the weight

    a(s) = (1 + s)^-e                          e = 1/2                                                   (1)

and when K of them are there

    w+ = w + eta (1 / K) sum a(s_k) x_k                                                                  (2)

after which the buffer is empty.

Departures from the paper
    * Rounds are ask and tell, so updates come in batches. They enter one by one in ascending client order; the buffer
      may fill several times in a round, or not at all. Accepted means taken into the buffer.
    * s_k is `Updates.extras["staleness"]`, which asynchronous runs set (`buffer_size`), otherwise 0, plus the number of
      times the model has already moved in this round.
    * `normalise=True` divides by sum a(s_k) instead of K. Samples do not count, unless `weighting="data"`.
    * Updates older than `max_staleness`, or of unknown age (NaN), are left out.
    * Buffers and counters that came with the updates wait, too: when the model moves, all that came since its last move
      are merged, the buffers by their plain mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Count, Interval, NotNegative, Positive
from fedcohort.core.finite import finite_or
from fedcohort.core.table import Table, TableError, ragged
from fedcohort.errors import checked
from fedcohort.methods.base import Buffers, Double, MethodBase, Step, Weighting, multiplicity, sized
from fedcohort.protocols import Aggregation
from fedcohort.types import STALENESS, Mask, Model, Real, Updates


@dataclass
class FedBuffState(Table):
    """What waits in the buffer."""

    sum: Double = ragged()  # of weight * a(s) * x
    mass: float = 0.0  # what it is divided by
    count: int = 0  # updates in it
    buffers: Double = ragged()  # sum of the model buffers that came with them
    buffer_rows: int = 0  # how many those are
    counters: NDArray[np.int64] = ragged(np.int64)  # their largest counters

    def empty(self) -> None:
        """The updates have moved the model."""
        self.sum, self.mass, self.count = np.empty(0), 0.0, 0

    def empty_buffers(self) -> None:
        """The buffers and counters have been merged."""
        self.buffers, self.buffer_rows, self.counters = np.empty(0), 0, np.empty(0, np.int64)


class FedBuff(MethodBase):
    """A server step for every K updates, however old they are: for asynchronous runs.

    Args:
        size: updates that fill the buffer [K].
        server_lr: factor on the step of the server [eta].
        exponent: how fast the weight of an update falls with its age [e].
        normalise: divide by the sum of the weights instead of K.
        max_staleness: older updates count nothing.
        weighting: whether rows count alike or by their samples.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> FedBuff(size=2).aggregate(*example_round([[1.0], [3.0], [9.0]])).info
    {'moves': 1.0, 'waiting': 1.0}
    """

    name: ClassVar[str] = "fedbuff"
    prefix = "fedbuff."
    state: FedBuffState

    @checked
    def __init__(
        self,
        *,
        size: Count = 10,  # [K]
        server_lr: Positive = 1.0,  # [eta]
        exponent: NotNegative = 0.5,  # [e]
        normalise: bool = False,
        max_staleness: Annotated[float, Interval(0)] = math.inf,
        weighting: Weighting = "uniform",
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        self.size, self.server_lr, self.exponent, self.normalise = size, server_lr, exponent, normalise
        self.max_staleness, self.weighting, self.state = max_staleness, weighting, FedBuffState()
        self.exempt = {"idle_later": "the buffer may hold updates of earlier rounds"}
        if size > 1 or server_lr != 1.0:
            self.exempt["single_client"] = "one update waits for others, or its step is scaled"
        self._moved = False  # whether the last call of `combine` moved the model

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1 for every row, eq. 2 whenever the buffer is full."""
        s, (age, kept) = self.state, self._ages(updates)
        weight = multiplicity(updates, context)
        if self.weighting == "data":
            weight = weight * np.asarray(updates.weight, np.float64)
        change = np.zeros(model.params.size)
        moves = 0
        for at in np.flatnonzero(kept):
            discount = (1.0 + age[at] + moves) ** -self.exponent
            total = sized(s.sum, change.size, self.name)
            s.sum = total + weight[at] * discount * updates.delta[at].astype(np.float64)
            s.mass += float(weight[at]) * (discount if self.normalise else 1.0)
            s.count += 1
            if s.count >= self.size:
                change += self.server_lr * s.sum / s.mass if s.mass > 0 else 0.0
                s.empty()
                moves += 1
        self._moved = moves > 0
        return Step(change, kept, {"moves": float(moves), "waiting": float(s.count)})

    def merge(self, model: Model, updates: Updates) -> tuple[Real, NDArray[np.int64]]:
        """Let buffers and counters wait until the model moves."""
        s = self.state
        if updates.buffers is not None and updates.buffers.size:
            waiting = sized(s.buffers, model.buffers.size, self.name)
            s.buffers = waiting + updates.buffers.astype(np.float64).sum(axis=0)
            s.buffer_rows += len(updates)
        if updates.counters is not None and updates.counters.size:
            largest = updates.counters.max(axis=0)
            s.counters = np.maximum(s.counters, largest) if s.counters.size else largest
        if not self._moved:
            return model.buffers, model.counters
        buffers, counters = model.buffers, model.counters
        if self.buffers == "average" and s.buffer_rows:
            buffers = finite_or((s.buffers / s.buffer_rows).astype(np.float32), model.buffers)
        if s.counters.size:
            counters = np.maximum(counters, s.counters)
        s.empty_buffers()
        return buffers, counters

    def _ages(self, updates: Updates) -> tuple[Double, Mask]:
        """s_k of every row, and which rows are young enough."""
        reported = updates.extras.get(STALENESS)
        if reported is None:
            return np.zeros(len(updates)), np.ones(len(updates), np.bool_)
        age = np.maximum(np.asarray(reported, np.float64), 0.0)
        kept: Mask = np.isfinite(age) & (age <= self.max_staleness)
        return age, kept

    def check_state(self, fresh: Any) -> None:
        """A full buffer would have moved the model."""
        if not 0 <= fresh.count < self.size:
            raise TableError(f"{fresh.count} updates wait for a buffer of {self.size}")
