"""Any selector with any method: every pair of the catalogue runs on digits and leaves a finite model, full records."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from fedcohort.registry import lookup as registry
from fedcohort.sim.simulation import RunSettings, Simulation
from fedcohort.types import Outcome
from fedcohort.worlds.built_world import build_world

ROUNDS, SIZE = 2, 4


@cache
def bound():
    """One world and one task for all pairs."""
    spec = registry.make_task_spec("digits-softmax")
    world = build_world(registry.make_world_spec("mixed-v1(clients=12)"), spec.labels(), seed=1, classes=spec.classes)
    return world, spec.bind(world, engine="numpy")


@pytest.mark.parametrize("selector", registry.names("selector"))
def test_a_selector_with_every_method(selector):
    world, task = bound()
    settings = RunSettings(rounds=ROUNDS, cohort_size=SIZE, seed=2, max_privacy="P3")
    for method in registry.names("method"):
        simulation = Simulation(registry.make_selector(selector), registry.make_method(method), world, task, settings)
        history = simulation.run()
        pair = f"{selector} x {method}"
        assert len(history.rows) == ROUNDS, pair
        assert np.isfinite(simulation.model.params).all(), pair
        for row in history.rows:
            assert sum(row[o.name.lower()] for o in Outcome) == row["asked"] <= SIZE, pair
        assert history.column("ok").sum() > 0, pair
