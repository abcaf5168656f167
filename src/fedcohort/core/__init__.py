"""Array kernels that know no federated-learning noun. NumPy only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.core.constraints import Choice as Choice
    from fedcohort.core.constraints import Count as Count
    from fedcohort.core.constraints import CountOrZero as CountOrZero
    from fedcohort.core.constraints import Either as Either
    from fedcohort.core.constraints import Factor as Factor
    from fedcohort.core.constraints import Finite as Finite
    from fedcohort.core.constraints import Interval as Interval
    from fedcohort.core.constraints import NotNegative as NotNegative
    from fedcohort.core.constraints import Positive as Positive
    from fedcohort.core.constraints import Share as Share
    from fedcohort.core.rng import generator as generator
    from fedcohort.core.table import Table as Table
    from fedcohort.core.table import block as block
    from fedcohort.core.table import column as column
    from fedcohort.core.table import ragged as ragged
else:
    __getattr__, __dir__, __all__ = exports(__name__)
