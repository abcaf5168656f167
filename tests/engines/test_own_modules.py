"""Modules of users that are more than a chain of layers: taps, frozen layers, constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcohort.engines.trained_model import TrainedModel, layout_of
from fedcohort.errors import TrainingError
from fedcohort.methods.base import usable_rows
from fedcohort.methods.fedavg import FedAvg
from fedcohort.methods.fedbuff import FedBuff
from fedcohort.methods.median import Median
from fedcohort.protocols import Aggregation
from fedcohort.rounds.validation import validate
from fedcohort.types import Plan

torch = pytest.importorskip("torch")
from fedcohort.engines.torch_checks import dry_run  # noqa: E402
from fedcohort.engines.torch_modules import initial  # noqa: E402
from fedcohort.engines.torch_reference import ReferenceEngine  # noqa: E402
from fedcohort.engines.torch_workers.variant import Variant, VariantEngine  # noqa: E402

nn = torch.nn
PLAN = Plan(epochs=2, batch_size=8, lr=0.05)


class Taps(nn.Module):
    """Uses what a chain computes on its way, in one of three manners, also only in training."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.chain = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        if self.how == "enumerate":
            seen = [x := layer(x) for layer in self.chain][1:]
        elif self.how == "index":
            seen = [relu := self.chain[1](self.chain[0](x)), self.chain[2](relu)]
        elif self.how == "slice":
            seen = [self.chain[:2](x), self.chain(x)]
        else:
            seen = [self.chain[:2](x) if self.training else self.chain(x), self.chain(x)]
        return self.head(torch.cat([t.mean((2, 3)) for t in seen], 1))


class InPlace(nn.Module):
    """The chain changes its own input, which is used again."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(4, 4)
        self.chain = nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool2d(2))

    def forward(self, x):
        x = self.first(x)
        return self.head(torch.cat([self.chain(x).mean((2, 3)), x.mean((2, 3))], 1))


@pytest.mark.parametrize("how", ["enumerate", "index", "slice", "training", "in place"])
def test_workers_compute_what_a_module_with_taps_says(how, make_data):
    """Max-pools run before ReLUs only where a chain is called as a whole and nobody can tell."""
    data, clients = make_data([20, 33], shape=(1, 8, 8)), np.arange(2)
    make = InPlace if how == "in place" else lambda: Taps(how)
    reference, workers = ReferenceEngine(make, data), VariantEngine(make, data, Variant())
    model = initial(make, np.random.default_rng(0))
    a, b = (engine.logits(model.params[None], data.x) for engine in (reference, workers))
    np.testing.assert_allclose(a, b, atol=1e-5)
    a, b = (engine.train(model, clients, PLAN).updates.delta for engine in (reference, workers))
    np.testing.assert_allclose(a, b, atol=1e-5)


def frozen():
    """A random layer that stays as it was made, and one that learns."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    module[1].requires_grad_(False)
    return module


def test_frozen_layers_are_the_same_in_every_engine_and_export(make_data):
    """Engines, processes, a second bind, to_torch() and state_dict() have one frozen layer, whatever torch's seed."""
    data, clients = make_data([20, 33]), np.arange(2)
    model = initial(frozen, np.random.default_rng(0))
    outputs, deltas = [], []
    for seed, make in ((1, ReferenceEngine), (2, ReferenceEngine), (3, lambda m, d: VariantEngine(m, d, Variant()))):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        engine = make(frozen, data)
        assert torch.equal(before, torch.random.get_rng_state())
        outputs.append(engine.logits(model.params[None], data.x)[0])
        deltas.append(engine.train(model, clients, PLAN).updates.delta)
    np.testing.assert_allclose(outputs, [outputs[0]] * 3, atol=1e-5)
    np.testing.assert_allclose(deltas, [deltas[0]] * 3, atol=1e-5)
    trained = TrainedModel(model, layout_of(frozen), frozen)
    loaded = frozen()
    loaded.load_state_dict(trained.state_dict())
    with torch.no_grad():
        for module in (trained.to_torch(), loaded):
            np.testing.assert_allclose(module(torch.from_numpy(data.x)).numpy(), outputs[0], atol=1e-5)
    assert set(trained.tensors()) == {"1.weight", "1.bias", "3.weight", "3.bias"}


def test_first_models_differ_by_seed_where_frozen_layers_do_not():
    a, b = (initial(frozen, np.random.default_rng(seed)) for seed in (0, 1))
    assert not np.array_equal(a.params, b.params)


def test_frozen_layers_that_are_made_differently_each_time_are_refused(make_data):
    rng = np.random.default_rng(0)

    def drawn():
        module = frozen()
        module[1].weight.copy_(torch.from_numpy(rng.standard_normal((8, 12))))
        return module

    with pytest.raises(TrainingError, match=r"tensor 1\.weight of module Sequential: nobody trains it"):
        dry_run(drawn, make_data([20, 33]))


class Rotary(nn.Module):
    """Complex rotations as a buffer that is not saved, and a saved one."""

    def __init__(self, trainable=False):
        super().__init__()
        self.first, self.head = nn.Linear(12, 8), nn.Linear(8, 4)
        turns = torch.polar(torch.ones(4), torch.arange(4) * 0.7)
        self.register_buffer("turns", turns, persistent=False)
        self.register_buffer("saved", turns.clone())
        self.register_buffer("scale", torch.ones(1), persistent=False)
        self.free = nn.Parameter(turns.clone()) if trainable else None

    def forward(self, x):
        z = torch.view_as_complex(self.first(x.flatten(1)).reshape(len(x), 4, 2)) * self.turns * self.saved
        return self.head(torch.view_as_real(z).flatten(1)) * self.scale


def test_complex_buffers_stay_as_they_are(make_data):
    """They are constants: training, reading, writing and exporting leave them alone."""
    data = make_data([20, 33])
    model = initial(Rotary, np.random.default_rng(0))
    assert (model.buffers.tolist(), model.counters.size) == ([1.0], 0)
    engine = ReferenceEngine(Rotary, data)
    trained = engine.train(model, np.arange(2), PLAN)
    assert not trained.failed.any()
    assert torch.equal(engine._flat.module.turns, Rotary().turns)
    export = TrainedModel(model, layout_of(Rotary), Rotary)
    assert torch.equal(export.to_torch().turns, Rotary().turns)
    loaded = Rotary()
    loaded.load_state_dict(export.state_dict())
    assert torch.equal(loaded.saved, Rotary().saved)


def test_complex_parameters_are_refused(make_data):
    with pytest.raises(TrainingError, match="parameter free of module Rotary: it is complex"):
        dry_run(lambda: Rotary(trainable=True), make_data([20, 33]))


class Causal(nn.Module):
    """Attention with an additive mask, as nn.Transformer.generate_square_subsequent_mask makes it."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(1, 8), nn.Linear(8, 4)
        self.register_buffer("mask", torch.full((12, 12), float("-inf")).triu(1))

    def forward(self, x):
        z = self.first(x.flatten(1)[..., None])
        return self.head((torch.softmax(z @ z.transpose(1, 2) / 3 + self.mask, -1) @ z).mean(1))


@pytest.mark.parametrize("method", [FedAvg(), FedBuff(size=1), Median()], ids=lambda m: m.name)
def test_infinite_constants_are_trained_with(method, make_data):
    """A mask of -inf breaks nobody: clients train, replies are accepted, and the new model has the same mask."""
    data, clients = make_data([20, 33]), np.arange(2)
    model = initial(Causal, np.random.default_rng(0))
    for engine in (ReferenceEngine(Causal, data), VariantEngine(Causal, data, Variant())):
        trained = engine.train(model, clients, PLAN)
        assert not trained.failed.any()
    updates = replace(trained.updates, weight=np.array([0.0, 33.0]))
    assert validate(trained.updates, {}, None, model.buffers).accepted.all()
    context = Aggregation(0, PLAN, 2, np.array([20, 33]), clients)
    made = method.aggregate(model, updates, context)
    assert made.accepted.all()
    assert not np.array_equal(made.model.params, model.params)
    np.testing.assert_array_equal(made.model.buffers, model.buffers)


def test_buffers_that_became_infinite_are_refused(make_data):
    """Only what differs from the model that was sent counts as broken."""
    model = initial(Causal, np.random.default_rng(0))
    trained = ReferenceEngine(Causal, make_data([20, 33])).train(model, np.arange(2), PLAN)
    trained.updates.buffers[0, 0], trained.updates.buffers[1, 1] = -np.inf, np.nan
    verdict = validate(trained.updates, {}, None, model.buffers)
    assert verdict.reasons == {0: "buffers-not-finite", 1: "buffers-not-finite"}
    assert usable_rows(trained.updates, model.buffers).size == 0
