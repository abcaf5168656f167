"""Clients trained together: memory, modules that cannot, precision, devices; the contract has the plan's features."""

from __future__ import annotations

import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fedcohort.engines import torch_device  # noqa: E402
from fedcohort.engines.recipe import Recipe  # noqa: E402
from fedcohort.engines.torch_losses import own_loss  # noqa: E402
from fedcohort.engines.torch_modules import initial  # noqa: E402
from fedcohort.engines.torch_reference import ReferenceEngine  # noqa: E402
from fedcohort.engines.torch_vmap import VmapEngine  # noqa: E402
from fedcohort.errors import TrainingError  # noqa: E402
from fedcohort.types import Plan  # noqa: E402

WHO = np.arange(5)
PLAN = Plan(batch_size=8, epochs=2, momentum=0.9, measure=frozenset({"train_loss", "loss_after"}))


def net():
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


@pytest.fixture
def data(make_data):
    return make_data([9, 20, 3, 16, 0], held=2)


def small_device(engine, room):
    """A device on which at most so many clients step together."""
    asked = []
    inner = engine._train_rows

    def limited(learned, clients, rows, plan):
        asked.append(rows.size)
        if rows.size > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")
        inner(learned, clients, rows, plan)

    engine._train_rows = limited
    return asked


def test_out_of_memory_halves_the_clients_that_step_together(data, caplog):
    engine, model = VmapEngine(net, data, "cpu"), initial(net, np.random.default_rng(0))
    whole = engine.train(model, WHO, PLAN)
    asked = small_device(engine, room=2)
    with caplog.at_level(logging.INFO, "fedcohort.engine"):
        again = engine.train(model, WHO, PLAN)
    assert asked == [5, 3, 2, 2, 1]
    assert "out of memory on cpu: now 3 clients at once" in caplog.text
    assert np.allclose(again.updates.delta, whole.updates.delta, atol=1e-6)
    assert np.allclose(again.signals["train_loss"], whole.signals["train_loss"], equal_nan=True)
    engine.train(model, WHO, PLAN)
    assert asked[5:] == [2, 2, 1], "what fits is remembered"


def test_one_client_that_does_not_fit_is_one_sentence(data, monkeypatch):
    engine, model = VmapEngine(net, data, "cpu"), initial(net, np.random.default_rng(0))
    small_device(engine, room=0)
    with pytest.raises(TrainingError, match="one client with batches of 8 on cpu: the device is out of memory; use a"):
        engine.train(model, WHO, PLAN)
    reference = ReferenceEngine(net, data)
    monkeypatch.setattr(reference, "_forward", _no_memory)
    with pytest.raises(TrainingError, match="client 0 with batches of 8 on cpu: the device is out of memory"):
        reference.train(model, WHO, PLAN)


def _no_memory(x):
    raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to")


def test_what_memory_failures_look_like():
    assert torch_device.out_of_memory(torch.OutOfMemoryError("x"))
    assert torch_device.out_of_memory(MemoryError())
    assert torch_device.out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"))
    assert not torch_device.out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not torch_device.out_of_memory(ValueError("out of memory"))


class Hidden(nn.Module):
    """A branch that depends on the data."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(12, 4)

    def forward(self, x):
        return self.inner(x) if float(x.sum()) > -1e9 else x


class Spare(nn.Linear):
    """A parameter that nothing uses."""

    def __init__(self):
        super().__init__(12, 4)
        self.unused = nn.Parameter(torch.ones(3))


def normed():
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


CANNOT = {
    "batch statistics": (normed, "depends on the other samples of its batch"),
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(12, 4)), "dropout is drawn for every client"),
    "branches": (Hidden, "RuntimeError: vmap"),
    "spare parameters": (Spare, "some of its parameters have no gradient"),
    "optimiser": (Recipe(net, optimiser=lambda p, lr: torch.optim.SGD(p, lr)), "an optimiser of your own"),
    "scalar loss": (Recipe(net, lambda o, t: nn.functional.cross_entropy(o, t)), "one number for a whole batch"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_trained_together_is_trained_as_the_reference_does(name, data, caplog):
    made, why = CANNOT[name]
    with caplog.at_level(logging.INFO, "fedcohort.engine"):
        engine = VmapEngine(made, data, "cpu")
    assert f"client by client, as torch_reference ({engine.obstacle})" in caplog.text
    assert why in engine.obstacle
    model = initial(made.model if isinstance(made, Recipe) else made, np.random.default_rng(0))
    mine, theirs = (e.train(model, WHO, PLAN) for e in (engine, ReferenceEngine(made, data)))
    assert mine.updates.delta.tobytes() == theirs.updates.delta.tobytes()


def test_an_exception_in_a_stack_is_one_clients(data):
    """vmap cannot tell whose it is; training each alone can."""
    engine, model = VmapEngine(net, data, "cpu"), initial(net, np.random.default_rng(0))
    good = engine.train(model, WHO, PLAN)
    inner, train = engine._train_client, engine._train_rows

    def alone(learned, client, row, m, plan):
        if client == 1:
            raise ValueError("a bad sample\nin line 2")
        return inner(learned, client, row, m, plan)

    def together(learned, clients, rows, plan):
        if 1 in clients[rows]:
            raise ValueError("somebody's bad sample")
        train(learned, clients, rows, plan)

    engine._train_client, engine._train_rows = alone, together
    found = engine.train(model, WHO, PLAN)
    assert found.failed.tolist() == [False, True, False, False, True]
    assert found.reasons[1] == "ValueError: a bad sample in line 2"
    assert not found.updates.delta[1].any()
    assert np.isnan(found.signals["loss_after"][1])
    others = [0, 2, 3]
    assert np.allclose(found.updates.delta[others], good.updates.delta[others], atol=1e-6)
    assert np.allclose(found.signals["loss_after"][others], good.signals["loss_after"][others])


def test_bfloat16_is_close_and_not_the_same(data):
    model, plan = initial(net, np.random.default_rng(0)), Plan(batch_size=8, epochs=2)
    full = ReferenceEngine(net, data).train(model, WHO, plan).updates.delta
    for kind in (ReferenceEngine, VmapEngine):
        half = kind(net, data, "cpu", "bfloat16").train(model, WHO, plan).updates.delta
        gap = np.abs(half - full).max() / np.abs(full).max()
        assert 1e-5 < gap < 0.1, kind.name


def test_data_are_sent_to_a_device_once(data, monkeypatch):
    """A device that is not the CPU by name: arrays go there once, however many batches are taken."""
    sent = []
    resident = torch_device.Resident("meta-cpu")
    real = torch.Tensor.to

    def to(self, device, *rest):
        sent.append(tuple(self.shape))
        return self if device == "meta-cpu" else real(self, device, *rest)

    monkeypatch.setattr(torch.Tensor, "to", to)
    rows = [resident.rows(data.x, np.arange(4) + k) for k in range(3)]
    assert sent.count(data.x.shape) == 1
    assert all(np.array_equal(r.numpy(), data.x[np.arange(4) + k]) for k, r in enumerate(rows))
    for _ in range(resident.KEPT + 2):
        resident.tensor(np.zeros((2, 2)))
    assert len(resident._held) == resident.KEPT


def test_targets_of_their_own(make_data):
    from dataclasses import replace

    data = make_data([9, 20, 3], held=2)
    rng = np.random.default_rng(0)
    data = replace(data, target=rng.standard_normal((len(data.x), 2)).astype(np.float32))
    recipe = Recipe(lambda: nn.Linear(12, 2), own_loss("mse"))
    model = initial(recipe.model, rng)
    engines = [e(recipe, data, "cpu") for e in (ReferenceEngine, VmapEngine)]
    one, two = (e.train(model, np.arange(3), PLAN) for e in engines)
    assert not engines[1].obstacle
    assert np.allclose(one.updates.delta, two.updates.delta, atol=1e-6)
    assert np.allclose(one.signals["train_loss"], two.signals["train_loss"])
    own = data.target[data.train.index[:9]]
    output = engines[0].logits(model.params[None], data.x[data.train.index[:9]])[0]
    from fedcohort.types import Objective

    stats = engines[0].losses(model, np.array([0]), "train", Objective())
    assert stats.loss[0] == pytest.approx(((output - own) ** 2).mean(), rel=1e-5)
    assert np.isnan(stats.accuracy[0])
