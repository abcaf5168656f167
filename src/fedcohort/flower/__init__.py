"""The same selector in a real Flower deployment. The only importer of flwr.

::

    from fedcohort.flower import CohortApp, CohortStrategy

    strategy = CohortStrategy(FedAvg(), selector="oort", cohort_size=10, deadline=120, state_dir="state")
    app = CohortApp(outputs=outputs)          # in place of ClientApp()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedcohort.errors import MissingExtra

if TYPE_CHECKING:
    from fedcohort.flower.client.cohort_app import CohortApp
    from fedcohort.flower.client.measurement import Outputs
    from fedcohort.flower.server.strategy import CohortStrategy
    from fedcohort.flower.train_instructions import SUPPORTED, instructions

__all__ = ["SUPPORTED", "CohortApp", "CohortStrategy", "Outputs", "instructions"]

_PLACES = {
    "SUPPORTED": "train_instructions",
    "CohortApp": "client.cohort_app",
    "CohortStrategy": "server.strategy",
    "Outputs": "client.measurement",
    "instructions": "train_instructions",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import fedcohort.flower` needs no flwr."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"fedcohort.flower.{_PLACES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise MissingExtra.of(f"fedcohort.flower.{name}", "flower") from None
    return getattr(module, name)
