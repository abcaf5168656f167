"""Named arrays under a prefix: how the states of several parts share one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """The arrays under a prefix, without it.

    >>> sorted(part({"a.x": np.ones(1), "b": np.ones(1)}, "a."))
    ['x']
    """
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def prefixed(prefix: str, arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Inverse of :func:`part`."""
    return {prefix + k: np.asarray(v) for k, v in arrays.items()}


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
