"""How skewed are the clients, without seeing their data: FedACS on its own, with no training job around it.

    from fedcohort.skew import rank_clients
    report = rank_clients("digits-mlp", "fedacs-uniform-v1", rounds=30)
    report.best(0.4)                      # the 40 % whose data look most like everybody's
    print(report.statement())             # what Hoeffding's inequality lets one say about it

Your own arrays: `rank_clients(Dataset.from_arrays(x, y, client))`. Insights that you collected yourself:
`skewness(insights, samples)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.selectors.fedacs import skewness as skewness
    from fedcohort.skew.confidence import comparisons_needed as comparisons_needed
    from fedcohort.skew.confidence import confidence_of as confidence_of
    from fedcohort.skew.confidence import radius as radius
    from fedcohort.skew.ranking import measure as measure
    from fedcohort.skew.ranking import rank_clients as rank_clients
    from fedcohort.skew.skew_report import SkewReport as SkewReport
else:
    __getattr__, __dir__, __all__ = exports(__name__)
