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

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcohort.core.constraints import Positive
from fedcohort.core.table import Table, ragged
from fedcohort.errors import checked
from fedcohort.methods.base import Buffers, Decay, Double, MethodBase, Step, data_weights, sized, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Updates


@dataclass
class FedAvgMState(Table):
    """What the server remembers between rounds."""

    velocity: Double = ragged()  # [v] as long as the model once there is one


class FedAvgM(MethodBase):
    """FedAvg with heavy-ball momentum at the server.

    Args:
        momentum: share of the velocity that survives a round [beta].
        server_lr: factor on the step of the server [eta].
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> FedAvgM(momentum=0.9).aggregate(*example_round([[1.0], [3.0]])).model.params
    array([2.], dtype=float32)
    """

    name: ClassVar[str] = "fedavgm"
    prefix = "fedavgm."
    state: FedAvgMState

    @checked
    def __init__(
        self,
        *,
        momentum: Decay = 0.9,  # [beta]
        server_lr: Positive = 1.0,  # [eta]
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        self.momentum, self.server_lr = momentum, server_lr
        self.exempt = {"idle_later": "the velocity of earlier rounds moves the model"}
        if server_lr != 1.0:
            self.exempt["single_client"] = "the server learning rate scales the step"
        self.state = FedAvgMState()

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1 and 2."""
        velocity = sized(self.state.velocity, model.params.size, self.name)
        self.state.velocity = self.momentum * velocity + weighted_sum(data_weights(updates, context), updates.delta)
        return Step(self.server_lr * self.state.velocity, np.ones(len(updates), np.bool_))
