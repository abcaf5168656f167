"""Rows of buffers that can be computed with. Constants such as attention masks may be infinite, as they were sent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def sound_rows(rows: NDArray[Any], sent: NDArray[Any] | None = None) -> NDArray[np.bool_]:
    """Which rows are finite wherever they differ from what was sent; NaN is never sound.

    >>> sound_rows(np.array([[0.0, -np.inf], [-np.inf, -np.inf], [0.0, np.nan]]), np.array([1.0, -np.inf])).tolist()
    [True, False, False]
    """
    fine = np.isfinite(rows)
    if sent is not None and sent.shape == rows.shape[1:] and not fine.all():
        fine |= rows == sent
    found: NDArray[np.bool_] = fine.all(axis=1)
    return found


def finite_or(made: NDArray[Any], sent: NDArray[Any]) -> NDArray[Any]:
    """The values that were made, and where they are not finite those that were sent.

    >>> finite_or(np.array([2.0, np.nan]), np.array([1.0, -np.inf])).tolist()
    [2.0, -inf]
    """
    fine = np.isfinite(made)
    return made if fine.all() else np.where(fine, made, sent)
