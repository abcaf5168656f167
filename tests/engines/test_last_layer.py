"""What counts as the last layer of a torch module: what forward calls last, wherever its parameters lie."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort import TorchTask, simulate
from fedcohort.types import Plan

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fedcohort.engines.torch_modules import initial  # noqa: E402
from fedcohort.engines.torch_reference import ReferenceEngine  # noqa: E402
from fedcohort.engines.torch_vmap import VmapEngine  # noqa: E402
from fedcohort.engines.torch_workers.workers_engine import WorkersEngine  # noqa: E402


class HeadFirst(nn.Module):
    """The head is defined before the body."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(6, 4), nn.Linear(12, 6)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))


class Tied(nn.Module):
    """The head has the weights of the first layer, and a bias of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(12, 4, bias=False), nn.Linear(4, 12), nn.Linear(12, 4)
        self.head.weight = self.first.weight

    def forward(self, x):
        return self.head(self.middle(self.first(x.flatten(1))))


class Token(nn.Module):
    """A parameter of the whole module does not make the whole module the last layer."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Parameter(torch.zeros(12)), nn.Linear(12, 4)

    def forward(self, x):
        return self.head(x.flatten(1) + self.token)


class Uncopied(HeadFirst):
    """Cannot be copied, so another one is made to try out."""

    def __deepcopy__(self, memo):
        raise RuntimeError("there is only one")


LAST = {
    HeadFirst: ["head.weight", "head.bias"],
    Tied: ["first.weight", "head.bias"],
    Token: ["head.weight", "head.bias"],
    Uncopied: ["head.weight", "head.bias"],
}
ENGINES = {"torch_reference": ReferenceEngine, "torch_vmap": VmapEngine, "torch_workers": WorkersEngine}


def places(make, names):
    """Positions of the tensors of these names in the flat parameters."""
    found, start = [], 0
    for name, p in make().named_parameters():
        found += range(start, start + p.numel()) if name in names else ()
        start += p.numel()
    return np.array(found)


@pytest.mark.parametrize("make", LAST, ids=lambda make: make.__name__)
@pytest.mark.parametrize("kind", ENGINES)
def test_the_last_layer_is_what_forward_calls_last(kind, make, make_data):
    engine = ENGINES[kind](make, make_data([20, 33]))
    expected = places(make, LAST[make])
    assert np.array_equal(np.arange(engine.n_params)[engine.last_layer], expected)
    assert isinstance(engine.last_layer, slice) == (make is not Tied)
    model, clients = initial(make, np.random.default_rng(0)), np.arange(2)
    whole, part = (engine.gradients(model, clients, last_layer=last) for last in (False, True))
    assert np.array_equal(part, whole[:, expected])
    plan = Plan(batch_size=8, measure=frozenset({"insight"}))
    assert np.array_equal(engine.train(model, clients, plan).signals["insight"], np.float32(-0.1) * part)


def test_looking_for_it_leaves_module_and_generator_as_they_were(make_data):
    class Counting(HeadFirst):
        """Counts calls, and changes a buffer even in evaluation."""

        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            self.seen += torch.rand(1)
            return super().forward(x)

    before = torch.random.get_rng_state()
    engine = ReferenceEngine(Counting, make_data([20, 33]))
    module = engine._flat.module
    assert (module.calls, float(module.seen), module.training) == (0, 0.0, True)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("selector", ["divfl", "fedacs"])
def test_runs_that_read_the_last_layer_of_tied_weights(selector):
    x = np.random.default_rng(0).standard_normal((120, 12)).astype(np.float32)
    where = {"world": "iid-v1(clients=6)", "engine": "torch_reference"}
    history = simulate(selector, task=TorchTask(Tied, (x, x[:, :4].argmax(axis=1))), rounds=3, cohort_size=3, **where)
    assert history.column("ok").sum() == 9
