"""Ledger, eq. 6: how long a client is expected to take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float32]
PRIOR = 1.0  # observations that the prior counts for


def log_seconds(total: Column, heard: Column, profile: NDArray[Any] | None) -> Column:
    """The shrunken mean of each client's log-seconds, from their sum and number.

    The prior is the profile times a factor that fits everybody's durations best, or the mean where there is none.
    """
    count = float(heard.sum(dtype=np.float64))
    mean = float(total.sum(dtype=np.float64)) / max(count, 1.0)
    if profile is None:
        prior = np.full(heard.size, mean, np.float32)
    else:
        prior = _log(profile)
        prior += np.float32(mean - float(heard @ prior) / count) if count > 0 else np.float32(0)
    prior *= np.float32(PRIOR)
    prior += total
    prior /= heard + np.float32(PRIOR)
    return prior


def _log(profile: NDArray[Any]) -> Column:
    """ln of the profile; its mean where that is not a number."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        out: Column = np.log(np.asarray(profile, np.float32))
    known = np.isfinite(out)
    if not known.all():
        out[~known] = out[known].mean() if known.any() else 0.0
    return out
