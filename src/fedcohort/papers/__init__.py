"""The papers' tables and figures, one file each, by id such as "flash:table1-noise"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.papers.catalogue import chosen as chosen
    from fedcohort.papers.catalogue import studies as studies
    from fedcohort.papers.study import Cell as Cell
    from fedcohort.papers.study import Claim as Claim
    from fedcohort.papers.study import Quantity as Quantity
    from fedcohort.papers.study import Study as Study
else:
    __getattr__, __dir__, __all__ = exports(__name__)
