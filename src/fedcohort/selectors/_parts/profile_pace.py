"""Expected and measured seconds in one unit: a profile is of one pass with a nominal model, a duration of real work."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def profile_factor(seconds: NDArray[Any], profile: NDArray[Any]) -> np.float32:
    """What the profile is multiplied by to fit the durations: the median ratio; 1 before the first was measured.

    `seconds` may be shorter than the profile; negative ones were never measured.

    >>> float(profile_factor(np.array([-1.0, 10.0, 15.0]), np.array([1.0, 2.0, 3.0, 9.0])))
    5.0
    """
    n = min(seconds.size, profile.size)
    took, said = np.asarray(seconds[:n], np.float64), np.asarray(profile[:n], np.float64)
    known = np.isfinite(took) & np.isfinite(said) & (took > 0) & (said > 0)
    return np.float32(np.median(took[known] / said[known])) if known.any() else np.float32(1.0)
