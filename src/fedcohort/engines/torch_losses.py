"""Losses of torch engines: the plan's objective on class logits, or a loss of one's own, sample by sample if it can be.

A loss of one's own takes (output, target) and returns the loss of every sample: its first axis is the batch's, and
further axes are averaged. One number for the whole batch will do for training, but not for signals of single samples.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fedcohort.engines.losses import CROSS_ENTROPY
from fedcohort.engines.recipe import Loss
from fedcohort.engines.torch_device import torch_package
from fedcohort.errors import UnknownName
from fedcohort.types import Objective

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100  # a whole-number target of this value is left out, as in torch's cross_entropy


def token_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of (n, ..., classes) against (n, ...) numbers; mean over the positions that are not IGNORED."""
    torch = torch_package()
    if output.shape[:-1] != target.shape:
        raise ValueError(f"outputs of shape {tuple(output.shape)} have no class axis behind {tuple(target.shape)}")
    there = target != IGNORED
    picked = torch.log_softmax(output, dim=-1).gather(-1, target.clamp(min=0)[..., None])[..., 0]
    hard = torch.where(there, -picked, torch.zeros_like(picked)).reshape(len(target), -1).sum(dim=1)
    found: Tensor = hard / there.reshape(len(target), -1).sum(dim=1).clamp(min=1)
    return found


def square_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean square error of each sample; targets that are NaN (the padding of ragged ones) are left out."""
    return _mean_known(output, target, lambda gap: gap * gap)


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of each sample; NaN targets are left out."""
    return _mean_known(output, target, lambda gap: gap.abs())


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Of logits against 0 or 1 for every label; mean over the labels."""
    torch = torch_package()
    goal = _like(output, target)
    each = torch.nn.functional.binary_cross_entropy_with_logits(output, goal, reduction="none")
    found: Tensor = each.flatten(1).mean(dim=1) if each.ndim > 1 else each
    return found


def _mean_known(output: Tensor, target: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    torch = torch_package()
    goal = _like(output, target)
    there = ~torch.isnan(goal)
    each: Tensor = torch.where(there, of(output - torch.where(there, goal, output)), torch.zeros_like(output))
    if each.ndim == 1:
        return each
    total: Tensor = each.flatten(1).sum(dim=1) / there.flatten(1).sum(dim=1).clamp(min=1)
    return total


def _like(output: Tensor, target: Tensor) -> Tensor:
    """The target in the output's shape: (n,) and (n, 1) are the same thing."""
    if output.numel() != target.numel():
        raise ValueError(f"outputs of shape {tuple(output.shape)} do not fit targets of shape {tuple(target.shape)}")
    goal: Tensor = target.reshape(output.shape).to(output.dtype)
    return goal


NAMED: dict[str, Loss] = {
    "cross-entropy": token_cross_entropy,
    "mse": square_error,
    "mae": absolute_error,
    "binary-cross-entropy": binary_cross_entropy,
}


def own_loss(given: str | Loss) -> Loss:
    """A loss by name, or yours, with `reduction="none"` if it knows that: `nn.MSELoss()` and `F.mse_loss` do."""
    if isinstance(given, str):
        if given not in NAMED:
            raise UnknownName.among("loss", given, NAMED)
        return NAMED[given]
    if isinstance(given, torch_package().nn.Module) and isinstance(getattr(given, "reduction", None), str):
        each: Loss = copy.deepcopy(given)
        setattr(each, "reduction", "none")  # noqa: B010
        return each
    try:
        takes = "reduction" in inspect.signature(given).parameters and not isinstance(given, partial)
    except (TypeError, ValueError):
        takes = False
    options = {"reduction": "none"} if takes else {}
    return partial(given, **options) if options else given


class Criterion:
    """The loss that an engine descends, on one device."""

    def __init__(self, own: Loss | None, device: str) -> None:
        self._torch = torch_package()
        if isinstance(own, self._torch.nn.Module):
            own = copy.deepcopy(own).to(device)
        self.own = own

    def of(self, objective: Objective, output: Tensor, y: Tensor, frozen: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is descended and, detached, the plain loss: of every sample, or one number for the whole batch.

        `frozen` are the predictions of the broadcast model; None stands for the model's own.
        """
        if self.own is not None:
            each = self._own(output, y)
            return each, each.detach()
        if objective == CROSS_ENTROPY and output.ndim == 2:  # the same bits as below in a third of the calls
            each = self._torch.nn.functional.cross_entropy(output, y, reduction="none")
            return each, each.detach()
        log_p = self._torch.log_softmax(output, dim=-1)
        hard = -log_p.gather(-1, y[..., None])[..., 0]
        q = log_p.detach().exp() if frozen is None and objective.pseudo else frozen
        return _objective(objective, log_p, hard, q), hard.detach()

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """How many samples have their class right; NaN where classes are not what is learned."""
        if self.own is not None:
            return output.new_full((), float("nan"))
        return (output.argmax(dim=-1) == y).sum()

    def _own(self, output: Tensor, y: Tensor) -> Tensor:
        assert self.own is not None
        each: Tensor = self.own(output, y)
        if not isinstance(each, self._torch.Tensor) or (each.ndim and each.shape[0] != y.shape[0]):
            what = f"shape {tuple(each.shape)}" if hasattr(each, "shape") else f"type {type(each).__name__}"
            raise ValueError(f"a loss of {what} for {y.shape[0]} samples is neither one number each nor one for all")
        found: Tensor = each.flatten(1).mean(dim=1) if each.ndim > 1 else each
        return found


def _objective(o: Objective, log_p: Tensor, hard: Tensor, frozen: Tensor | None) -> Tensor:
    """Loss of every sample, in the terms of :mod:`fedcohort.engines.losses`."""
    total = o.ce * ((1.0 - o.smoothing) * hard - o.smoothing * log_p.mean(dim=-1))
    if o.pseudo and frozen is not None:
        total = total - o.pseudo * (frozen * log_p).sum(dim=-1)
    if o.rce:
        total = total - o.rce * o.floor * (1.0 - (-hard).exp())
    return total
