"""GRUs in kernels equal `nn.GRU`: states and gradients against float64, training against the reference engine."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedcohort.engines.interface import ClientData
from fedcohort.engines.torch_gru import use_fused_gru
from fedcohort.engines.torch_modules import initial
from fedcohort.engines.torch_networks import gru
from fedcohort.engines.torch_reference import ReferenceEngine
from fedcohort.engines.torch_workers import workers_engine
from fedcohort.engines.torch_workers.variant import Variant, VariantEngine
from fedcohort.types import Part, Plan


def everything(layer, x, weight):
    """States, last states, and all gradients of a weighted sum over every state (not only the last)."""
    x = x.clone().requires_grad_(True)
    layer.zero_grad()
    states, last = layer(x)
    (states * weight).sum().backward()
    return [states.detach(), last.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("samples", "steps", "inputs", "units", "layers"), [(1, 1, 1, 1, 1), (3, 7, 2, 5, 2), (9, 4, 3, 17, 1)]
)
def test_states_and_gradients(samples, steps, inputs, units, layers, batch_first):
    torch.manual_seed(samples)
    layer = nn.GRU(inputs, units, layers, batch_first=batch_first)
    shape = (samples, steps) if batch_first else (steps, samples)
    x, weight = 2.0 * torch.randn(*shape, inputs), torch.randn(*shape, units)
    ours = copy.deepcopy(layer)
    assert use_fused_gru(ours) == 1
    exact = everything(layer.double(), x.double(), weight.double())
    for found, true in zip(everything(ours, x, weight), exact, strict=True):
        assert found.shape == true.shape
        torch.testing.assert_close(found.double(), true, rtol=0.0, atol=1e-5 * max(float(true.abs().max()), 1.0))


def test_saturated_gates_and_nan():
    layer = nn.GRU(2, 3)
    ours = copy.deepcopy(layer)
    use_fused_gru(ours)
    x = torch.tensor([[[1e4, -1e4]], [[-1e4, 1e4]]])
    torch.testing.assert_close(ours(x)[0], layer(x)[0])
    x[1, 0, 0] = float("nan")
    assert torch.isnan(ours(x)[0][1]).all()
    assert torch.isfinite(ours(x)[0][0]).all()


def test_what_does_not_qualify_is_left_alone():
    for layer in (
        nn.GRU(2, 3, bidirectional=True),
        nn.GRU(2, 3, bias=False),
        nn.GRU(2, 3, 2, dropout=0.5),
        nn.LSTM(2, 3),
    ):
        assert use_fused_gru(layer) == 0
    layer = nn.GRU(2, 3)
    x, first = torch.randn(4, 1, 2), torch.randn(1, 1, 3)
    expected = layer(x, first)[0]
    use_fused_gru(layer)
    torch.testing.assert_close(layer(x, first)[0], expected)


def windows(sizes):
    rng = np.random.default_rng(0)
    n = sum(sizes)
    start = np.concatenate([[0], np.cumsum(sizes)])
    y = rng.integers(3, size=n)
    none = Part(np.zeros(len(sizes) + 1, np.int64), *(np.empty(0, np.int64),) * 3)
    x = rng.standard_normal((n, 12, 2)).astype(np.float32)
    return ClientData(x, Part(start, np.arange(n), y, y), none, 3)


MODEL = partial(gru, channels=2, classes=3, hidden=6, layers=2)


def test_training_equals_the_reference():
    data, everyone = windows([5, 0, 13]), np.arange(3)
    start = initial(MODEL, np.random.default_rng(1))
    plan = Plan(epochs=2, batch_size=4, lr=0.3, momentum=0.5, prox=0.1, measure=frozenset({"train_loss", "grad_norm"}))
    ours = VariantEngine(MODEL, data, Variant(recurrent=True)).train(start, everyone, plan)
    true = ReferenceEngine(MODEL, data).train(start, everyone, plan)
    np.testing.assert_allclose(ours.updates.delta, true.updates.delta, atol=2e-4 * np.abs(true.updates.delta).max())
    for name, value in true.signals.items():
        np.testing.assert_allclose(ours.signals[name], value, rtol=1e-4)


def test_torch_workers_tries_the_kernels_for_a_gru(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCOHORT_CACHE", str(tmp_path))
    monkeypatch.setattr(
        workers_engine.WorkersEngine, "_time", lambda self, variant, *rest: 1e-6 if variant.recurrent else 2e-6
    )
    engine = workers_engine.WorkersEngine(MODEL, windows([5, 13]), 1)
    engine.train(initial(MODEL, np.random.default_rng(1)), np.arange(2), Plan(epochs=1, batch_size=4, lr=0.1))
    assert engine.variant == Variant(recurrent=True)
    assert "recurrent kernels" in str(engine.variant)
