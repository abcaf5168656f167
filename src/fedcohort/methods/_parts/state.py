"""Saved server state: keys carry the method's name, and what does not fit is refused before anything changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import StateMismatch
from fedcohort.methods.base import Double
from fedcohort.types import Arrays

Shape = tuple[str, int]  # (dtype, number of axes)


def label(name: str, arrays: Mapping[str, Any]) -> Arrays:
    """Copies of these arrays under keys that say whose they are."""
    return {f"{name}.{key}": np.array(value) for key, value in arrays.items()}


def unlabel(name: str, arrays: Mapping[str, NDArray[Any]], shapes: Mapping[str, Shape]) -> Arrays:
    """The arrays under their short keys, checked for keys, types and number of axes. Not copied."""
    expected = {f"{name}.{key}" for key in shapes}
    if set(arrays) != expected:
        missing, extra = sorted(expected - set(arrays)), sorted(set(arrays) - expected)
        raise StateMismatch(
            f"state for {name}", f"missing {missing}, unknown {extra}", "load it into the method that wrote it"
        )
    found = {}
    for key, (dtype, axes) in shapes.items():
        value = np.asanyarray(arrays[f"{name}.{key}"])
        if value.dtype != np.dtype(dtype) or value.ndim != axes:
            raise StateMismatch(
                f"{name}.{key} of type {value.dtype} with {value.ndim} axes",
                f"{dtype} with {axes} axes is expected",
                "load a state that this version wrote",
            )
        found[key] = value
    return found


def require(ok: bool, name: str, rule: str) -> None:
    """Raise :class:`StateMismatch` unless `ok`."""
    if not ok:
        raise StateMismatch(f"state for {name}", rule, "load a state that this version wrote")


def sized(vector: Double, size: int, name: str, fill: float = 0.0) -> Double:
    """The vector, or a fresh one where there is none yet; refuses a model of another size."""
    if vector.size == 0:
        return np.full(size, fill, np.float64)
    if vector.size != size:
        raise StateMismatch(
            f"a model of {size} parameters",
            f"the state of {name} is for {vector.size}",
            "use a fresh method for another model",
        )
    return vector
