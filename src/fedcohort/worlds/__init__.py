"""The heterogeneity: who owns which samples, how noisy, how fast, how often there. Data, not code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.worlds.availability import Always as Always
    from fedcohort.worlds.availability import Availability as Availability
    from fedcohort.worlds.availability import Bernoulli as Bernoulli
    from fedcohort.worlds.availability import FromTrace as FromTrace
    from fedcohort.worlds.availability import Markov as Markov
    from fedcohort.worlds.built_world import BuiltWorld as BuiltWorld
    from fedcohort.worlds.built_world import build_world as build_world
    from fedcohort.worlds.dirichlet import ClassDirichlet as ClassDirichlet
    from fedcohort.worlds.dirichlet import ClientDirichlet as ClientDirichlet
    from fedcohort.worlds.dirichlet import LayeredDirichlet as LayeredDirichlet
    from fedcohort.worlds.dirichlet import SelfBalancing as SelfBalancing
    from fedcohort.worlds.faults import Faults as Faults
    from fedcohort.worlds.given_latency import GivenLatency as GivenLatency
    from fedcohort.worlds.label_noise import BetaNoise as BetaNoise
    from fedcohort.worlds.label_noise import GivenNoise as GivenNoise
    from fedcohort.worlds.label_noise import Noise as Noise
    from fedcohort.worlds.label_noise import NoNoise as NoNoise
    from fedcohort.worlds.latency import Constant as Constant
    from fedcohort.worlds.latency import FixedExponential as FixedExponential
    from fedcohort.worlds.latency import FlashRLLatency as FlashRLLatency
    from fedcohort.worlds.latency import Latency as Latency
    from fedcohort.worlds.latency import Lognormal as Lognormal
    from fedcohort.worlds.latency import Pareto as Pareto
    from fedcohort.worlds.latency import Physical as Physical
    from fedcohort.worlds.latency import ShiftedExponential as ShiftedExponential
    from fedcohort.worlds.natural import LabelSkew as LabelSkew
    from fedcohort.worlds.natural import LabelsPerClient as LabelsPerClient
    from fedcohort.worlds.natural import Natural as Natural
    from fedcohort.worlds.natural import Shards as Shards
    from fedcohort.worlds.partition import Dominance as Dominance
    from fedcohort.worlds.partition import FewClass as FewClass
    from fedcohort.worlds.partition import FlashPartition as FlashPartition
    from fedcohort.worlds.partition import Iid as Iid
    from fedcohort.worlds.partition import Partition as Partition
    from fedcohort.worlds.partition import QuantitySkew as QuantitySkew
    from fedcohort.worlds.trace import Trace as Trace
    from fedcohort.worlds.trace import load_trace as load_trace
    from fedcohort.worlds.world_spec import Validation as Validation
    from fedcohort.worlds.world_spec import WorldSpec as WorldSpec
else:
    __getattr__, __dir__, __all__ = exports(__name__)
