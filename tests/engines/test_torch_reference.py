"""What only the reference engine does: modules, buffers, counters, convolutions; its flat layout."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedcohort.engines.networks import lenet, mlp
from fedcohort.errors import BadParameter, TrainingError
from fedcohort.types import Model, Objective, Plan

torch = pytest.importorskip("torch")
from fedcohort.engines import torch_networks as torch_models  # noqa: E402
from fedcohort.engines.torch_layers import sequential  # noqa: E402
from fedcohort.engines.torch_modules import initial  # noqa: E402
from fedcohort.engines.torch_reference import ReferenceEngine  # noqa: E402


def batch_normed():
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 4))


def with_dropout():
    nn = torch.nn
    return nn.Sequential(nn.Linear(12, 20), nn.Dropout(0.5), nn.Linear(20, 4))


def test_sequential_has_the_flat_layout_of_the_network():
    network = lenet((1, 8, 8), (3, 4), 3, (10,), 5, padding=1)
    module = sequential(network)
    assert [tuple(p.shape) for p in module.parameters()] == [t.shape for t in network.tensors]
    assert sum(p.numel() for p in module.parameters()) == network.n_params
    assert module(torch.zeros(2, 1, 8, 8)).shape == (2, 5)


def test_fresh_models_come_from_the_generator_alone():
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first = initial(batch_normed, np.random.default_rng(1))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(8)
    again = initial(batch_normed, np.random.default_rng(1))
    assert first.params.tobytes() == again.params.tobytes()
    assert not np.array_equal(first.params, initial(batch_normed, np.random.default_rng(2)).params)


def test_batch_norm_buffers_and_counters(make_data):
    """After one step on one full batch: mean 0.1 m, variance 0.9 + 0.1 v (unbiased), one batch counted."""
    data = make_data([9, 5, 0], shape=(1, 6, 6), held=2)
    model = initial(batch_normed, np.random.default_rng(0))
    assert (model.params.size, model.buffers.size, model.counters.tolist()) == (3 * 9 + 3 + 6 + 48 * 4 + 4, 6, [0])
    engine = ReferenceEngine(batch_normed, data)
    plan = Plan(batch_size=100, epochs=1, measure=frozenset({"loss_before", "loss_after"}))
    trained = engine.train(model, np.arange(3), plan)
    assert trained.updates.counters.tolist() == [[1], [1], [0]]
    kernel, bias = model.params[:27].reshape(3, 9), model.params[27:30]
    x = data.x[data.train.index[:9]][:, 0]
    seen = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2)).reshape(9, 16, 9) @ kernel.T + bias
    flat = seen.reshape(-1, 3)
    assert np.allclose(trained.updates.buffers[0, :3], 0.1 * flat.mean(axis=0), atol=1e-5)
    assert np.allclose(trained.updates.buffers[0, 3:], 0.9 + 0.1 * flat.var(axis=0, ddof=1), atol=1e-5)
    assert np.array_equal(trained.updates.buffers[2], model.buffers)
    more = engine.train(Model(model.params, trained.updates.buffers[0], np.array([41])), np.array([0]), plan)
    assert more.updates.counters.tolist() == [[42]]


def test_looking_moves_no_statistics(make_data):
    data = make_data([9, 5], shape=(1, 6, 6))
    engine = ReferenceEngine(batch_normed, data)
    model = initial(batch_normed, np.random.default_rng(0))
    before = engine.losses(model, np.arange(2), "train", Objective()).loss
    engine.gradients(model, np.arange(2))
    engine.logits(model.params[None], data.x, model.buffers[None])
    engine.train(model, np.arange(2), Plan(epochs=2))
    assert np.array_equal(before, engine.losses(model, np.arange(2), "train", Objective()).loss)
    shifted = engine.logits(model.params[None], data.x, (model.buffers + 1.0)[None])
    assert not np.allclose(shifted, engine.logits(model.params[None], data.x, model.buffers[None]))


def test_dropout_is_keyed(make_data):
    data = make_data([20, 20])
    engine = ReferenceEngine(with_dropout, data)
    model = initial(with_dropout, np.random.default_rng(0))
    plan = Plan(batch_size=5, epochs=2, seed=1)
    torch.manual_seed(1)
    first = engine.train(model, np.array([0, 1]), plan).updates.delta
    torch.manual_seed(2)
    assert np.array_equal(first[1], engine.train(model, np.array([1]), plan).updates.delta[0])
    assert not np.array_equal(first, engine.train(model, np.array([0, 1]), replace(plan, round=1)).updates.delta)


def test_convolution_gradient_by_finite_differences(make_data):
    data = make_data([12], shape=(1, 8, 8))
    network = lenet((1, 8, 8), (2, 3), 3, (6,), 4, padding=1)
    engine = ReferenceEngine(network, data)
    model = Model(network.initial(np.random.default_rng(0)))
    gradient = engine.gradients(model, np.array([0]))[0]
    for j in np.random.default_rng(1).choice(network.n_params, 25, replace=False):
        ends = []
        for h in (1e-3, -1e-3):
            moved = model.params.copy()
            moved[j] += h
            ends.append(engine.losses(Model(moved), np.array([0]), "train", Objective()).loss[0])
        assert gradient[j] == pytest.approx((ends[0] - ends[1]) / 2e-3, abs=2e-3)


def test_wrong_sizes_and_things_that_are_no_module(make_data):
    data = make_data([3])
    with pytest.raises(TrainingError, match="Module"):
        ReferenceEngine(lambda: 3, data)
    engine = ReferenceEngine(mlp(12, classes=4), data)
    with pytest.raises(TrainingError, match="52"):
        engine.losses(Model(np.zeros(7, np.float32)), np.array([0]), "train", Objective())


@pytest.mark.parametrize(
    ("make", "shape", "count"),
    [
        (partial(torch_models.vgg11, norm="batch"), (3, 32, 32), 9_231_114),
        (partial(torch_models.vgg11), (3, 32, 32), 9_231_114),
        (partial(torch_models.resnet18), (3, 32, 32), 11_173_962),
        (partial(torch_models.gru, hidden=256), (128, 6), 3 * 256 * (6 + 256 + 2) + 3 * 256 * (512 + 2) + 6 * 257),
    ],
)
def test_catalogue_models(make, shape, count):
    """Counts: the usual CIFAR forms of VGG-11 and ResNet-18; a GRU layer has 3 h (in + h + 2)."""
    module = make()
    assert sum(p.numel() for p in module.parameters()) == count
    assert module(torch.zeros(2, *shape)).shape[0] == 2


def test_group_norm_has_no_buffers_and_batch_norm_has():
    with torch.device("meta"):
        assert not list(torch_models.resnet18().buffers())
        assert list(torch_models.resnet18(norm="batch").buffers())
    with pytest.raises(Exception, match="group"):
        torch_models.vgg11(norm="grup")


def test_last_layer_of_a_module(make_data):
    engine = ReferenceEngine(partial(torch_models.gru, hidden=8, classes=4), make_data([5, 6], shape=(10, 6)))
    assert engine.last_layer == slice(engine.n_params - 9 * 4, engine.n_params)
    model = initial(partial(torch_models.gru, hidden=8, classes=4), np.random.default_rng(0))
    trained = engine.train(model, np.arange(2), Plan(batch_size=100, measure=frozenset({"insight"})))
    assert np.allclose(trained.signals["insight"], trained.updates.delta[:, engine.last_layer], atol=1e-6)


def test_a_stride_reads_every_other_step():
    torch.manual_seed(0)
    module = torch_models.gru(hidden=8, stride=2)
    x = torch.randn(3, 10, 6)
    moved = x.clone()
    moved[:, 1::2] += 5.0
    assert torch.equal(module(x), module(moved))
    with pytest.raises(BadParameter, match="stride"):
        torch_models.gru(stride=0)
