"""Inputs and targets of any kind as plain arrays: NumPy, tensors, lists of rows of different length, torch datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DataError
from fedcohort.types import Array, Index

IGNORED = -100  # a whole-number target of this value is left out of the loss
BINS = 10  # groups of a real-valued target, for worlds that divide by label


def inputs_of(given: Any) -> Array:
    """Samples as float32, or as int64 (tokens); images of bytes become numbers from 0 to 1."""
    x = _rectangular("x", given, fill=0)
    if x.ndim < 2:
        raise DataError(f"x of shape {x.shape}", "samples have at least one axis of their own", "give (n, features)")
    if x.dtype.kind == "u" and x.dtype.itemsize == 1 and x.ndim == 4:
        return x.astype(np.float32) / np.float32(255)
    x = x.astype(np.float32 if x.dtype.kind in "fb" else np.int64)
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise DataError(f"x[{row}]", "it holds NaN or infinity", "drop or repair the sample")
    return x


def targets_of(given: Any) -> Array:
    """Targets as float32, int64 or bool; shorter rows are filled with NaN or IGNORED."""
    y = _rectangular("y", given, fill=None)
    return y if y.dtype.kind == "b" else y.astype(np.float32 if y.dtype.kind == "f" else np.int64)


def pair_of(data: Any) -> tuple[Any, Any]:
    """(x, y) of a pair, or of a torch dataset that yields pairs."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data[0], data[1]
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (str, np.ndarray, dict)):
        rows = [data[i] for i in range(len(data))]
        if rows and all(isinstance(row, (tuple, list)) and len(row) == 2 for row in rows):
            return [row[0] for row in rows], [row[1] for row in rows]
    raise DataError(
        f"data of type {type(data).__name__}",
        "a task learns from a Dataset, a pair (x, y), or a torch dataset of pairs",
        "give e.g. (x, y)",
    )


def groups_of(y: Array) -> Index:
    """A label of each target for worlds that divide by label: the class, the decile, the first of many."""
    if y.ndim == 1 and y.dtype.kind == "i":
        return y
    if y.dtype.kind == "b":
        return np.asarray(y.reshape(len(y), -1).argmax(axis=1), np.int64)
    if y.dtype.kind == "f" and y.size == len(y) and np.isfinite(y).all():
        flat = y.reshape(-1)
        edges = np.quantile(flat, np.linspace(0, 1, BINS + 1)[1:-1])
        return np.unique(np.searchsorted(edges, flat, side="right"), return_inverse=True)[1].astype(np.int64)
    return np.zeros(len(y), np.int64)


def _rectangular(name: str, given: Any, fill: float | None) -> Array:
    """One array of plain numbers; rows of different length are filled up (None: with NaN or IGNORED)."""
    if hasattr(given, "detach"):
        given = given.detach().cpu().numpy()
    if isinstance(given, (list, tuple)):
        given = _stacked(name, [np.asarray(row.cpu() if hasattr(row, "cpu") else row) for row in given], fill)
    out: NDArray[Any] = np.asarray(given)
    if out.dtype.kind not in "biuf":
        raise DataError(f"{name} of dtype {out.dtype}", "it must hold plain numbers", "convert it")
    if not len(out):
        raise DataError(f"{name} of shape {out.shape}", "there must be at least one sample", "give some samples")
    return out


def _stacked(name: str, rows: list[Array], fill: float | None) -> Array:
    shapes = {row.shape for row in rows}
    if len(shapes) <= 1:
        return np.array(rows)
    if len({(len(s), s[1:]) for s in shapes}) > 1 or min(len(s) for s in shapes) == 0:
        raise DataError(name, "its rows differ in more than their length", "give every row the same number of axes")
    kind = np.result_type(*rows)
    value = fill if fill is not None else (np.nan if kind.kind == "f" else IGNORED)
    kind = np.dtype(np.int64) if kind.kind in "bu" and fill is None else kind
    out = np.full((len(rows), max(s[0] for s in shapes), *rows[0].shape[1:]), value, kind)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
