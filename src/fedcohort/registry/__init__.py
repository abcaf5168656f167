"""Names to objects: the explicit catalogue and entry points of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.registry.catalogue import CatalogueEntry as CatalogueEntry
    from fedcohort.registry.lookup import entry as entry
    from fedcohort.registry.lookup import load as load
    from fedcohort.registry.lookup import make_method as make_method
    from fedcohort.registry.lookup import make_selector as make_selector
    from fedcohort.registry.lookup import make_task_spec as make_task_spec
    from fedcohort.registry.lookup import make_world_spec as make_world_spec
    from fedcohort.registry.lookup import names as names
else:
    __getattr__, __dir__, __all__ = exports(__name__)
