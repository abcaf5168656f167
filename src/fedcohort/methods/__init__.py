"""One aggregation method per file: client half and server half together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.methods.base import MethodBase as MethodBase
    from fedcohort.methods.cmfl import CMFL as CMFL
    from fedcohort.methods.fedavg import FedAvg as FedAvg
    from fedcohort.methods.fedavgm import FedAvgM as FedAvgM
    from fedcohort.methods.fedbio import FedBiO as FedBiO
    from fedcohort.methods.fedbuff import FedBuff as FedBuff
    from fedcohort.methods.fedca import FedCA as FedCA
    from fedcohort.methods.feddf import FedDF as FedDF
    from fedcohort.methods.feddyn import FedDyn as FedDyn
    from fedcohort.methods.fednova import FedNova as FedNova
    from fedcohort.methods.fedopt import FedAdagrad as FedAdagrad
    from fedcohort.methods.fedopt import FedAdam as FedAdam
    from fedcohort.methods.fedopt import FedYogi as FedYogi
    from fedcohort.methods.fedpdp import FedPdp as FedPdp
    from fedcohort.methods.fedprox import FedProx as FedProx
    from fedcohort.methods.geometric_median import GeometricMedian as GeometricMedian
    from fedcohort.methods.krum import Krum as Krum
    from fedcohort.methods.krum import MultiKrum as MultiKrum
    from fedcohort.methods.median import Median as Median
    from fedcohort.methods.norm_clip import NormClip as NormClip
    from fedcohort.methods.rhfl import RHFL as RHFL
    from fedcohort.methods.scaffold import Scaffold as Scaffold
    from fedcohort.methods.trimmed_mean import TrimmedMean as TrimmedMean
else:
    __getattr__, __dir__, __all__ = exports(__name__)
