"""What a probe tells and what it does not, and what is uploaded: drop-outs, boasters, tensors left out, bytes."""

from __future__ import annotations

import numpy as np
import pytest

import fedcohort as fc
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import build
from fedcohort.sim.uploads import drop_tensors
from fedcohort.types import Updates

FLAKY = "iid-v1(clients=20, faults={'dropout': 0.0, 'flaky': 0.5, 'flaky_dropout': 0.6})"


def test_who_answers_a_probe_may_still_fail_to_train():
    failed = {}
    for selector in ("uniform", "power-of-choice"):
        history = fc.simulate(selector, world=FLAKY, task="quadratic", rounds=30, cohort_size=4, seed=0)
        failed[selector] = float(np.nansum(history.column("failed"))) / 120
    assert failed["uniform"] == pytest.approx(0.3, abs=0.12)
    assert failed["power-of-choice"] > 0.05  # an answer is not a promise


def test_boasters_boast_when_they_are_probed():
    world = "iid-v1(clients=20, faults={'boasting': 0.2, 'scale': 1000.0})"
    keys = {"selector": "power-of-choice(d=20)", "world": world, "task": "quadratic", "cohort_size": 2, "seed": 0}
    history = fc.simulate(rounds=20, **keys)
    federation = build(RunConfig(**keys)).federation
    liars = np.flatnonzero(federation.world.fixed["lie"] >= 0)
    assert liars.size == 4
    assert history.participation()[liars].sum() / 40 > 0.6
    honest = federation.world.boasted(np.arange(20), {"probe_loss": np.ones(20), "probe_accuracy": np.ones(20)})
    assert honest["probe_loss"][liars].tolist() == [1000.0] * 4
    assert honest["probe_accuracy"].tolist() == [1.0] * 20


def test_tensors_are_left_out_one_by_one():
    keys = {"selector": "pyramidfl", "world": "iid-v1(clients=5)", "task": "digits-mlp", "cohort_size": 2}
    federation = build(RunConfig(**keys)).federation
    layout = federation.task.layout
    assert len(layout) == 4  # two weights, two biases
    assert [part.start for part in layout[1:]] == [part.stop for part in layout[:-1]]
    assert layout[-1].stop == federation.task.initial(np.random.default_rng(0)).params.size
    many = 200
    updates = Updates(np.arange(many), np.ones((many, layout[-1].stop), np.float32), np.ones(many), np.ones(many))
    sent = drop_tensors(updates, np.full(many, 0.5), layout, np.random.default_rng(0)).delta
    there = np.stack([(sent[:, part] != 0).all(axis=1) for part in layout], axis=1)
    assert there.mean(axis=0) == pytest.approx(np.full(4, 0.5), abs=0.12)
    assert 0.02 < (~there).all(axis=1).mean() < 0.12  # 1 / 16, where a whole update went in half of the cases


def test_pyramidfl_is_told_the_norm_of_the_whole_update():
    chosen = fc.make_selector("pyramidfl(low=0.9, high=0.9)")
    fc.simulate(chosen, world="iid-v1(clients=6)", task="digits-softmax", rounds=8, cohort_size=3, seed=0)
    assert (chosen.state.gradient > 0).all()  # also of those that uploaded nothing


def test_the_second_upload_of_scaffold_is_counted():
    up = {}
    for method in ("fedavg", "scaffold(option='II')", "scaffold(option='I')"):
        history = fc.simulate("uniform", method=method, task="quadratic", rounds=2, cohort_size=5, seed=0)
        up[method] = float(history.column("bytes_up")[-1] + history.column("bytes_signals")[-1])
    assert up["scaffold(option='II')"] == up["fedavg"]
    assert up["scaffold(option='I')"] == 2 * up["fedavg"]
