"""The same selector in a real Flower deployment. The only importer of flwr.

::

    from fedcohort.flower import CohortApp, CohortStrategy

    strategy = CohortStrategy(FedAvg(), selector="oort", cohort_size=10, deadline=120, state_dir="state")
    app = CohortApp(outputs=outputs)          # instead of ClientApp()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports
from fedcohort.errors import MissingExtra

if TYPE_CHECKING:
    from fedcohort.flower.client.cohort_app import CohortApp as CohortApp
    from fedcohort.flower.client.measurement import Outputs as Outputs
    from fedcohort.flower.server.strategy import CohortStrategy as CohortStrategy
    from fedcohort.flower.train_instructions import SUPPORTED as SUPPORTED
    from fedcohort.flower.train_instructions import instructions as instructions
else:
    __getattr__, __dir__, __all__ = exports(__name__, MissingExtra.instead_of)
