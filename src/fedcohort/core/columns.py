"""Named arrays under a prefix: how the states of several parts share one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MANY = 4096  # clients; a shorter list is written as it is


def part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """The arrays under a prefix, without it.

    >>> sorted(part({"a.x": np.ones(1), "b": np.ones(1)}, "a."))
    ['x']
    """
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def prefixed(prefix: str, arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Inverse of :func:`part`."""
    return {prefix + k: np.asarray(v) for k, v in arrays.items()}


def pack_slots(slots: NDArray[np.int64], population: int) -> NDArray[Any]:
    """Ascending slots as they are, or one bit for each of the population where that is shorter and there are many.

    A list of nine tenths of a million clients has seven megabytes, the bits an eighth of one.

    >>> pack_slots(np.arange(3), 10).tolist(), pack_slots(np.arange(9_000), 10_000).nbytes
    ([0, 1, 2], 1250)
    """
    if population < _MANY or slots.nbytes <= population // 8:
        return slots
    there = np.zeros(population, np.bool_)
    there[slots] = True
    return np.packbits(there)


def unpack_slots(packed: NDArray[Any], population: int) -> NDArray[np.int64]:
    """Inverse of :func:`pack_slots`."""
    if packed.dtype != np.uint8:
        return packed.astype(np.int64, copy=False)
    return np.flatnonzero(np.unpackbits(packed, count=min(population, 8 * packed.size)))


def as_bytes(meta: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Plain values as an array, so that they can be part of a state.

    >>> from_bytes(as_bytes({"a": [1, "x"]}))
    {'a': [1, 'x']}
    """
    return np.frombuffer(json.dumps(meta, sort_keys=True).encode(), np.uint8)


def from_bytes(array: NDArray[Any]) -> dict[str, Any]:
    """Inverse of :func:`as_bytes`."""
    found: dict[str, Any] = json.loads(np.asarray(array, np.uint8).tobytes())
    return found
