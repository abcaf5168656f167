"""A report in other formats, and writers for TensorBoard and MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.report.export.writers import MLflow as MLflow
    from fedcohort.report.export.writers import TensorBoard as TensorBoard
    from fedcohort.report.export.writers import Writers as Writers
else:
    __getattr__, __dir__, __all__ = exports(__name__)
