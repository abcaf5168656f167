"""Tables, figures and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.report.build import ReportFiles as ReportFiles
    from fedcohort.report.build import ReportOptions as ReportOptions
    from fedcohort.report.build import make_report as make_report
else:
    __getattr__, __dir__, __all__ = exports(__name__)
