"""One paper or idea per file: who trains next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.selectors.afl import AFL as AFL
    from fedcohort.selectors.base import StatefulSelector as StatefulSelector
    from fedcohort.selectors.clustered import Clustered as Clustered
    from fedcohort.selectors.divfl import DivFL as DivFL
    from fedcohort.selectors.epsilon_greedy import EpsilonGreedy as EpsilonGreedy
    from fedcohort.selectors.favor import Favor as Favor
    from fedcohort.selectors.fedacs import FedACS as FedACS
    from fedcohort.selectors.fedacs import skewness as skewness
    from fedcohort.selectors.fedcm import FedCMTS as FedCMTS
    from fedcohort.selectors.fedcm import FedCMUCB as FedCMUCB
    from fedcohort.selectors.fedcor import FedCor as FedCor
    from fedcohort.selectors.fedcs import FedCS as FedCS
    from fedcohort.selectors.feel import Feel as Feel
    from fedcohort.selectors.flash import Flash as Flash
    from fedcohort.selectors.flash_rl import FlashRL as FlashRL
    from fedcohort.selectors.hetero_select import HeteroSelect as HeteroSelect
    from fedcohort.selectors.ledger import Ledger as Ledger
    from fedcohort.selectors.linucb import LinUCB as LinUCB
    from fedcohort.selectors.neural_bandit import NeuralBandit as NeuralBandit
    from fedcohort.selectors.oort import Oort as Oort
    from fedcohort.selectors.power_of_choice import PowerOfChoice as PowerOfChoice
    from fedcohort.selectors.proportional import Proportional as Proportional
    from fedcohort.selectors.pyramidfl import PyramidFL as PyramidFL
    from fedcohort.selectors.restless_bandit import RestlessBandit as RestlessBandit
    from fedcohort.selectors.rexp3 import Rexp3 as Rexp3
    from fedcohort.selectors.round_robin import RoundRobin as RoundRobin
    from fedcohort.selectors.tifl import Tifl as Tifl
    from fedcohort.selectors.ucb1 import UCB1 as UCB1
    from fedcohort.selectors.uniform import Uniform as Uniform
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
