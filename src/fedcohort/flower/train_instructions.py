"""What a round asks of the training function: epochs, learning rate, and what is added to the gradient.

::

    asked = instructions(message, epochs=1, lr=0.1)
    gradient = asked.adjust(gradient, weights)      # FedProx, SCAFFOLD, FedDyn; unchanged for other methods

An app whose training function does this declares it: ``CohortApp(applies=SUPPORTED)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message
from numpy.typing import NDArray

from fedcohort.flower import wire

PROX, CORRECT = "proximal-mu", "correction"
SUPPORTED = (PROX, CORRECT)  # what :meth:`TrainInstructions.adjust` can apply
CORRECTION = "fedcohort.correction"  # ArrayRecord of a request: added to every gradient


@dataclass(frozen=True)
class TrainInstructions:
    """The instructions of one round for one client."""

    epochs: int
    lr: float
    prox: float = 0.0  # [mu]
    broadcast: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    correction: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def adjust(self, gradient: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
        """The gradient, plus mu (w - w_broadcast), plus the correction; named as the arrays of the model."""
        out = dict(gradient)
        for name in out if self.prox else ():
            out[name] = out[name] + self.prox * (weights[name] - self.broadcast[name])
        for name, change in self.correction.items():
            if name in out:
                out[name] = out[name] + change
        return out


def instructions(message: Message, *, epochs: int = 1, lr: float = 0.1) -> TrainInstructions:
    """The instructions in this message. `epochs` and `lr` are the defaults of the app; PyramidFL scales the epochs."""
    content = message.content
    config = content.get("config")
    prox = config.get(PROX, 0.0) if isinstance(config, ConfigRecord) else 0.0
    broadcast = {str(k): a.numpy() for k, a in content["arrays"].items()} if prox else {}
    change = {str(k): a.numpy() for k, a in content[CORRECTION].items()} if CORRECTION in content else {}
    return TrainInstructions(work(message, epochs), lr, float(prox), broadcast, change)


def work(message: Message, epochs: int) -> int:
    """Local epochs of this round: those of the app, scaled as the selector directs (PyramidFL), at least one."""
    request = message.content.get(wire.REQUEST)
    factor = request.get("directive.work", 1.0) if isinstance(request, ConfigRecord) else 1.0
    return max(round(epochs * float(factor)), 1)
