"""Where engines keep what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$FEDCOHORT_CACHE, or ~/.cache/fedcohort. It may be deleted at any time."""
    return Path(os.environ.get("FEDCOHORT_CACHE") or Path.home() / ".cache" / "fedcohort")
