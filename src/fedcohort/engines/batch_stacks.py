"""Mini-batches of many clients as index arrays: stacks of clients that step together.

Clients are stacked by the width of their batches, which is a function of the client alone: the batch size, or the
next power of two above a client that owns less. Short batches are padded and masked. So the arithmetic of a client
has the same shapes, hence the same bits, whoever else is in the cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.types import Index, Part

Order = Callable[[int, int, int], Index]  # (samples, client, epoch) -> positions 0 .. n - 1


@dataclass(frozen=True, slots=True)
class Stack:
    """Clients that step together, those with most steps first."""

    rows: Index  # (m,) positions in the clients that were asked for
    sample: Index  # (sum of n_i,) positions in part.index and part.label, client after client
    offset: Index  # (m + 1,) where each client's samples start in `sample`
    at: Index  # (m, T, B) positions in `sample`; padding repeats the client's first
    count: Index  # (m, T) real samples of each batch
    steps: Index  # (m,) batches of each client, descending
    first: Index  # (m,) batches of its first epoch

    def active(self, step: int) -> int:
        """How many clients still have a batch at this step."""
        return int(np.count_nonzero(self.steps > step))

    def valid(self, step: int, active: int) -> NDArray[np.bool_]:
        """(active, B): which places hold a real sample."""
        return np.arange(self.at.shape[2]) < self.count[:active, step, None]

    def share(self, step: int, active: int) -> NDArray[np.float32]:
        """(active, B): each place's weight in the mean over its batch, 0 for padding."""
        out: NDArray[np.float32] = self.valid(step, active).astype(np.float32)
        out /= self.count[:active, step, None].astype(np.float32)
        return out


def stacks(
    part: Part, clients: Index, batch_size: int, epochs: Index, order: Order, room: int = 1 << 18
) -> Iterator[Stack]:
    """Batches of these clients, those without a step left out; at most `room` samples step together."""
    sizes = part.sizes[clients]
    width = np.minimum(batch_size, _power_above(sizes))
    steps = epochs * -(-sizes // batch_size)
    for b in np.unique(width[steps > 0]):
        rows = np.flatnonzero((width == b) & (steps > 0))
        rows = rows[np.argsort(-steps[rows], kind="stable")]
        block = max(1, room // int(b))
        for k in range(0, rows.size, block):
            yield _stack(part, clients, rows[k : k + block], int(b), epochs, order)


def in_order(n: int, client: int, epoch: int) -> Index:
    """The samples as they are stored."""
    return np.arange(n)


def _power_above(sizes: Index) -> Index:
    return np.left_shift(1, np.ceil(np.log2(np.maximum(sizes, 8))).astype(np.int64))


def _stack(part: Part, clients: Index, rows: Index, width: int, epochs: Index, order: Order) -> Stack:
    sizes = part.sizes[clients[rows]]
    per_epoch = -(-sizes // width)
    steps = per_epoch * epochs[rows]
    offset = np.concatenate([[0], np.cumsum(sizes)])
    at = np.repeat(offset[:-1], int(steps[0]) * width).reshape(rows.size, int(steps[0]), width)
    count = np.zeros(at.shape[:2], np.int64)
    for i, (n, batches) in enumerate(zip(sizes.tolist(), per_epoch.tolist(), strict=True)):
        flat = at[i].reshape(-1)
        for epoch in range(int(epochs[rows[i]])):
            start = epoch * batches * width
            flat[start : start + n] += order(n, int(clients[rows[i]]), epoch)
            left = n - np.arange(batches) * width
            count[i, epoch * batches : (epoch + 1) * batches] = np.minimum(left, width)
    sample = np.concatenate([np.arange(part.start[k], part.start[k + 1]) for k in clients[rows]])
    return Stack(rows, sample, offset, at, count, steps, per_epoch)
