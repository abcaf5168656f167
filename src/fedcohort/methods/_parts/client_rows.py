"""One row of numbers per client that was ever written, and nothing for the others.

SCAFFOLD and FedDyn keep a vector as long as the model for every client. Rows are made when a client is first written,
in blocks that double; above a memory limit they live in an unlinked temporary file that the system maps into memory
and removes by itself. Beside the rows the weighted sum over all clients is kept, so that

    total = sum_k weight_k row_k

holds after every write, however rarely a client comes back and however the population grows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import TableError
from fedcohort.errors import StateMismatch
from fedcohort.methods.base import Double, sized
from fedcohort.types import Arrays, Index, Mask

Rows = NDArray[np.float32]
SAVED = {"slots": "int64 1", "rows": "float32 2", "weights": "float64 1", "total": "float64 1", "mass": "float64 0"}
_FIRST = 16  # rows allocated at first
_LARGEST = float(np.finfo(np.float32).max)


class ClientRows:
    """A sparse (clients, p) float32 matrix with a running weighted sum. Unwritten clients read as zero."""

    def __init__(self, name: str, *, memory_limit: int, folder: str | None) -> None:
        self.name, self.memory_limit, self.folder = name, memory_limit, folder
        self.mass = 0.0  # what `total` is divided by for the mean over the population
        self._forget()

    def _forget(self) -> None:
        self.total: Double = np.empty(0)
        self._rows: Rows = np.empty((0, 0), np.float32)
        self._slots: Index = np.empty(0, np.int64)  # slot of each row
        self._weights: Double = np.empty(0)  # weight of each row
        self._where: Index = np.empty(0, np.int64)  # row of each slot, -1 where there is none
        self._used = 0

    @property
    def spilled(self) -> bool:
        """Whether the rows live on disk."""
        return isinstance(self._rows, np.memmap)

    def mean(self, width: int) -> Double:
        """total / mass: zero before the first write."""
        total = sized(self.total, width, self.name)
        return total / self.mass if self.mass > 0 else np.zeros(width)

    def mean_written(self, width: int) -> Double:
        """total over the weights of the rows that exist: zero before the first write."""
        total, mass = sized(self.total, width, self.name), float(self._weights[: self._used].sum())
        return total / mass if mass > 0 else np.zeros(width)

    def written(self, clients: Index) -> Mask:
        """Which of these clients have a row."""
        return self._find(np.asarray(clients, np.int64)) >= 0

    def read(self, clients: Index, width: int) -> Rows:
        """The rows of these clients, zero for those never written."""
        sized(self.total, width, self.name)
        out = np.zeros((clients.size, width), np.float32)
        at = self._find(clients)
        for i in np.flatnonzero(at >= 0):
            out[i] = self._rows[at[i]]
        return out

    def write(self, clients: Index, rows: Rows, weights: Double) -> None:
        """Replace the rows and weights of these (distinct) clients, and move the sum along."""
        total = sized(self.total, rows.shape[1], self.name).copy()
        self._make_room(clients, rows.shape[1])
        for at, row, weight in zip(self._find(clients), rows, weights, strict=True):
            total += weight * row.astype(np.float64) - self._weights[at] * self._rows[at].astype(np.float64)
            self._rows[at], self._weights[at] = row, weight
        self.total = total

    @staticmethod
    def cast(row: Double) -> Rows:
        """The row in the type that is kept; what that cannot hold becomes NaN."""
        return np.where(np.abs(row) < _LARGEST, row, np.nan).astype(np.float32)

    def to_arrays(self) -> Arrays:
        """Only what was written, as (slots, rows), in slot order. On disk where the rows are."""
        order = np.argsort(self._slots[: self._used], kind="stable")
        rows = self._allocate(self._used, self._rows.shape[1])
        for to, at in enumerate(order):
            rows[to] = self._rows[at]
        return {
            "slots": self._slots[order],
            "weights": self._weights[order],
            "total": self.total.copy(),
            "mass": np.array(self.mass),
            "rows": rows,
        }

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`to_arrays`; refuses what does not fit and then changes nothing."""
        found = {key: np.asanyarray(value) for key, value in arrays.items()}
        forms = {key: f"{value.dtype} {value.ndim}" for key, value in found.items()}
        if forms != SAVED:
            raise TableError(f"keys, types and axes are {forms}, expected {SAVED}")
        slots, rows, weights, total = (found[key] for key in ("slots", "rows", "weights", "total"))
        if not slots.size == rows.shape[0] == weights.size:
            raise TableError("slots, rows and weights differ in length")
        if (np.diff(slots) <= 0).any() or (slots < 0).any():
            raise TableError("slots are not in ascending order from 0")
        if slots.size and rows.shape[1] != total.size:
            raise TableError("rows and total differ in width")
        self._forget()
        if slots.size:
            self._make_room(slots, rows.shape[1])
            self._rows[: slots.size] = rows
            self._weights[: slots.size] = weights
        self.total, self.mass = total.copy(), float(found["mass"])

    def _find(self, clients: Index) -> Index:
        """Row of each client, -1 where there is none."""
        inside = (clients >= 0) & (clients < self._where.size)
        if self._where.size == 0:
            return np.full(clients.size, -1, np.int64)
        return np.where(inside, self._where[np.where(inside, clients, 0)], -1)

    def _make_room(self, clients: Index, width: int) -> None:
        """Give every new client a row of zeros with weight zero."""
        if self._used and self._rows.shape[1] != width:
            raise StateMismatch(
                f"rows of {width} numbers", f"{self.name} keeps {self._rows.shape[1]}", "use a fresh method"
            )
        fresh = np.unique(clients[self._find(clients) < 0])
        need = self._used + fresh.size
        if need > self._slots.size or self._rows.shape[1] != width:
            self._grow(max(need, 2 * self._slots.size, _FIRST), width)
        top = int(clients.max(initial=-1)) + 1
        if top > self._where.size:
            self._where = np.concatenate([self._where, np.full(top - self._where.size, -1, np.int64)])
        self._slots[self._used : need] = fresh
        self._where[fresh] = np.arange(self._used, need)
        self._used = need

    def _grow(self, capacity: int, width: int) -> None:
        rows = self._allocate(capacity, width)
        for at in range(self._used):
            rows[at] = self._rows[at]
        self._rows = rows
        self._slots = np.concatenate([self._slots, np.full(capacity - self._slots.size, -1, np.int64)])
        self._weights = np.concatenate([self._weights, np.zeros(capacity - self._weights.size)])

    def _allocate(self, count: int, width: int) -> Rows:
        """Zeros in memory, or in a temporary file when they would not fit under the limit."""
        size = count * width * 4
        if size <= self.memory_limit or size == 0:
            return np.zeros((count, width), np.float32)
        with tempfile.TemporaryFile(dir=self.folder, prefix="fedcohort-rows-") as file:
            return np.memmap(file, np.float32, "w+", shape=(count, width))


def finite_rows(rows: Rows) -> Mask:
    """Which rows hold nothing but finite numbers."""
    return np.asarray(np.isfinite(rows).all(axis=1), np.bool_)
