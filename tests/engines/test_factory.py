"""Which engine is chosen, where it runs, and what is refused at the start, each in one sentence."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fedcohort.engines import torch_device  # noqa: E402
from fedcohort.engines.factory import choose  # noqa: E402
from fedcohort.engines.networks import Flatten, Linear, MaxPool, Network, mlp  # noqa: E402
from fedcohort.engines.recipe import Recipe  # noqa: E402
from fedcohort.engines.torch_losses import binary_cross_entropy, own_loss, token_cross_entropy  # noqa: E402
from fedcohort.errors import FedcohortError, UnknownName  # noqa: E402

NET = mlp(12, 8, classes=4)


def plain():
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))


def curved():
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


@pytest.fixture
def data(make_data):
    return make_data([6, 3])


def with_target(data, target):
    from dataclasses import replace

    return replace(data, target=np.asarray(target))


def test_auto_takes_the_fastest_that_can_and_says_why(data, make_data, caplog):
    images = make_data([4, 2], shape=(1, 8, 8))
    odd = Network((1, 8, 8), (MaxPool(2), Flatten(), Linear(4)))
    crop = Recipe(NET, augmentation=lambda x, rng: x)
    models = {"known": (NET, data), "translated": (plain, data), "Tanh": (curved, data)}
    models |= {"MaxPool": (odd, images), "augmentation": (crop, data)}
    with caplog.at_level(logging.INFO, "fedcohort.engine"):
        names = [choose(model, where).name for model, where in models.values()]
    assert names[:3] == ["fused", "fused", "torch_workers"]
    assert names[4] == "torch_workers"
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("engine: ")]
    assert len(lines) == len(models)
    for word, line in zip(("that it knows", "translated", "Tanh"), lines, strict=False):
        assert word in line
    assert "its own augmentation" in lines[4]


def test_a_gpu_is_taken_where_fused_cannot(data, monkeypatch):
    """A device that is there, by a fake: the CPU under the name that torch would give."""
    monkeypatch.setattr(torch_device, "resolve", lambda device: "cpu" if device == "cpu" else "cpu:0")
    from fedcohort.engines import factory

    made = []
    monkeypatch.setattr(factory, "_make", lambda kind, *rest: made.append(kind) or _Made(kind))
    choose(curved, data)
    choose(NET, data)
    choose(NET, data, device="cuda")
    choose(curved, data, device="cpu")
    assert made == ["torch_vmap", "fused", "torch_vmap", "torch_workers"]


class _Made:
    def __init__(self, name):
        self.name, self.device = name, "cpu"


def test_engines_by_name(data):
    for kind in ("torch_reference", "torch_vmap"):
        engine = choose(NET, data, kind, device="cpu")
        assert (engine.name, engine.device) == (kind, "cpu")
    assert choose(plain, data, "numpy").name == "numpy"
    with pytest.raises(UnknownName, match="did you mean fused"):
        choose(NET, data, "fuzed")


def ints(*shape):
    return np.zeros(shape, np.int64)


def nan(output, target):
    return output[:, 0] * float("nan")


BAD = {
    "unknown device": ({"device": "gpu"}, plain, None, "device 'gpu': there is no device of this name"),
    "no cuda": ({"device": "cuda"}, plain, None, "no CUDA devices here; use device='cpu'"),
    "no second cuda": ({"device": "cuda:1"}, NET, None, "no CUDA devices here"),
    "no mps": ({"kind": "torch_reference", "device": "mps"}, plain, None, "no Apple GPU"),
    "unknown precision": ({"kind": "torch_vmap", "precision": "half"}, plain, None, "precision 'half'"),
    "fused on cuda": ({"kind": "fused", "device": "cuda"}, NET, None, "computes on the CPU"),
    "numpy and a module": ({"kind": "numpy"}, curved, None, "engine numpy: it cannot train this torch model"),
    "fused and a loss": ({"kind": "fused"}, Recipe(plain, own_loss("mse")), np.zeros((9, 4)), "its own loss"),
    "width": ({}, lambda: nn.Linear(7, 4), None, "mat1 and mat2 shapes cannot be multiplied (3x12 and 7x4)"),
    "type of input": ({}, lambda: nn.Embedding(12, 4), None, "on a batch of shape (3, 12), float32: RuntimeError"),
    "type of weights": ({}, lambda: nn.Linear(12, 4).double(), None, "the same dtype, but got"),
    "outputs": ({}, lambda: nn.Linear(12, 5), None, "the data have 4 classes"),
    "no tensor": ({}, lambda: nn.GRU(12, 4), None, "it returns tuple; return one tensor"),
    "rows": ({}, lambda: nn.Sequential(nn.Linear(12, 4), nn.Flatten(0)), None, "return one row per sample"),
    "no parameters": ({}, nn.Identity, None, "no parameters to train"),
    "no module": ({}, lambda: 3, None, "a factory must make a torch.nn.Module"),
    "labels": ({}, Recipe(curved, token_cross_entropy), ints(9) + 4, "targets from 0 to 4 are not among the 4"),
    "labels of many": ({}, Recipe(curved, binary_cross_entropy), ints(9, 4) + 2, "are not 0 or 1"),
    "loss is NaN": ({}, Recipe(curved, nan), np.zeros(9), "it is not finite for the first model"),
    "loss of shape": ({}, Recipe(curved, lambda o, t: o.T), np.zeros(9), "a loss of shape (4, 3) for 3 samples"),
    "loss is a number": ({}, Recipe(curved, lambda o, t: 1.0), np.zeros(9), "a loss of type float"),
    "loss without way back": ({}, Recipe(curved, lambda o, t: o.detach()), np.zeros(9), "does not require grad"),
    "loss raises": ({}, Recipe(curved, lambda o, t: 1 / 0), np.zeros(9), "ZeroDivisionError"),
    "repeated": ({}, Recipe(lambda: nn.Linear(12, 1), own_loss(nn.MSELoss())), np.zeros(9, np.float32), "target size"),
    "no optimiser": ({}, Recipe(curved, optimiser=lambda p, lr: None), None, "it returns NoneType, not a torch.optim"),
    "bad optimiser": ({}, Recipe(curved, optimiser=lambda p: p), None, "lambda params, lr"),
    "augmentation": ({}, Recipe(curved, augmentation=lambda x, rng: x[:1]), None, "it must keep the 3 samples"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_said_in_one_sentence(name, data):
    options, model, target, sentence = BAD[name]
    with pytest.raises(FedcohortError) as raised:
        choose(model, data if target is None else with_target(data, target), **options)
    text = str(raised.value)
    assert sentence in text
    assert "\n" not in text
    assert text.endswith(".")


def test_losses_by_name_and_with_reduction(data):
    with pytest.raises(UnknownName, match="mse"):
        own_loss("msee")
    output, target = torch.randn(5, 3), torch.randn(5, 3)
    for given in (nn.MSELoss(), nn.functional.mse_loss, partial(nn.functional.mse_loss, reduction="none"), "mse"):
        each = own_loss(given)(output, target)
        each = each.mean(dim=1) if each.ndim == 2 else each
        assert torch.allclose(each, ((output - target) ** 2).mean(dim=1))


def test_ragged_targets_leave_their_padding_out():
    output = torch.randn(2, 3, 4)
    target = torch.tensor([[1, 2, -100], [3, -100, -100]])
    log_p = torch.log_softmax(output, dim=-1)
    want = torch.stack([-(log_p[0, 0, 1] + log_p[0, 1, 2]) / 2, -log_p[1, 0, 3]])
    assert torch.allclose(token_cross_entropy(output, target), want)
    nan, out = float("nan"), torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    each = own_loss("mae")(out, torch.tensor([[0.0, nan], [1.0, 1.0]]))
    assert each.tolist() == [1.0, 2.5]
    each.sum().backward()
    assert torch.isfinite(out.grad).all()
