"""FedAdagrad, FedYogi, FedAdam: adaptive steps at the server.

    Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv Kumar,
    H. Brendan McMahan. Adaptive Federated Optimization. ICLR 2021. https://arxiv.org/abs/2003.00295

With the average update D over those that returned, elementwise:

    m+ = beta_1 m + (1 - beta_1) D                                                                       (1)
    v+ = v + D^2                                          FedAdagrad                                     (2)
    v+ = v - (1 - beta_2) D^2 sign(v - D^2)               FedYogi                                        (3)
    v+ = beta_2 v + (1 - beta_2) D^2                      FedAdam                                        (4)
    w+ = w + eta m+ / (sqrt(v+) + tau)                                                                   (5)

m starts at 0 and v at tau^2. There is no bias correction, as in the paper.

Departures from the paper
    * D is weighted by samples; `weighting="uniform"` is the algorithm as printed.
    * A round in which nobody returned changes nothing, so v does not decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from fedcohort.core.constraints import Interval, Positive
from fedcohort.core.table import Table, TableError, ragged
from fedcohort.errors import checked
from fedcohort.methods.base import Buffers, Decay, Double, MethodBase, Step, Weighting, shares, sized, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Updates


@dataclass
class Moments(Table):
    """What the server remembers between rounds; both are as long as the model once there is one."""

    first: Double = ragged()  # [m]
    second: Double = ragged()  # [v]


class FedOpt(MethodBase):
    """What FedAdam, FedYogi and FedAdagrad share; each says how v moves.

    Args:
        server_lr: factor on the step of the server [eta].
        beta1: share of the momentum that survives a round [beta_1].
        beta2: share of the second moment that survives a round [beta_2].
        tau: degree of adaptivity; smaller is more adaptive [tau].
        weighting: whether rows count alike or by their samples.
        buffers: what becomes of float buffers: averaged, or as the server has them.
    """

    exempt: Mapping[str, str] = MappingProxyType(
        {"single_client": "the server decides the length of the step", "idle_later": "m remembers earlier rounds"}
    )

    state: Moments

    @checked
    def __init__(
        self,
        *,
        server_lr: Positive = 0.01,  # [eta]
        beta1: Decay = 0.9,  # [beta_1]
        beta2: Decay = 0.99,  # [beta_2]
        tau: Annotated[float, Interval(0, 1e9, ends="(]")] = 1e-3,  # [tau]
        weighting: Weighting = "data",
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        self.server_lr, self.beta1, self.beta2, self.tau, self.weighting = server_lr, beta1, beta2, tau, weighting
        self.state, self.prefix = Moments(), f"{self.name}."

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1, the method's own second moment, eq. 5."""
        s, update = self.state, weighted_sum(shares(self.weighting, updates, context), updates.delta)
        first = sized(s.first, update.size, self.name)
        second = sized(s.second, update.size, self.name, fill=self.tau**2)
        s.first = self.beta1 * first + (1 - self.beta1) * update
        s.second = self.moment(second, update * update)
        change = self.server_lr * s.first / (np.sqrt(s.second) + self.tau)
        return Step(change, np.ones(len(updates), np.bool_))

    def moment(self, second: Double, square: Double) -> Double:
        """v+ from v and D^2."""
        raise NotImplementedError

    def check_state(self, fresh: Any) -> None:
        """Both moments have the model's length."""
        if fresh.first.size != fresh.second.size:
            raise TableError("the two moments differ in length")


class FedAdam(FedOpt):
    """Adam at the server, eq. 4. Its arguments are those of :class:`FedOpt`.

    >>> from fedcohort.testing import example_round
    >>> FedAdam(server_lr=0.1).aggregate(*example_round([[1.0], [3.0]])).model.params.round(3)
    array([0.1], dtype=float32)
    """

    name: ClassVar[str] = "fedadam"

    def moment(self, second: Double, square: Double) -> Double:
        """Eq. 4."""
        return self.beta2 * second + (1 - self.beta2) * square


class FedYogi(FedOpt):
    """Yogi at the server, eq. 3: v falls slowly where updates are small. Its arguments are those of :class:`FedOpt`.

    >>> from fedcohort.testing import example_round
    >>> FedYogi(server_lr=0.1).aggregate(*example_round([[1.0], [3.0]])).model.params.round(3)
    array([0.1], dtype=float32)
    """

    name: ClassVar[str] = "fedyogi"

    def moment(self, second: Double, square: Double) -> Double:
        """Eq. 3."""
        return second - (1 - self.beta2) * square * np.sign(second - square)


class FedAdagrad(FedOpt):
    """Adagrad at the server, eq. 2: v only grows. Its arguments are those of :class:`FedOpt`, without `beta2`.

    >>> from fedcohort.testing import example_round
    >>> FedAdagrad(server_lr=0.1).aggregate(*example_round([[1.0], [3.0]])).model.params.round(3)
    array([0.1], dtype=float32)
    """

    name: ClassVar[str] = "fedadagrad"

    @checked
    def __init__(
        self,
        *,
        server_lr: Positive = 0.1,  # [eta]
        beta1: Decay = 0.0,  # [beta_1] no momentum by default
        tau: Annotated[float, Interval(0, 1e9, ends="(]")] = 1e-3,  # [tau]
        weighting: Weighting = "data",
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(server_lr=server_lr, beta1=beta1, tau=tau, weighting=weighting, buffers=buffers)

    def moment(self, second: Double, square: Double) -> Double:
        """Eq. 2."""
        return second + square
