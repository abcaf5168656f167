"""The torch_workers engine equals torch_reference, in one process and in several, and remembers what it measured."""

from __future__ import annotations

import json
import logging
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedcohort.engines import losses as objectives
from fedcohort.engines.networks import Conv, Flatten, Linear, MaxPool, Network, ReLU, mlp, resnet
from fedcohort.engines.torch_modules import initial
from fedcohort.engines.torch_reference import ReferenceEngine
from fedcohort.engines.torch_workers import messages as wire
from fedcohort.engines.torch_workers import processes, workers_engine
from fedcohort.engines.torch_workers.variant import BareSGD, Variant, VariantEngine
from fedcohort.types import Model, Plan

from . import oracle

NET = Network((1, 8, 8), (Conv(3, 3), ReLU(), MaxPool(2), Flatten(), Linear(4)))
SIZES = [1, 20, 0, 33]


def normed():
    """A module with buffers and counters, which no other engine takes. (A bias before the norm has gradient 0.)"""
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCOHORT_CACHE", str(tmp_path))
    return tmp_path


def plan(**more):
    measure = frozenset({"train_loss", "insight", "loss_after", "full_gradient"})
    return Plan(epochs=2, batch_size=8, lr=0.05, momentum=0.5, measure=measure, **more)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("model", [NET, normed])
def test_equals_the_reference(cache, model, optimiser):
    data = oracle.body(NET, SIZES)
    start = initial(model, np.random.default_rng(0))
    everyone = np.arange(4)
    engine = workers_engine.WorkersEngine(model, data, 1)
    ours = engine.train(start, everyone, plan(optimiser=optimiser))
    true = ReferenceEngine(model, data).train(start, everyone, plan(optimiser=optimiser))
    np.testing.assert_allclose(ours.updates.delta, true.updates.delta, atol=1e-4 * np.abs(true.updates.delta).max())
    np.testing.assert_array_equal(ours.failed, true.failed)
    np.testing.assert_array_equal(ours.updates.steps, true.updates.steps)
    for name, value in true.signals.items():
        np.testing.assert_allclose(ours.signals[name], value, rtol=1e-3, atol=1e-5)
    if true.updates.buffers is not None:
        np.testing.assert_allclose(ours.updates.buffers, true.updates.buffers, rtol=1e-3, atol=1e-5)
    noted = json.loads((cache / "engines.json").read_text())
    assert [set(entry["seconds_per_sample"]) for entry in noted.values()] == [{"plain", "channels-last"}]


def test_processes_give_the_same_bytes(cache, monkeypatch):
    monkeypatch.setattr(workers_engine, "PROCESSES_PAY", 0.0)
    data = oracle.body(NET, SIZES)
    start = Model(NET.initial(np.random.default_rng(0)))
    clients = np.array([3, 0, 2, 1])
    rng = np.random.default_rng(1)
    order = plan(
        correction=rng.normal(0, 0.01, (4, NET.n_params)).astype(np.float32),
        sample_weight={3: rng.random(33).astype(np.float32)},
        objective=objectives.flash_robust(),
    )
    answers = []
    for workers in (1, 2):
        engine = workers_engine.WorkersEngine(NET, data, workers)
        answers.append(engine.train(start, clients, order))
        assert (engine._processes is not None) == (workers == 2)
        engine.close()
    one, two = answers
    assert one.updates.delta.tobytes() == two.updates.delta.tobytes()
    assert one.reasons == two.reasons == {2: "owns no samples"}
    assert one.updates.clients.tolist() == two.updates.clients.tolist()
    for name in one.signals:
        np.testing.assert_array_equal(one.signals[name], two.signals[name])
    np.testing.assert_array_equal(one.updates.extras["full_gradient"], two.updates.extras["full_gradient"])


def children():
    """The processes that this one has started and not yet waited for."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("forks", [True, False])
def test_a_factory_of_a_script_or_notebook(cache, monkeypatch, caplog, forks):
    """A closure has no name to import: copies of this process train it; where there can be none, one line says so."""
    monkeypatch.setattr(workers_engine, "PROCESSES_PAY", 0.0)
    if not forks:
        monkeypatch.setattr(processes, "_can_fork", lambda: False)
    data, made, before = oracle.body(NET, SIZES), normed, children()
    start = initial(normed, np.random.default_rng(0))
    answers = []
    for workers in (1, 2):
        engine = workers_engine.WorkersEngine(lambda: made(), data, workers)
        with caplog.at_level(logging.INFO, "fedcohort.engine"):
            answers += [engine.train(start, np.array([3, 1, 0]), plan()) for _ in range(2)]
        assert (engine._processes is not None) == (forks and workers == 2)
        engine.close()
    assert ("continues in one process" in caplog.text) != forks
    assert len({a.updates.delta.tobytes() + a.updates.buffers.tobytes() for a in answers}) == 1
    assert children() == before  # nobody is left behind


def test_processes_start_when_training_has_paid_for_them(cache, monkeypatch):
    """Two rounds of a little more than half of what starting costs: the second one starts them."""
    data, start = oracle.body(NET, SIZES), initial(normed, np.random.default_rng(0))
    engine = workers_engine.WorkersEngine(lambda: normed(), data, 2)
    engine.train(start, np.arange(4), plan())
    assert engine._processes is None
    monkeypatch.setattr(workers_engine, "PROCESSES_PAY", 1.9 * engine._spent)
    engine.train(start, np.arange(4), plan())
    assert engine._processes is not None
    assert engine.train(start, np.arange(0), plan()).updates.delta.shape == (0, start.params.size)  # nobody is asked
    engine.close()


def test_narrow_strided_projections_keep_their_layout():
    """PyTorch 2.13 damages the heap there with channels last."""
    for width, fine in ((4, False), (8, True)):
        network = resnet((1, 8, 8), (width, 8), classes=4)
        assert VariantEngine(network, oracle.body(network, [8]), Variant()).may_turn == fine


def test_models_are_described_by_name_and_arguments():
    for model in (NET, mlp(5, 4, classes=3), resnet((3, 8, 8), (4, 8))):
        assert wire.build(wire.describe(model)) == model
    made = wire.build(wire.describe(partial(Conv, 3, kernel=2)))()
    assert made == Conv(3, 2)
    assert wire.describe(lambda: None) is None
    assert wire.describe(partial(Conv, object())) is None


def test_a_damaged_memory_is_forgotten(cache):
    (cache / "engines.json").write_text("{ not json")
    engine = workers_engine.WorkersEngine(NET, oracle.body(NET, SIZES), 1)
    engine.train(Model(NET.initial(np.random.default_rng(0))), np.arange(2), plan())
    assert len(json.loads((cache / "engines.json").read_text())) == 1


def test_pooling_before_the_relu_changes_no_bit():
    """Outputs and every gradient are equal, also where whole windows are cut to zero and where values are tied."""
    import copy

    import torch

    from fedcohort.engines.torch_pooling import pool_first, pooled_first

    torch.manual_seed(0)
    nn = torch.nn
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten())
    other = copy.deepcopy(module)
    assert pool_first(other) == 1
    assert [type(m).__name__ for m in pooled_first(list(other))][1:3] == ["MaxPool2d", "ReLU"]
    x = torch.randint(-1, 2, (6, 2, 9, 9)).float()
    outputs = []
    for m in (module, other):
        out = m(x)
        (out * torch.arange(out.numel()).reshape(out.shape)).sum().backward()
        outputs.append([out, *(p.grad for p in m.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


def test_bare_sgd_takes_the_steps_of_torch():
    """To the last bit, with weight decay, with a parameter that has no gradient, and layouts that differ."""
    import torch

    def start():
        torch.manual_seed(1)
        return [torch.randn(shape, requires_grad=True) for shape in ((40, 7), (3, 2, 5, 5), (9,))]

    ours, theirs = start(), start()
    steppers = BareSGD(ours, 0.1, 0.01), torch.optim.SGD(theirs, lr=0.1, weight_decay=0.01, fused=True)
    for _ in range(3):
        for params, stepper in zip((ours, theirs), steppers, strict=True):
            stepper.zero_grad(set_to_none=True)
            ((params[0] ** 2).sum() + params[1].contiguous(memory_format=torch.channels_last).sin().sum()).backward()
            stepper.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert ours[2].grad is None
