"""Configurations, runs and their store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.experiment.api import simulate as simulate
    from fedcohort.experiment.api import task_from as task_from
    from fedcohort.experiment.config import RunConfig as RunConfig
    from fedcohort.experiment.metrics.comparison import Comparison as Comparison
    from fedcohort.experiment.metrics.comparison import compare as compare
    from fedcohort.experiment.runs import RunResult as RunResult
    from fedcohort.experiment.runs import build as build
    from fedcohort.experiment.runs import read as read
    from fedcohort.experiment.runs import resume as resume
    from fedcohort.experiment.runs import run as run
    from fedcohort.experiment.store import Store as Store
    from fedcohort.experiment.store import StoredRun as StoredRun
    from fedcohort.experiment.sweep import Sweep as Sweep
    from fedcohort.experiment.sweep import SweepOutcome as SweepOutcome
    from fedcohort.experiment.sweep import run_sweep as run_sweep
    from fedcohort.experiment.verification import Verified as Verified
    from fedcohort.experiment.verification import verify as verify
else:
    __getattr__, __dir__, __all__ = exports(__name__)
