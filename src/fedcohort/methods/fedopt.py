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
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import check
from fedcohort.methods._parts import state
from fedcohort.methods.base import Base, Double, Step, data_weights, multiplicity, normalised, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Arrays, Model, Updates

WEIGHTINGS = ("data", "uniform")
_SHAPES: dict[str, state.Shape] = {"first": ("float64", 1), "second": ("float64", 1)}


class FedOpt(Base):
    """What the three share; each says how v moves. The paper's symbols are given in brackets."""

    exempt: Mapping[str, str] = MappingProxyType(
        {"single_client": "the server decides the length of the step", "idle_later": "m remembers earlier rounds"}
    )

    def __init__(
        self,
        *,
        server_lr: float = 0.01,  # [eta]
        beta1: float = 0.9,  # [beta_1]
        beta2: float = 0.99,  # [beta_2]
        tau: float = 1e-3,  # [tau]
        weighting: str = "data",
        buffers: str = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        check(server_lr > 0, f"server_lr = {server_lr}", "the server learning rate must be positive", "use 0.01")
        check(0 <= beta1 < 1, f"beta1 = {beta1}", "a decay must be in [0, 1)", "use 0.9")
        check(0 <= beta2 < 1, f"beta2 = {beta2}", "a decay must be in [0, 1)", "use 0.99")
        check(tau > 0, f"tau = {tau}", "the degree of adaptivity must be positive", "use 1e-3")
        check(
            weighting in WEIGHTINGS, f"weighting = {weighting!r}", "there is no such weighting", "use data or uniform"
        )
        self.server_lr, self.beta1, self.beta2, self.tau, self.weighting = server_lr, beta1, beta2, tau, weighting
        self.first: Double = np.empty(0)  # [m]
        self.second: Double = np.empty(0)  # [v]

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1, the method's own second moment, eq. 5."""
        uniform = self.weighting == "uniform"
        share = normalised(multiplicity(updates, context)) if uniform else data_weights(updates, context)
        update = weighted_sum(share, updates.delta)
        first = state.sized(self.first, update.size, self.name)
        second = state.sized(self.second, update.size, self.name, fill=self.tau**2)
        self.first = self.beta1 * first + (1 - self.beta1) * update
        self.second = self.moment(second, update * update)
        change = self.server_lr * self.first / (np.sqrt(self.second) + self.tau)
        return Step(change, np.ones(len(updates), np.bool_))

    def moment(self, second: Double, square: Double) -> Double:
        """v+ from v and D^2."""
        raise NotImplementedError

    def state_dict(self) -> Arrays:
        """m and v."""
        return state.label(self.name, {"first": self.first, "second": self.second})

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        found = state.unlabel(self.name, arrays, _SHAPES)
        state.require(found["first"].size == found["second"].size, self.name, "the two moments differ in length")
        self.first, self.second = found["first"].copy(), found["second"].copy()


class FedAdam(FedOpt):
    """Adam at the server, eq. 4."""

    name: ClassVar[str] = "fedadam"

    def moment(self, second: Double, square: Double) -> Double:
        """Eq. 4."""
        return self.beta2 * second + (1 - self.beta2) * square


class FedYogi(FedOpt):
    """Yogi at the server, eq. 3: v falls slowly where updates are small."""

    name: ClassVar[str] = "fedyogi"

    def moment(self, second: Double, square: Double) -> Double:
        """Eq. 3."""
        return second - (1 - self.beta2) * square * np.sign(second - square)


class FedAdagrad(FedOpt):
    """Adagrad at the server, eq. 2: v only grows. Without momentum by default."""

    name: ClassVar[str] = "fedadagrad"

    def __init__(
        self,
        *,
        server_lr: float = 0.1,  # [eta]
        beta1: float = 0.0,  # [beta_1]
        tau: float = 1e-3,  # [tau]
        weighting: str = "data",
        buffers: str = "average",
    ) -> None:
        super().__init__(server_lr=server_lr, beta1=beta1, tau=tau, weighting=weighting, buffers=buffers)

    def moment(self, second: Double, square: Double) -> Double:
        """Eq. 2."""
        return second + square
