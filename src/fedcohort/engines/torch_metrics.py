"""What is measured of a torch model's outputs on a split: its loss, what belongs to it, and metrics of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.losses import CROSS_ENTROPY
from fedcohort.engines.recipe import Loss
from fedcohort.engines.torch_device import torch_package
from fedcohort.engines.torch_losses import IGNORED, Criterion

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 4096  # samples whose losses are computed together


def mean_loss(loss: Loss, output: NDArray[Any], target: NDArray[Any]) -> float:
    """The mean of the loss over the samples."""
    torch, total = torch_package(), 0.0
    criterion = Criterion(loss, "cpu")
    with torch.no_grad():
        for at in range(0, len(target), CHUNK):
            out, y = (torch.from_numpy(np.array(a[at : at + CHUNK])) for a in (output, target))
            _, plain = criterion.of(CROSS_ENTROPY, out, y, None)
            total += float(plain.double().mean()) * len(y)
    return total / len(target)


def scores_of(
    output: NDArray[Any],
    target: NDArray[Any],
    loss: Loss | None,
    name: str,
    own: Mapping[str, Callable[[Any, Any], Any]],
) -> dict[str, float]:
    """The loss with what belongs to it by name, and the metrics of one's own."""
    torch = torch_package()
    out, y = torch.from_numpy(np.array(output)), torch.from_numpy(np.array(target))
    found: dict[str, float] = {}
    if loss is not None:
        found["loss"] = mean_loss(loss, output, target)
        found |= _USUAL[name](out, y) if name in _USUAL else {}
    with torch.no_grad():
        return found | {key: float(metric(out, y)) for key, metric in own.items()}


def _token_scores(out: Tensor, y: Tensor) -> dict[str, float]:
    there = y != IGNORED
    return {"accuracy": float((out.argmax(dim=-1) == y)[there].double().mean())}


def _label_scores(out: Tensor, y: Tensor) -> dict[str, float]:
    said, true = out.reshape(len(y), -1) > 0, y.reshape(len(y), -1) > 0
    hit = float((said & true).sum())
    return {
        "accuracy": float((said == true).double().mean()),
        "f1": 2 * hit / max(float(said.sum() + true.sum()), 1.0),
    }


def _number_scores(out: Tensor, y: Tensor) -> dict[str, float]:
    goal = y.reshape(out.shape).double()
    known = ~goal.isnan()
    gap, goal = (out.double() - goal)[known], goal[known]
    spread = float(((goal - goal.mean()) ** 2).sum())
    return {"mae": float(gap.abs().mean()), "r2": 1.0 - float((gap * gap).sum()) / spread if spread else float("nan")}


_USUAL: dict[str, Callable[[Any, Any], dict[str, float]]] = {
    "cross-entropy": _token_scores,
    "binary-cross-entropy": _label_scores,
    "mse": _number_scores,
    "mae": _number_scores,
}
