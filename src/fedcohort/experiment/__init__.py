"""Configurations, runs and their store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.experiment.api import simulate as simulate
    from fedcohort.experiment.api import task_from as task_from
    from fedcohort.experiment.config import RunConfig as RunConfig
    from fedcohort.experiment.metrics.compare import Comparison as Comparison
    from fedcohort.experiment.metrics.compare import compare as compare
    from fedcohort.experiment.run import RunResult as RunResult
    from fedcohort.experiment.run import build as build
    from fedcohort.experiment.run import resume as resume
    from fedcohort.experiment.store import Store as Store
    from fedcohort.experiment.store import StoredRun as StoredRun
    from fedcohort.experiment.sweep import Sweep as Sweep
    from fedcohort.experiment.sweep import SweepOutcome as SweepOutcome
    from fedcohort.experiment.sweep import run_sweep as run_sweep
else:
    __getattr__, __dir__, __all__ = exports(
        __name__,
        {
            "api": ("simulate", "task_from"),
            "config": ("RunConfig",),
            "run": ("RunResult", "build", "resume"),
            "store": ("Store", "StoredRun"),
            "sweep": ("Sweep", "SweepOutcome", "run_sweep"),
            "metrics.compare": ("Comparison", "compare"),
        },
    )
