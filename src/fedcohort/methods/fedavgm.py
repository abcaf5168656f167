"""FedAvgM: FedAvg with momentum at the server.

    Tzu-Ming Harry Hsu, Hang Qi, Matthew Brown.
    Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.
    https://arxiv.org/abs/1909.06335

With the FedAvg update D = sum_R q_k (w_k - w), q_k = n_k / sum_R n:

    v+ = beta v + D                                                                                      (1)
    w+ = w + eta v+                                                                                      (2)

Departures from the paper
    * A round in which nobody returned changes neither v nor w.
    * eta is a parameter; the paper's is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import check
from fedcohort.methods._parts import state
from fedcohort.methods.base import Base, Double, Step, data_weights, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Arrays, Model, Updates


class FedAvgM(Base):
    """Heavy-ball momentum on the average update. The paper's symbols are given in brackets."""

    name: ClassVar[str] = "fedavgm"

    def __init__(
        self,
        *,
        momentum: float = 0.9,  # [beta]
        server_lr: float = 1.0,  # [eta]
        buffers: str = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        check(0 <= momentum < 1, f"momentum = {momentum}", "server momentum must be in [0, 1)", "use 0.9")
        check(server_lr > 0, f"server_lr = {server_lr}", "the server learning rate must be positive", "use 1.0")
        self.momentum, self.server_lr = momentum, server_lr
        self.exempt = {"idle_later": "the velocity of earlier rounds moves the model"}
        if server_lr != 1.0:
            self.exempt["single_client"] = "the server learning rate scales the step"
        self.velocity: Double = np.empty(0)  # [v], as long as the model once there is one

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1 and 2."""
        velocity = state.sized(self.velocity, model.params.size, self.name)
        self.velocity = self.momentum * velocity + weighted_sum(data_weights(updates, context), updates.delta)
        return Step(self.server_lr * self.velocity, np.ones(len(updates), np.bool_))

    def state_dict(self) -> Arrays:
        """The velocity."""
        return state.label(self.name, {"velocity": self.velocity})

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.velocity = state.unlabel(self.name, arrays, {"velocity": ("float64", 1)})["velocity"].copy()
