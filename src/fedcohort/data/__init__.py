"""Files to arrays: datasets, formats, downloads, splits. No model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.data.dataset import Dataset as Dataset
    from fedcohort.data.dataset import Status as Status
    from fedcohort.data.dataset import available as available
    from fedcohort.data.dataset import load as load
else:
    __getattr__, __dir__, __all__ = exports(__name__)
