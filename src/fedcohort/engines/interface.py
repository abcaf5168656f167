"""What every engine takes and returns, and the batch order that all of them share.

An engine is made for one model and the data of all clients. It never sees a world, a selector or a clock.
Engines must agree: same parameters, clients and plan give the same updates within the documented tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import generator
from fedcohort.protocols import Trained
from fedcohort.types import Arrays, Index, Mask, Model, Objective, Part, Plan, Real

ENGINES = ("fused", "numpy", "ray", "torch_reference", "torch_vmap", "torch_workers")  # as `engine=` takes them
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "cuda:1", "mps")  # as `device=` takes them; any other number of CUDA's too
PRECISIONS = ("float32", "bfloat16")  # of forward passes on a device


@dataclass(frozen=True, slots=True)
class ClientData:
    """The samples of all clients, held once. `train.index` and `validation.index` are rows of x and of `target`.

    >>> part = Part(np.array([0, 1, 2]), index=np.arange(2), label=np.array([0, 1]), clean=np.array([0, 1]))
    >>> ClientData(np.zeros((2, 3), np.float32), train=part, validation=part, classes=2).train.sizes
    array([1, 1])
    """

    x: NDArray[Any]  # (n, *input_shape): float32, normalised; or int64 (tokens), for torch engines
    train: Part
    validation: Part
    classes: int
    target: NDArray[Any] | None = None  # what is learned of each row, where that is not the label; torch engines only


@dataclass(frozen=True, slots=True)
class LossStats:
    """Per client: how one model does on one part of that client's data. NaN where it has no samples."""

    loss: NDArray[np.float64]  # mean objective
    square: NDArray[np.float64]  # mean of squared per-sample objective
    accuracy: NDArray[np.float64]
    count: Index


class Engine(Protocol):
    """Trains a whole cohort from one model. Rows of every answer are in the order of `clients`.

    Where the model has buffers and a call comes without any, those of the model last given to :meth:`train` count;
    before the first training, those of a fresh model. No other call changes what a later one answers.
    """

    name: str
    n_params: int

    @property
    def last_layer(self) -> slice | Mask:
        """Where the last layer lies in the flat parameters."""
        ...

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training of each client. Signals are those of `plan.measure` that the engine knows.

        Client-side signals (see fedcohort.signals): train_loss, train_loss_sq, loss_count, utility over the first
        local epoch at the moving weights; loss_before, loss_after, val_loss, robust_loss, grad_norm, insight.
        "full_gradient" in `plan.measure` puts the full-batch gradient of the plan's objective at the broadcast model,
        (m, p), into `Updates.extras`. A client whose loss or weights become non-finite, or who owns no samples, is
        marked in `failed` with a reason; its row of delta is zero.
        """
        ...

    def losses(self, model: Model, clients: Index, part: str, objective: Objective) -> LossStats:
        """Evaluate one model on each client's "train" or "validation" part."""
        ...

    def gradients(
        self, model: Model, clients: Index, *, last_layer: bool = False, objective: Objective | None = None
    ) -> Real:
        """Full-batch gradient of each client at this model: (m, p), or the last layer's part.

        Of cross-entropy, or of the objective, whose pseudo-labels have none at the model that made them.
        """
        ...

    def logits(self, params: Real, x: NDArray[np.float32], buffers: Real | None = None) -> Real:
        """Logits of k models, given as (k, p), with buffers (k, b) or (1, b), on inputs x: (k, n, classes)."""
        ...

    def soft_gradient(
        self, params: Real, x: NDArray[np.float32], target: Real, buffers: Real | None = None
    ) -> tuple[float, Real]:
        """Mean of -sum_c target_c log p_c over samples, and its gradient (p,). Targets need not sum to one.

        `buffers` (b,) are the model's own.
        """
        ...

    def close(self) -> None:
        """Give back threads and processes."""
        ...


def batch_order(n: int, plan: Plan, client: int, epoch: int) -> Index:
    """The order in which this client visits its n samples in this local epoch: positions 0 .. n - 1.

    Batches are consecutive runs of `plan.batch_size`; the last one may be short.
    """
    return generator(plan.seed, "batches", plan.round, client, epoch).permutation(n)


def signals_from_stats(stats: LossStats) -> Arrays:
    """The first-epoch loss signals, in the names of the catalogue."""
    return {
        "train_loss": stats.loss,
        "train_loss_sq": stats.square,
        "loss_count": stats.count.astype(np.float64),
        "utility": stats.count * np.sqrt(stats.square),
    }
