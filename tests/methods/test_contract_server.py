"""The shipped contract over the methods that compute at the server, and over wrappers around other methods."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from linear_world import LinearEvaluator, planted

from fedcohort.methods.cmfl import CMFL
from fedcohort.methods.fedavgm import FedAvgM
from fedcohort.methods.fedbio import FedBiO
from fedcohort.methods.fedca import FedCA
from fedcohort.methods.feddf import FedDF
from fedcohort.methods.fednova import FedNova
from fedcohort.methods.fedpdp import FedPdp
from fedcohort.methods.fedprox import FedProx
from fedcohort.methods.rhfl import RHFL
from fedcohort.methods.scaffold import Scaffold
from fedcohort.protocols import Method
from fedcohort.testing import MethodContract

X, Y, _ = planted(np.random.default_rng(0), 60, 4, 3)
EVALUATOR = LinearEvaluator(4, 3, validation=(X[:30], Y[:30]), unlabelled=(X[30:], None))
CASES: dict[str, Callable[[], Method]] = {
    "fedca": FedCA,
    "fedca-fit": lambda: FedCA(score="log_likelihood"),
    "fedca-greedy": lambda: FedCA(exhaustive_up_to=2),
    "fedca-paper": lambda: FedCA(weights="paper"),
    "fedca-fedprox": lambda: FedCA(inner=FedProx()),
    "fedca-fedpdp": lambda: FedCA(inner=FedPdp()),
    "fedca-scaffold": lambda: FedCA(inner=Scaffold()),
    "cmfl": CMFL,
    "cmfl-fedacs": lambda: CMFL(preset="fedacs"),
    "cmfl-fedavgm": lambda: CMFL(inner=FedAvgM()),
    "feddf": lambda: FedDF(steps=20, check_every=5),
    "feddf-drop-worst": lambda: FedDF(steps=5, drop_worst=True),
    "feddf-fednova-none": lambda: FedDF(inner=FedNova(), source="none"),
    "feddf-fedca": lambda: FedDF(inner=FedCA(), steps=5),
    "rhfl": RHFL,
    "rhfl-code": lambda: RHFL(confidence="code", mode="native"),
    "fedbio": FedBiO,
    "fedprox-adapt": lambda: FedProx(adapt=0.1),
}


@pytest.mark.parametrize("case", CASES)
class TestServerMethods(MethodContract):
    @pytest.fixture(autouse=True)
    def _case(self, case):
        self.case = case

    def make(self):
        return CASES[self.case]()

    def server_evaluator(self):
        return EVALUATOR

    def extras(self, plan, clients, delta):
        sent = dict(super().extras(plan, clients, delta))
        if "train_loss" in plan.measure:
            sent["train_loss"] = np.abs(delta).sum(axis=1).astype(np.float64)
        return sent
