"""The simulator: federation, virtual clock and the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.sim.federation import Federation as Federation
    from fedcohort.sim.run_settings import RunSettings as RunSettings
    from fedcohort.sim.simulation import Simulation as Simulation
else:
    __getattr__, __dir__, __all__ = exports(__name__)
