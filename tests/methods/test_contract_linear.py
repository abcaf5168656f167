"""The shipped contract over the methods of this file's half of the catalogue, with their options."""

from collections.abc import Callable

import pytest

from fedcohort.methods.fedavg import FedAvg
from fedcohort.methods.fedavgm import FedAvgM
from fedcohort.methods.fedbuff import FedBuff
from fedcohort.methods.feddyn import FedDyn
from fedcohort.methods.fednova import FedNova
from fedcohort.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fedcohort.methods.fedpdp import FedPdp
from fedcohort.methods.fedprox import FedProx
from fedcohort.methods.geometric_median import GeometricMedian
from fedcohort.methods.krum import Krum, MultiKrum
from fedcohort.methods.median import Median
from fedcohort.methods.norm_clip import NormClip
from fedcohort.methods.scaffold import Scaffold
from fedcohort.methods.trimmed_mean import TrimmedMean
from fedcohort.protocols import Method
from fedcohort.testing import MethodContract

CASES: dict[str, Callable[[], Method]] = {
    "fedavg": FedAvg,
    "fedavg-original": lambda: FedAvg(form="original"),
    "fedavg-uniform": lambda: FedAvg(form="uniform"),
    "fedprox": FedProx,
    "fedprox-uniform": lambda: FedProx(form="uniform", mu=1.0),
    "fedpdp": FedPdp,
    "fedpdp-model": lambda: FedPdp(form="model"),
    "fedpdp-normalised": lambda: FedPdp(form="normalised"),
    "fedpdp-uniform-design": lambda: FedPdp(unknown="uniform"),
    "fednova": FedNova,
    "fednova-prox": lambda: FedNova(mu=0.5, tau_eff="steps"),
    "scaffold": Scaffold,
    "scaffold-I": lambda: Scaffold(option="I"),
    "scaffold-data": lambda: Scaffold(weighting="data"),
    "scaffold-spilled": lambda: Scaffold(memory_limit=0),
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "feddyn": FedDyn,
    "feddyn-spilled": lambda: FedDyn(memory_limit=0),
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "geometric-median": GeometricMedian,
    "geometric-median-data": lambda: GeometricMedian(weighting="data"),
    "norm-clip": NormClip,
    "norm-clip-fixed": lambda: NormClip(bound=0.5),
    "fedbuff": FedBuff,
    "fedbuff-1": lambda: FedBuff(size=1),
    "fedbuff-data": lambda: FedBuff(size=3, weighting="data", normalise=True),
    "fedavg-server-keep": lambda: FedAvg(buffers="server_keep"),
    "median-server-keep": lambda: Median(buffers="server_keep"),
}


class TestContract(MethodContract):
    @pytest.fixture(autouse=True, params=sorted(CASES))
    def case(self, request: pytest.FixtureRequest) -> None:
        self.build = CASES[request.param]

    def make(self) -> Method:
        return self.build()
