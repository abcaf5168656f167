"""What runs were worth, and which of two is better: statistics and comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.experiment.metrics.comparison import Comparison as Comparison
    from fedcohort.experiment.metrics.comparison import compare as compare
    from fedcohort.experiment.metrics.stored_metrics import RunRecord as RunRecord
else:
    __getattr__, __dir__, __all__ = exports(__name__)
