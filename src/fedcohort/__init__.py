"""fedcohort chooses who trains next: client selection for federated learning.

Everything here loads on first use; `import fedcohort` itself needs NumPy only.

    simulate(...)       run any selector x method x world x task on this machine
    Session             a selector at work, for your own loop: ask, tell, close
    make_selector(...)  "oort(explore=0.8)" to an object; also make_method
    Dataset, task_from  your own arrays as a task
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_LAZY = {
    "Session": "fedcohort.rounds.session",
    "make_selector": "fedcohort.registry.lookup",
    "make_method": "fedcohort.registry.lookup",
    "simulate": "fedcohort.experiment.api",
    "task_from": "fedcohort.experiment.api",
    "Dataset": "fedcohort.data.dataset",
    "Cohort": "fedcohort.types",
    "Outcome": "fedcohort.types",
    "Round": "fedcohort.types",
    "RoundResult": "fedcohort.types",
    "Signals": "fedcohort.types",
}

__all__ = [
    "Cohort",
    "Dataset",
    "Outcome",
    "Round",
    "RoundResult",
    "Session",
    "Signals",
    "__version__",
    "make_method",
    "make_selector",
    "simulate",
    "task_from",
]

if TYPE_CHECKING:
    from fedcohort.data.dataset import Dataset
    from fedcohort.experiment.api import simulate, task_from
    from fedcohort.registry.lookup import make_method, make_selector
    from fedcohort.rounds.session import Session
    from fedcohort.types import Cohort, Outcome, Round, RoundResult, Signals


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fedcohort' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
