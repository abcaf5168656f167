"""A Flower project and a loopback deployment to try things with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.flower.dev.deployment import Deployment as Deployment
    from fedcohort.flower.dev.project import write_project as write_project
else:
    __getattr__, __dir__, __all__ = exports(__name__)
