"""Modules of users that are more than a chain of layers: taps, frozen layers, constants."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.types import Plan

torch = pytest.importorskip("torch")
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
