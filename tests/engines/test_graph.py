"""Every layer of a network in the fused engine against float64 PyTorch: gradients, training, statistics, masks.

The tolerances are those of test_fused: 1e-5 of the largest entry for one gradient, 2e-4 after some local steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedcohort.engines import dropout_masks
from fedcohort.engines import losses as objectives
from fedcohort.engines.fused import FusedEngine
from fedcohort.engines.networks import (
    AvgPool,
    BatchNorm,
    Conv,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GroupNorm,
    Linear,
    MaxPool,
    Network,
    ReLU,
    Residual,
    resnet,
)
from fedcohort.engines.torch_layers import sequential
from fedcohort.engines.torch_reference import ReferenceEngine
from fedcohort.errors import BadParameter, TrainingError
from fedcohort.types import Model, Plan

from . import oracle

BLOCK = (GroupNorm(2), ReLU(), Conv(6, 3, 1, stride=2))
NETWORKS = {
    "linear, no bias": Network((7,), (Linear(5), ReLU(), Linear(3, bias=False))),
    "strides 2 and 3": Network(
        (2, 9, 8), (Conv(5, 3, 1, 2), ReLU(), Conv(4, 5, 3, 3, bias=False), Flatten(), Linear(3))
    ),
    "1 x 1 with stride 2": Network((2, 8, 9), (Conv(5, 3), ReLU(), Conv(6, 1, 0, 2), Flatten(), Linear(3))),
    "kernel 2, stride 3": Network((3, 10, 8), (Conv(5, 2, 0, 3), Conv(4, 2, 1), Flatten(), Linear(3))),
    "group norm": Network(
        (2, 6, 7), (Conv(6, 3, 1, bias=False), GroupNorm(3), ReLU(), Conv(4, 3), GroupNorm(1), Flatten(), Linear(3))
    ),
    "batch norm": Network(
        (2, 6, 7),
        (
            Conv(6, 3, 1, bias=False),
            BatchNorm(),
            ReLU(),
            MaxPool(2),
            Conv(4, 2),
            BatchNorm(1e-3, 0.3),
            Flatten(),
            Linear(3),
        ),
    ),
    "pools": Network(
        (3, 9, 10),
        (
            MaxPool(3, 2, 1),
            Conv(4, 3, 1),
            AvgPool(2),
            ReLU(),
            MaxPool(2, 1),
            Conv(5, 3, 1),
            GlobalAvgPool(),
            Flatten(),
            Linear(3),
        ),
    ),
    "pools side by side": Network(
        (3, 8, 9), (Conv(4, 3, 1), Residual((MaxPool(2),), (AvgPool(2),)), ReLU(), Flatten(), Linear(3))
    ),
    "overlapping means": Network((3, 7, 9), (Conv(4, 2), AvgPool(3, 2), AvgPool(2, 1), Flatten(), Linear(3))),
    "residuals": Network(
        (3, 8, 8),
        (
            Conv(4, 3, 1),
            Residual((ReLU(), Conv(4, 3, 1), ReLU())),
            Residual(BLOCK, (Conv(6, 1, 0, 2, bias=False),)),
            ReLU(),
            Residual((), (Conv(6, 3, 1), ReLU())),
            GlobalAvgPool(),
            Flatten(),
            Residual((Linear(6), ReLU(), Linear(6))),
            Linear(3),
        ),
    ),
    "dropout": Network(
        (3, 5, 5),
        (
            Dropout(0.3),
            Conv(4, 3, 1),
            ReLU(),
            Dropout(0.5),
            Flatten(),
            Linear(9),
            Residual((Dropout(0.2),)),
            ReLU(),
            Linear(3),
        ),
    ),
    "relu first and last": Network((3, 4, 4), (ReLU(), Flatten(), Linear(4), ReLU())),
    "tiles": Network(
        (3, 13, 14),
        (
            Conv(6, 5),
            GroupNorm(2),
            ReLU(),
            Conv(4, 5, 2, bias=False),
            Residual((Conv(4, 5, 2), ReLU())),
            Conv(5, 5, 6),
            GlobalAvgPool(),
            Flatten(),
            Linear(3),
        ),
    ),
    "tiles of three": Network(
        (8, 9, 10),
        (
            Conv(9, 3, 1, bias=False),
            GroupNorm(3),
            ReLU(),
            Conv(8, 3),
            Residual((Conv(8, 3, 1), ReLU())),
            GlobalAvgPool(),
            Flatten(),
            Linear(3),
        ),
    ),
    "tiles, batch": Network((2, 6, 11), (Conv(4, 5, 1), BatchNorm(), ReLU(), Conv(3, 5, 4), Flatten(), Linear(3))),
    "resnet-8": resnet((3, 8, 8), (4, 8, 8), classes=4),
    "resnet-14, batch": resnet((3, 8, 8), (4, 8), 2, classes=4, norm="batch"),
}
SIZES = [1, 20, 37, 9]
TINY = resnet((2, 6, 6), (4, 8), classes=4)


def setting(network, sizes=SIZES, seed=3):
    """Clients, and a model with scales, shifts and statistics that are not the first ones."""
    rng = np.random.default_rng(seed)
    model = network.fresh(rng)
    params = model.params + rng.normal(0, 0.1, model.params.size).astype(np.float32)
    buffers = model.buffers + rng.uniform(0, 0.3, model.buffers.size).astype(np.float32)
    return oracle.body(network, sizes), Model(params, buffers, model.counters)


def close(found, true, tolerance):
    np.testing.assert_allclose(found, true, rtol=0, atol=tolerance * max(np.abs(true).max(), 1e-12))


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_losses_and_logits(name):
    """Full-batch gradients with running statistics, against float64; samples in blocks of every size."""
    network = NETWORKS[name]
    data, model = setting(network, [1, 3, 9, 50])
    engine = FusedEngine(network, data, 2)
    everyone = np.arange(4)
    found = engine.gradients(model, everyone)
    stats = engine.losses(model, everyone, "train", objectives.CROSS_ENTROPY)
    module = sequential(network).double().eval()
    torch.nn.utils.vector_to_parameters(torch.tensor(model.params).double(), module.parameters())
    at = 0
    for b in module.buffers():
        if b.is_floating_point():
            b.copy_(torch.tensor(model.buffers[at : at + b.numel()]))
            at += b.numel()
    for k in everyone:
        x, y = oracle.samples(data, k)
        module.zero_grad()
        z = module(x)
        loss = torch.nn.functional.cross_entropy(z, y)
        loss.backward()
        close(found[k], oracle.flat([p.grad for p in module.parameters()]), 1e-5)
        assert stats.loss[k] == pytest.approx(loss.item(), rel=1e-5)
        logits = engine.logits(model.params[None], x.numpy().astype(np.float32), model.buffers[None])[0]
        close(logits, z.detach().numpy(), 1e-5)
    close(engine.gradients(model, everyone, last_layer=True), found[:, network.last_layer], 1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_by_finite_differences(name):
    """(L(w + h e) - L(w - h e)) / 2h along random directions of every tensor, with the engine's own losses."""
    network = NETWORKS[name]
    data, model = setting(network, [40])
    engine = FusedEngine(network, data, 1)
    only, rng, h = np.array([0]), np.random.default_rng(0), 2e-3
    gradient = engine.gradients(model, only)[0].astype(np.float64)
    for tensor in network.tensors:
        way = np.zeros(network.n_params)
        way[tensor.start : tensor.stop] = rng.standard_normal(tensor.stop - tensor.start)
        way /= np.linalg.norm(way)
        ends = []
        for step in (h, -h):
            moved = replace(model, params=(model.params + step * way).astype(np.float32))
            ends.append(float(engine.losses(moved, only, "train", objectives.CROSS_ENTROPY).loss[0]))
        slack = 2e-2 * np.linalg.norm(gradient) + 1e-4  # kinks of ReLU and pools, and float32 losses over 2h
        assert gradient @ way == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=slack), tensor.name


@pytest.mark.parametrize("name", NETWORKS)
def test_training_equals_the_reference(name):
    """Batch statistics, running ones, counters and dropout's masks included; the last batch is a short one."""
    network = NETWORKS[name]
    compare(network, Plan(epochs=2, batch_size=16, lr=0.02, momentum=0.5), [20, 37, 9])


WEIGHTS = {k: np.random.default_rng(k).random(SIZES[k]).astype(np.float32) * 2 for k in (1, 2)}
CORRECTION = (np.random.default_rng(5).standard_normal((4, TINY.n_params)) * 0.01).astype(np.float32)
PLANS = {
    "batch above a block": Plan(epochs=2, batch_size=100, lr=0.05),
    "single samples": Plan(epochs=1, batch_size=1, lr=0.005),
    "momentum, decay": Plan(epochs=2, batch_size=16, lr=0.02, momentum=0.9, weight_decay=0.02),
    "adam": Plan(epochs=1, batch_size=16, lr=0.002, optimiser="adam", weight_decay=0.01),
    "prox": Plan(epochs=2, batch_size=16, lr=0.05, prox=0.5),
    "smoothing": Plan(epochs=1, batch_size=16, lr=0.05, objective=objectives.label_smoothing(0.2)),
    "flash": Plan(epochs=2, batch_size=16, lr=0.02, objective=objectives.flash_robust(0.7, 2.0)),
    "symmetric": Plan(epochs=2, batch_size=16, lr=0.02, objective=objectives.symmetric_ce(0.3, 1.5, -6.0)),
    "per client": Plan(epochs=np.array([1, 3, 2, 0]), batch_size=16, lr=np.array([0.1, 0.02, 0.05, 0.2]), seed=9),
    "correction of each": Plan(epochs=2, batch_size=16, lr=0.05, correction=CORRECTION),
    "correction of all": Plan(epochs=2, batch_size=16, lr=0.05, correction=CORRECTION[0]),
    "sample weights": Plan(epochs=2, batch_size=16, lr=0.05, sample_weight=WEIGHTS),
}


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("name", PLANS)
def test_every_feature_of_a_plan(name, norm):
    compare(resnet((2, 6, 6), (4, 8), classes=4, norm=norm), PLANS[name], SIZES)


def compare(network, plan, sizes):
    data, model = setting(network, sizes)
    measure = frozenset(
        {"train_loss", "train_loss_sq", "loss_count", "loss_before", "loss_after", "val_loss", "grad_norm"}
    )
    plan = replace(plan, measure=measure, round=3)
    clients = np.arange(len(sizes))[::-1].copy()
    mine = FusedEngine(network, data, 2).train(model, clients, plan)
    true = ReferenceEngine(network, data).train(model, clients, plan)
    assert not true.failed.any()
    assert not mine.failed.any()
    close(mine.updates.delta, true.updates.delta, 5e-4)
    assert np.array_equal(mine.updates.steps, true.updates.steps)
    if network.n_buffers:
        close(mine.updates.buffers, true.updates.buffers, 2e-4)
        assert np.array_equal(mine.updates.counters, true.updates.counters)
    for signal, value in true.signals.items():
        np.testing.assert_allclose(mine.signals[signal], value, rtol=2e-3, atol=1e-5, err_msg=signal)


def test_same_bytes_for_any_number_of_workers_and_any_company():
    network = NETWORKS["dropout"]
    data, model = setting(network, [5, 33, 64, 65, 17, 1])
    plan = Plan(epochs=2, batch_size=16, lr=0.1)
    whole = [FusedEngine(network, data, workers).train(model, np.arange(6), plan).updates.delta for workers in (1, 3)]
    assert whole[0].tobytes() == whole[1].tobytes()
    alone = FusedEngine(network, data, 1).train(model, np.array([3]), plan).updates.delta
    assert alone[0].tobytes() == whole[0][3].tobytes()


def test_masks_are_those_of_the_definition():
    """One linear layer behind dropout, one step: the weight gradient is zero exactly where the input was dropped."""
    network = Network((50,), (Dropout(0.4), Linear(2)))
    data, model = setting(network, [1])
    plan = Plan(epochs=1, batch_size=1, lr=1.0, seed=5, round=2)
    delta = FusedEngine(network, data, 1).train(model, np.array([0]), plan).updates.delta[0, :50]
    start = dropout_masks.start_of(dropout_masks.client_key(plan, 0), 0, 0)
    assert np.array_equal(delta != 0.0, dropout_masks.kept(start, 1, 50, 0.4)[0])
    many = dropout_masks.kept(start, 200, 500, 0.4)
    assert many.mean() == pytest.approx(0.6, abs=0.01)
    assert np.abs(np.corrcoef(many[:40].astype(float))[~np.eye(40, dtype=bool)]).max() < 0.25


def test_weights_that_explode_in_the_last_step_are_a_failure():
    """With one step there is no later loss to tell."""
    network = NETWORKS["batch norm"]
    data, model = setting(network, [20, 20])
    rates = np.array([0.1, np.inf])
    out = FusedEngine(network, data, 1).train(model, np.arange(2), Plan(epochs=1, batch_size=99, lr=rates))
    assert out.failed.tolist() == [False, True]
    assert not out.updates.delta[1].any()


def test_a_diverging_client_fails_alone_and_keeps_the_statistics():
    network = NETWORKS["batch norm"]
    data, model = setting(network, [20, 20, 9])
    data.x[data.train.index[data.train.of(1)][5]] = np.inf
    out = FusedEngine(network, data, 1).train(model, np.arange(3), Plan(epochs=1, batch_size=10, lr=0.1))
    assert out.failed.tolist() == [False, True, False]
    assert np.array_equal(out.updates.buffers[1], model.buffers)
    assert np.isfinite(out.updates.buffers).all()
    assert not out.updates.delta[1].any()


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (Network((1, 8, 8), (Conv(2, 3),)), "one row of scores"),
        (Network((3, 4, 4), (GlobalAvgPool(), BatchNorm(), Flatten(), Linear(2))), "more than one value"),
        (Network((3,), ()), "layer with parameters"),
    ],
)
def test_what_cannot_be_run_is_refused(network, why):
    with pytest.raises(TrainingError, match=why):
        FusedEngine(network, oracle.body(TINY, [3]))


def test_buffers_of_the_wrong_size_are_refused():
    network = NETWORKS["batch norm"]
    data, model = setting(network)
    wrong = replace(model, buffers=np.ones(3, np.float32))
    with pytest.raises(BadParameter, match="buffers of shape"):
        FusedEngine(network, data).losses(wrong, np.arange(2), "train", objectives.CROSS_ENTROPY)
