"""Pictures with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.report.plots.curve_axes import plot_curves as plot_curves
    from fedcohort.report.plots.curve_axes import plot_metric as plot_metric
    from fedcohort.report.plots.curve_axes import plot_participation as plot_participation
    from fedcohort.report.plots.map_axes import plot_cohorts as plot_cohorts
    from fedcohort.report.plots.skew_picture import draw_skew as draw_skew
    from fedcohort.report.plots.world_picture import draw_world as draw_world
else:
    __getattr__, __dir__, __all__ = exports(__name__)
