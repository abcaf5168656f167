"""Signals that some clients cannot measure: what can be had is used."""

import pytest

pytest.importorskip("flwr")

from tests.flower.grid import FakeClient, FakeGrid, start, timing

from fedcohort.flower import CohortStrategy
from fedcohort.registry.lookup import make_selector


@pytest.mark.parametrize("known", [{}, {"val_loss": float("nan"), "probe_val_loss": float("nan")}])
def test_flash_learns_from_probes_of_clients_without_validation_data(known):
    names = ["robust_loss", "val_loss", "probe_robust_loss", "probe_val_loss", "samples"]
    losses = {"robust_loss": 2.0, "probe_robust_loss": 1.0, **known}
    grid = FakeGrid([FakeClient(str(i), provides=names, **losses) for i in range(4)])
    flash = make_selector("flash")
    start(CohortStrategy(selector=flash, cohort_size=2, method="fedavg", **timing(grid)), grid, rounds=4)
    assert flash.state.paid.any()
