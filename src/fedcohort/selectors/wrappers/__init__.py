"""Around any selector: warm-up, exploration, quotas, floors, caps, cool-down, blocklist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.selectors.wrappers.base import Wrapper as Wrapper
    from fedcohort.selectors.wrappers.blocklist import Blocklist as Blocklist
    from fedcohort.selectors.wrappers.cool_down import CoolDown as CoolDown
    from fedcohort.selectors.wrappers.explore import Explore as Explore
    from fedcohort.selectors.wrappers.floor import Floor as Floor
    from fedcohort.selectors.wrappers.probability_cap import ProbabilityCap as ProbabilityCap
    from fedcohort.selectors.wrappers.quota import Quota as Quota
    from fedcohort.selectors.wrappers.warm_up import WarmUp as WarmUp
else:
    __getattr__, __dir__, __all__ = exports(__name__)
