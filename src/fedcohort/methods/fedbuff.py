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
    * s_k is `Updates.extras["staleness"]`, which asynchronous runs set (`gather`, sim/asynchronous.py), otherwise 0,
      plus the number of times the model has already moved in this round.
    * `normalise=True` divides by sum a(s_k) in place of K. Samples do not count, unless `weighting="data"`.
    * Updates older than `max_staleness`, or of unknown age (NaN), are left out.
    * Buffers and counters that came with the updates wait, too: when the model moves, all that came since its last move
      are merged, the buffers by their plain mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import check
from fedcohort.methods._parts import state
from fedcohort.methods._parts.robust import check_weighting
from fedcohort.methods.base import Base, Double, Step, multiplicity
from fedcohort.protocols import Aggregation
from fedcohort.types import STALENESS, Arrays, Mask, Model, Real, Updates

_SHAPES: dict[str, state.Shape] = {
    "sum": ("float64", 1),
    "mass": ("float64", 0),
    "count": ("int64", 0),
    "buffers": ("float64", 1),
    "buffer_rows": ("int64", 0),
    "counters": ("int64", 1),
}


class FedBuff(Base):
    """A server step for every K updates. The paper's symbols are given in brackets."""

    name: ClassVar[str] = "fedbuff"

    def __init__(
        self,
        *,
        size: int = 10,  # [K]
        server_lr: float = 1.0,  # [eta]
        exponent: float = 0.5,
        normalise: bool = False,
        max_staleness: float = math.inf,
        weighting: str = "uniform",
        buffers: str = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        check(size >= 1, f"size = {size}", "the buffer must hold at least one update", "use 10")
        check(server_lr > 0, f"server_lr = {server_lr}", "the server learning rate must be positive", "use 1.0")
        check(exponent >= 0, f"exponent = {exponent}", "older must not weigh more", "use 0.5")
        check(max_staleness >= 0, f"max_staleness = {max_staleness}", "an age is not negative", "use inf for no limit")
        self.size, self.server_lr, self.exponent, self.normalise = size, server_lr, exponent, normalise
        self.max_staleness, self.weighting = max_staleness, check_weighting(weighting)
        self.exempt = {"idle_later": "the buffer may hold updates of earlier rounds"}
        if size > 1 or server_lr != 1.0:
            self.exempt["single_client"] = "one update waits for others, or its step is scaled"
        self._moved = False  # whether the last call of `combine` moved the model
        self._empty()
        self._empty_buffers()

    def _empty(self) -> None:
        self.sum: Double = np.empty(0)  # sum of weight * a(s) * x
        self.mass = 0.0  # what it is divided by
        self.count = 0  # updates in it

    def _empty_buffers(self) -> None:
        self.buffer_sum: Double = np.empty(0)  # sum of the buffers that wait
        self.buffer_rows = 0  # how many those are
        self.counters: NDArray[np.int64] = np.empty(0, np.int64)  # their largest counters

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1 for every row, eq. 2 whenever the buffer is full."""
        age, kept = self._ages(updates)
        weight = multiplicity(updates, context)
        if self.weighting == "data":
            weight = weight * np.asarray(updates.weight, np.float64)
        change = np.zeros(model.params.size)
        moves = 0
        for at in np.flatnonzero(kept):
            discount = (1.0 + age[at] + moves) ** -self.exponent
            total = state.sized(self.sum, change.size, self.name)
            self.sum = total + weight[at] * discount * updates.delta[at].astype(np.float64)
            self.mass += float(weight[at]) * (discount if self.normalise else 1.0)
            self.count += 1
            if self.count >= self.size:
                change += self.server_lr * self.sum / self.mass if self.mass > 0 else 0.0
                self._empty()
                moves += 1
        self._moved = moves > 0
        return Step(change, kept, {"moves": float(moves), "waiting": float(self.count)})

    def merge(self, model: Model, updates: Updates) -> tuple[Real, NDArray[np.int64]]:
        """Let buffers and counters wait until the model moves."""
        if updates.buffers is not None and updates.buffers.size:
            waiting = state.sized(self.buffer_sum, model.buffers.size, self.name)
            self.buffer_sum = waiting + updates.buffers.astype(np.float64).sum(axis=0)
            self.buffer_rows += len(updates)
        if updates.counters is not None and updates.counters.size:
            largest = updates.counters.max(axis=0)
            self.counters = np.maximum(self.counters, largest) if self.counters.size else largest
        if not self._moved:
            return model.buffers, model.counters
        buffers, counters = model.buffers, model.counters
        if self.buffers == "average" and self.buffer_rows:
            buffers = (self.buffer_sum / self.buffer_rows).astype(np.float32)
        if self.counters.size:
            counters = np.maximum(counters, self.counters)
        self._empty_buffers()
        return buffers, counters

    def _ages(self, updates: Updates) -> tuple[Double, Mask]:
        """s_k of every row, and which rows are young enough."""
        reported = updates.extras.get(STALENESS)
        if reported is None:
            return np.zeros(len(updates)), np.ones(len(updates), np.bool_)
        age = np.maximum(np.asarray(reported, np.float64), 0.0)
        kept: Mask = np.isfinite(age) & (age <= self.max_staleness)
        return age, kept

    def state_dict(self) -> Arrays:
        """What waits."""
        waiting = {
            "sum": self.sum,
            "mass": np.float64(self.mass),
            "count": np.int64(self.count),
            "buffers": self.buffer_sum,
            "buffer_rows": np.int64(self.buffer_rows),
            "counters": self.counters,
        }
        return state.label(self.name, waiting)

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        found = state.unlabel(self.name, arrays, _SHAPES)
        count = int(found["count"])
        state.require(0 <= count < self.size, self.name, f"{count} updates wait for a buffer of {self.size}")
        self.sum, self.mass, self.count = found["sum"].copy(), float(found["mass"]), count
        self.buffer_sum, self.buffer_rows = found["buffers"].copy(), int(found["buffer_rows"])
        self.counters = found["counters"].copy()
