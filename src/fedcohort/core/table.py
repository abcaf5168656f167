"""Per-client state as columns. A table grows with the population, and is saved and loaded as plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class TableError(ValueError):
    """Saved arrays do not fit the table."""


def column(default: float | int | bool, dtype: DTypeLike = np.float32, *, width: int | None = None) -> Any:
    """A column with one entry (or `width` entries) per client; new clients start at `default`.

    >>> @dataclass
    ... class Seen(Table):
    ...     times: NDArray[np.int64] = column(0, np.int64)
    ...     scores: NDArray[np.float32] = column(np.nan, width=2)
    >>> seen = Seen()
    >>> seen.grow(3)
    >>> seen.scores.shape
    (3, 2)
    """
    shape = (0,) if width is None else (0, width)
    return field(default_factory=lambda: np.full(shape, default, dtype), metadata={"column": True, "default": default})


def block(shape: tuple[int, ...], default: float = 0.0, dtype: DTypeLike = np.float64) -> Any:
    """A fixed-size array that is not per client (a matrix, a vector of weights).

    >>> @dataclass
    ... class Gram(Table):
    ...     a: NDArray[np.float64] = block((2, 2))
    >>> Gram().a.tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return field(default_factory=lambda: np.full(shape, default, dtype), metadata={"block": True})


def ragged(dtype: DTypeLike = np.float64, ndim: int = 1) -> Any:
    """An array that is not per client and whose length may change (a history, a buffer).

    >>> @dataclass
    ... class Past(Table):
    ...     rewards: NDArray[np.float64] = ragged()
    >>> Past(np.array([0.5])).to_arrays()
    {'rewards': array([0.5])}
    """
    return field(default_factory=lambda: np.empty((0,) * ndim, dtype), metadata={"ragged": True})


@dataclass
class Table:
    """Base of selector states: columns (per client), blocks, ragged arrays, and plain float/int/bool scalars.

    >>> @dataclass
    ... class Asked(Table):
    ...     times: NDArray[np.int64] = column(0, np.int64)  # one entry per client
    ...     rounds: int = 0
    >>> asked = Asked()
    >>> asked.grow(3)
    >>> asked.times[[0, 2]] += 1
    >>> asked.to_arrays()
    {'times': array([1, 0, 1]), 'rounds': array(0)}
    """

    @property
    def rows(self) -> int:
        """How many clients the columns cover."""
        for f in dataclasses.fields(self):
            if f.metadata.get("column"):
                return int(getattr(self, f.name).shape[0])
        return 0

    def grow(self, population: int) -> None:
        """Make room for this many clients; never shrinks."""
        for f in dataclasses.fields(self):
            if not f.metadata.get("column"):
                continue
            old: NDArray[Any] = getattr(self, f.name)
            if old.shape[0] < population:
                new = np.full((population, *old.shape[1:]), f.metadata["default"], old.dtype)
                new[: old.shape[0]] = old
                setattr(self, f.name, new)

    def grow_for(self, clients: NDArray[np.int64]) -> None:
        """Make room for these clients."""
        self.grow(int(clients.max(initial=-1)) + 1)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Every field as an array (copies)."""
        return {f.name: np.array(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`to_arrays`. Refuses missing or unknown keys and other types or shapes, changing nothing."""
        names = {f.name for f in dataclasses.fields(self)}
        if names != set(arrays):
            missing, extra = sorted(names - set(arrays)), sorted(set(arrays) - names)
            raise TableError(f"saved state has other keys: missing {missing}, unknown {extra}")
        fresh = {f.name: self._checked(f, np.asarray(arrays[f.name])) for f in dataclasses.fields(self)}
        lengths = {
            fresh[f.name].shape[0] for f in dataclasses.fields(self) if f.metadata.get("column") and f.name in fresh
        }
        if len(lengths) > 1:
            raise TableError(f"columns of saved state have different lengths: {sorted(lengths)}")
        for name, value in fresh.items():
            setattr(self, name, value)

    def _checked(self, f: dataclasses.Field[Any], value: NDArray[Any]) -> Any:
        now = getattr(self, f.name)
        if isinstance(now, np.ndarray):
            wrong_shape = value.ndim != now.ndim
            if f.metadata.get("block"):
                wrong_shape = value.shape != now.shape
            elif f.metadata.get("column"):
                wrong_shape = wrong_shape or value.shape[1:] != now.shape[1:]
            if wrong_shape or value.dtype != now.dtype:
                raise TableError(
                    f"{f.name}: saved as {value.dtype}{value.shape}, expected {now.dtype}{now.shape} (rows may differ)"
                )
            return value.copy()
        if value.ndim != 0 or value.dtype.kind != np.asarray(now).dtype.kind:
            raise TableError(f"{f.name}: saved as {value.dtype}{value.shape}, expected one {type(now).__name__}")
        return type(now)(value.item())
