"""Gradients and logits at the server use defined running statistics: those given, or of the model last trained."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from fedcohort.engines.factory import choose  # noqa: E402
from fedcohort.engines.losses import CROSS_ENTROPY  # noqa: E402
from fedcohort.engines.networks import BatchNorm, Conv, Flatten, Linear, Network, ReLU  # noqa: E402
from fedcohort.engines.torch_layers import sequential  # noqa: E402
from fedcohort.engines.torch_modules import Flat  # noqa: E402
from fedcohort.engines.torch_workers import workers_engine  # noqa: E402
from fedcohort.engines.torch_workers.variant import Variant  # noqa: E402
from fedcohort.types import Plan  # noqa: E402

NET = Network((1, 4, 4), (Conv(2, 3, 1), BatchNorm(), ReLU(), Flatten(), Linear(4)))
PLAN = Plan(batch_size=5, lr=0.05, epochs=2)
EVERYBODY = np.arange(3)


@pytest.fixture
def data(make_data):
    found = make_data([20, 15, 10], shape=(1, 4, 4))
    return replace(found, x=3 * found.x + 5)  # far from mean 0 and variance 1


def autograd(params, buffers, x, target):
    """Loss and gradient in double precision, in eval mode at these statistics."""
    module = sequential(NET)
    flat = Flat(module)
    flat.write(params, buffers)
    module.double().eval()
    log_p = torch.log_softmax(module(torch.from_numpy(x).double()), 1)
    loss = -(torch.from_numpy(target).double() * log_p).sum() / len(x)
    loss.backward()
    return loss.item(), np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])


def close(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-4 * np.abs(expected[1]).max())


def same(one, other):
    return one[0] == other[0] and np.array_equal(one[1], other[1])


@pytest.mark.parametrize("name", ["torch_reference", "fused"])
def test_a_gradient_is_the_same_whatever_was_called_before(name, data):
    engine = choose(NET, data, name, workers=1) if name == "fused" else choose(NET, data, name)
    model, x = NET.fresh(np.random.default_rng(1)), data.x[:16]
    sent = engine.train(model, EVERYBODY, PLAN).updates
    weights, average = model.params + sent.delta.mean(axis=0), sent.buffers.mean(axis=0)
    target = np.random.default_rng(2).dirichlet(np.ones(4), 16).astype(np.float32)
    merged, bare = autograd(weights, average, x, target), autograd(weights, model.buffers, x, target)
    assert abs(merged[0] - bare[0]) > 0.01 * bare[0]
    other = replace(model, buffers=sent.buffers[2])
    calls = (
        lambda: engine.losses(other, EVERYBODY, "train", CROSS_ENTROPY),
        lambda: engine.gradients(other, EVERYBODY),
        lambda: engine.logits(model.params + sent.delta, x, sent.buffers),
        lambda: engine.losses_each(model.params + sent.delta, EVERYBODY, "train", sent.buffers),
        lambda: engine.soft_gradient(weights, x, target, sent.buffers[1]),
    )
    own, default = engine.soft_gradient(weights, x, target, average), engine.soft_gradient(weights, x, target)
    plain = engine.logits(weights[None], x)
    close(own, merged)
    close(default, bare)
    for call in calls:
        call()
        assert same(engine.soft_gradient(weights, x, target), default)
        assert np.array_equal(engine.logits(weights[None], x), plain)
        assert same(engine.soft_gradient(weights, x, target, average), own)
    engine.train(other, EVERYBODY[:1], PLAN)
    close(engine.soft_gradient(weights, x, target), autograd(weights, other.buffers, x, target))
    engine.close()


def test_what_is_trained_in_processes_counts_too(data, monkeypatch):
    monkeypatch.setattr(workers_engine, "PROCESSES_PAY", 0.0)
    engine, x = workers_engine.WorkersEngine(NET, data, 2), data.x[:16]
    engine.variant = Variant()
    monkeypatch.setattr(engine, "_train_in_processes", lambda *args: "elsewhere")
    model = NET.fresh(np.random.default_rng(1))
    model = replace(model, buffers=np.array([3.0, -2.0, 4.0, 0.5], np.float32))
    assert engine.train(model, EVERYBODY, PLAN) == "elsewhere"
    target = np.full((16, 4), 0.25, np.float32)
    close(engine.soft_gradient(model.params, x, target), autograd(model.params, model.buffers, x, target))
