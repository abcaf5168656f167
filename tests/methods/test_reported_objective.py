"""Reports and probes are of the same objective, whatever a method makes the clients train on."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort import StatefulSelector, simulate
from fedcohort.registry.lookup import entries
from fedcohort.types import Cohort

PAIRS = {
    "robust_loss": "probe_robust_loss",
    "loss_before": "probe_loss",
    "val_loss": "probe_val_loss",
    "grad_norm": "probe_grad_norm",
}


class ProbesAndAsks(StatefulSelector):
    """Asks the clients that it has just probed, and keeps both measurements."""

    needs = frozenset(PAIRS) | frozenset(PAIRS.values())

    def __init__(self):
        self.seen = []

    def probe(self, rnd, rng):
        return rnd.available[: rnd.size]

    def select(self, rnd, rng):
        return Cohort(rnd.available[: rnd.size])

    def observe(self, result):
        self.seen.append(result)


@pytest.mark.parametrize("objective", ["ce", "flash-robust(alpha=1.0, beta=8.0)"])
@pytest.mark.parametrize("method", sorted(entries("method")))
def test_a_report_is_what_a_probe_of_the_same_model_says(method, objective):
    asynchronous = {"buffer_size": 4} if method == "fedbuff" else {}
    task = f"digits-softmax(objective={objective!r}, unlabelled=0.05)"
    keys = {"world": "iid-v1(clients=8)", "rounds": 2, "cohort_size": 4}
    simulate(selector := ProbesAndAsks(), method=method, task=task, **keys, **asynchronous)
    compared = 0
    for result in selector.seen:
        answered = np.isin(result.clients, result.probed.clients)
        at = np.searchsorted(result.probed.clients, result.clients[answered])
        for report, probe in PAIRS.items():
            told = np.asarray(result.signals[report])[answered]
            asked = np.asarray(result.probed.signals[probe])[at]
            both = np.isfinite(told) & np.isfinite(asked)
            np.testing.assert_allclose(told[both], asked[both], rtol=1e-5)
            compared += both.sum()
    assert compared >= 8
