"""A model together with what a plan cannot say about its training: its own loss, optimiser and augmentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedcohort.engines.image_moves import Moves
from fedcohort.engines.networks import Network
from fedcohort.engines.torch_augment import MOVES

Factory = Callable[[], Any]  # makes a torch.nn.Module
Loss = Callable[[Any, Any], Any]  # (output, target) -> the loss of every sample, or one number for the batch


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the torch engines train. Every function takes and returns tensors; None is what the plan says.

    >>> Recipe(Network((3,), ())).plain
    True
    """

    model: Network | Factory
    loss: Loss | None = None
    optimiser: Callable[[Any, float], Any] | None = None  # (parameters, rate) -> a torch.optim.Optimizer
    augmentation: Callable[[Any, Any], Any] | None = None  # (inputs of a batch, numpy generator) -> inputs

    @property
    def plain(self) -> bool:
        """Whether the plan says everything."""
        return self.native and self.augmentation is None

    @property
    def native(self) -> bool:
        """Whether an engine without torch could train the model, if it can move images about."""
        return self.loss is None and self.optimiser is None and (self.augmentation is None or self.moves is not None)

    @property
    def moves(self) -> Moves | None:
        """How a ready-made augmentation moves images; None for others, and where there is none."""
        return next((moves for known, moves in MOVES.items() if known is self.augmentation), None)


Modeled = Network | Factory | Recipe


def recipe_of(model: Modeled) -> Recipe:
    """The model as a recipe."""
    return model if isinstance(model, Recipe) else Recipe(model)


def network_of(model: Modeled) -> Network | None:
    """The network inside, or None for torch modules."""
    inner = recipe_of(model).model
    return inner if isinstance(inner, Network) else None


def named(function: Any) -> str:
    """What a function of the user's is called."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def said(error: Exception) -> str:
    """The exception in one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200].rstrip('.')}" if text else type(error).__name__
