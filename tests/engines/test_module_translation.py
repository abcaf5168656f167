"""Torch modules as networks: which are translated, with the same outputs and updates, and why others are not."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedcohort.engines import torch_networks
from fedcohort.engines.factory import choose
from fedcohort.engines.fused import FusedEngine
from fedcohort.engines.module_translation import Untranslatable, translate
from fedcohort.engines.networks import Conv, Dropout, Flatten, Linear, MaxPool, ReLU, Residual
from fedcohort.engines.torch_modules import initial
from fedcohort.engines.torch_reference import ReferenceEngine
from fedcohort.types import Plan

from . import oracle


class Tutorial(nn.Module):
    """One pool used twice, functions between layers."""

    def __init__(self):
        super().__init__()
        self.c1, self.pool, self.c2 = nn.Conv2d(2, 4, 3), nn.MaxPool2d(2, 2), nn.Conv2d(4, 6, 3, padding="same")
        self.f1, self.drop, self.f2 = nn.Linear(54, 8), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x):
        x = self.pool(functional.relu(self.c1(x)))
        x = torch.relu(self.c2(x))
        x = x.view(x.size(0), -1)
        return self.f2(self.drop(self.f1(x).relu()))


class Block(nn.Module):
    """The usual residual block: the shortcut is defined last and added in place."""

    def __init__(self, wide, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu, self.down = nn.ReLU(inplace=True), None
        if stride > 1 or wide != out:
            self.down = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


def small_resnet():
    stem = [nn.Conv2d(2, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(
        *stem, Block(4, 4, 1), Block(4, 6, 2), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(6, 3)
    )


def plain(*layers):
    """These layers on inputs (2, 8, 8), and what it takes to get from there to three scores."""
    with torch.no_grad():
        out = nn.Sequential(*layers)(torch.zeros(2, 2, 8, 8))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(out[0].numel(), 3))


MODULES = {
    "tutorial": Tutorial,
    "resnet": small_resnet,
    "group norm, mean": lambda: plain(nn.Conv2d(2, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2)),
    "identity": lambda: plain(nn.Identity(), nn.Conv2d(2, 3, 2, stride=3), nn.Dropout(0.5)),
}


@pytest.mark.parametrize("name", MODULES)
def test_same_outputs_and_same_updates(name):
    """Parameters, buffers and counters of one are those of the other; after some steps of training too."""
    factory = MODULES[name]
    module = factory()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    network = translate(module, (2, 8, 8))
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert module.training
    data = oracle.body(network, [20, 9, 33])
    model = initial(factory, np.random.default_rng(0))
    assert model.params.size == network.n_params
    assert model.buffers.size == network.n_buffers
    plan = Plan(epochs=2, batch_size=8, lr=0.05, momentum=0.9, round=1)
    mine = FusedEngine(network, data).train(model, np.arange(3), plan).updates
    true = ReferenceEngine(factory, data).train(model, np.arange(3), plan).updates
    np.testing.assert_allclose(mine.delta, true.delta, atol=5e-4 * np.abs(true.delta).max())
    if network.n_buffers:
        np.testing.assert_allclose(mine.buffers, true.buffers, rtol=1e-3, atol=1e-5)
        assert np.array_equal(mine.counters, true.counters)


def test_the_network_that_is_made():
    assert translate(Tutorial(), (2, 8, 8)).layers == (
        Conv(4, 3), ReLU(), MaxPool(2), Conv(6, 3, 1), ReLU(), Flatten(), Linear(8), ReLU(), Dropout(0.3), Linear(3),
    )  # fmt: skip
    residuals = [layer for layer in translate(small_resnet(), (2, 8, 8)).layers if isinstance(layer, Residual)]
    assert [bool(layer.shortcut) for layer in residuals] == [False, True]
    assert translate(torch_networks.vgg11(), (3, 32, 32)).n_params == 9_231_114


class Odd(nn.Module):
    """A module with one linear layer and a forward of one's own."""

    def __init__(self, forward, *more):
        super().__init__()
        self.layer, self.more, self._forward = nn.Linear(6, 6), nn.ModuleList(more), forward

    def forward(self, x):
        return self._forward(self, x)


def frozen():
    module = nn.Sequential(nn.Linear(6, 3))
    module[0].weight.requires_grad = False
    return module


def hooked():
    module = nn.Sequential(nn.Linear(6, 3))
    module[0].register_forward_hook(lambda *_: None)
    return module


REFUSED = {
    "Softplus": lambda: nn.Sequential(nn.Linear(6, 4), nn.Softplus(), nn.Linear(4, 3)),
    "frozen|trainable": frozen,
    "hooks": hooked,
    "used more than once": lambda: Odd(lambda m, x: m.layer(m.layer(x))),
    "other code in training": lambda: Odd(lambda m, x: m.layer(x) if m.training else m.layer(x).relu()),
    "cannot trace": lambda: Odd(lambda m, x: m.layer(x) if x.sum() > 0 else x),
    "no layer of the chain uses it": lambda: Odd(lambda m, x: m.layer(x), nn.Linear(2, 2)),
    "another order": lambda: Odd(lambda m, x: m.layer(m.more[0](x)), nn.Linear(6, 6)),
    "mul": lambda: Odd(lambda m, x: m.layer(x) * 2),
    "only two values": lambda: Odd(lambda m, x: m.layer(x) + 1),
    "other outputs": lambda: Odd(lambda m, x: (h := m.layer(x), h.relu_() + h)[1]),
    "float32": lambda: nn.Sequential(nn.Linear(6, 3)).double(),
    "tied": lambda: _tied(),
}
CONVOLUTIONS = {
    "dilation": nn.Conv2d(2, 3, 3, dilation=2),
    "groups": nn.Conv2d(2, 4, 3, groups=2),
    "padding_mode": nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
    "kernel_size": nn.Conv2d(2, 3, (3, 1)),
    "ceil_mode": nn.MaxPool2d(3, ceil_mode=True),
    "padding": nn.AvgPool2d(2, padding=1),
    "output_size": nn.AdaptiveAvgPool2d(2),
    "affine": nn.GroupNorm(2, 2, affine=False),
    "track_running_stats": nn.BatchNorm2d(2, track_running_stats=False),
    "momentum": nn.BatchNorm2d(2, momentum=None),
    "Dropout2d": nn.Dropout2d(),
}


def _tied():
    module = Odd(lambda m, x: m.more[0](m.layer(x)), nn.Linear(6, 6))
    module.more[0].weight = module.layer.weight
    return module


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_chain_of_known_layers_is_refused(why):
    with pytest.raises(Untranslatable, match="no layer|order" if why == "tied" else why):
        translate(REFUSED[why](), (6,))


@pytest.mark.parametrize("why", CONVOLUTIONS)
def test_options_that_a_network_has_not_are_refused(why):
    with pytest.raises(Untranslatable, match=why):
        translate(plain(CONVOLUTIONS[why]), (2, 8, 8))


def test_auto_translates_and_says_so(caplog):
    caplog.set_level(logging.INFO, "fedcohort.engine")
    data = oracle.body(translate(Tutorial(), (2, 8, 8)), [5])
    assert choose(Tutorial, data).name == "fused"
    assert "translated" in caplog.text
    assert choose(lambda: plain(nn.Conv2d(2, 3, 3), nn.Softplus()), data).name != "fused"
    assert "layer 1 (Softplus)" in caplog.text
