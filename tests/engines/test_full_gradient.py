"""The gradient that SCAFFOLD's option I asks for is that of what the clients train on."""

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.registry.lookup import make_task_spec, make_world_spec
from fedcohort.types import Plan
from fedcohort.worlds.built_world import build_world

OBJECTIVES = ("ce", "flash-robust(alpha=0.5, beta=4.0)", "symmetric-ce", "label-smoothing")


@pytest.mark.parametrize("engine", ["numpy", "fused", "torch_reference"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_full_step_goes_against_the_full_gradient(engine, objective):
    """One batch of everything, plain SGD: the update is -lr times the gradient of the objective."""
    if engine == "torch_reference":
        pytest.importorskip("torch")
    task = make_task_spec(f"digits-mlp(objective={objective!r})")
    world = build_world(make_world_spec("iid-v1(clients=20)"), task.labels(), seed=0, classes=task.classes)
    bound = task.bind(world, engine=engine, workers=1)
    plan = Plan(
        epochs=1, batch_size=1000, lr=0.1, objective=task.default.objective, measure=frozenset({"full_gradient"})
    )
    try:
        trained = bound.train(bound.initial(generator(0, "full-gradient")), np.arange(4), plan)
    finally:
        bound.close()
    gradient = trained.updates.extras["full_gradient"]
    assert np.abs(gradient).max() > 0.01
    assert np.allclose(trained.updates.delta, -0.1 * gradient, rtol=1e-3, atol=1e-5)
