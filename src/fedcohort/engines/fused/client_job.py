"""What the kernels are told about one client's local training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .vectors import SLACK

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(slots=True)
class ClientJob:
    """One client: what it starts from, its samples in the order of every epoch, its plan, and where results go."""

    start: Floats  # broadcast parameters, padded
    delta: Floats  # receives the change
    buffers: Floats  # running statistics, which training moves
    x: Floats
    rows: Index  # of x
    label: Index
    order: Index  # (epochs, n): positions in rows and label
    batch: int
    rate: Doubles  # rate, momentum, decay, prox, whether Adam
    objective: Doubles
    frozen: Floats  # (n, classes) predictions of the broadcast model, where given
    given: bool
    weight: Floats  # of samples, or none
    correction: Floats  # of gradients, or none
    stats: Doubles  # receives sum, sum of squares and number of the first epoch's cross-entropies
    key: int  # of dropout's masks
    moves: Index  # (epochs, n, 3): how the images of each epoch are moved, in its order; none: they stay
    image: tuple[int, int]  # their height and width


def padded_copy(a: Floats) -> Floats:
    """A copy, with room behind it for kernels that read and write back whole vectors."""
    found = np.zeros(a.size + SLACK, np.float32)[: a.size]
    found[:] = a
    return found
