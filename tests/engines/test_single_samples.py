"""Modules that need two samples, as under BatchNorm1d: a last batch of one, clients of one, evaluation of one."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

from fedcohort import TorchTask, simulate
from fedcohort.engines.interface import batch_order
from fedcohort.engines.losses import CROSS_ENTROPY
from fedcohort.errors import BadParameter
from fedcohort.types import Plan

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fedcohort.engines.torch_modules import Flat, initial  # noqa: E402
from fedcohort.engines.torch_reference import CHUNK, ReferenceEngine  # noqa: E402
from fedcohort.engines.torch_vmap import VmapEngine  # noqa: E402
from fedcohort.engines.torch_workers.workers_engine import WorkersEngine  # noqa: E402

ENGINES = {
    "torch_reference": ReferenceEngine,
    "torch_vmap": lambda model, data: VmapEngine(model, data, "cpu"),
    "torch_workers": lambda model, data: WorkersEngine(model, data, 1),
}
PLAN = Plan(batch_size=8, epochs=2, lr=0.1)
SIZES = [17, 16, 1]  # a last batch of one, none such, nothing but one


def by_batch():
    """Normalised by its batch in training."""
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def always_by_batch():
    """Normalised by its batch in evaluation too."""
    norm = nn.BatchNorm1d(8, track_running_stats=False)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), norm, nn.ReLU(), nn.Linear(8, 4))


def by_place():
    """Normalised over many places of an image, so that one sample is enough."""
    return nn.Sequential(nn.Unflatten(1, (1, 12)), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(12, 4))


class Guarded(nn.Sequential):
    """Holds a lock, which cannot be copied."""

    def __init__(self):
        super().__init__(*by_batch())
        self.lock = threading.Lock()


class Picky(nn.Module):
    """Refuses one sample though nothing in it depends on the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x):
        assert len(x) > 1
        return self.layer(x)


def by_hand(make, model, data, keep):
    """Client 0 in plain torch, on the first `keep` samples of each epoch's order."""
    module = make()
    flat = Flat(module)
    flat.write(model.params, model.buffers, model.counters)
    optimiser = torch.optim.SGD(module.train().parameters(), PLAN.lr)
    for epoch in range(2):
        for pos in np.split(batch_order(SIZES[0], PLAN, 0, epoch)[:keep], [8, 16]):
            if pos.size:
                at = data.train.index[pos]
                loss = nn.functional.cross_entropy(
                    module(torch.from_numpy(data.x[at])), torch.from_numpy(data.train.label[pos])
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return flat.read()


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(("make", "keep"), [(by_batch, 16), (by_place, 17)], ids=["needs two", "takes one"])
def test_a_last_batch_of_one_sample_is_left_out_only_where_it_must_be(kind, make, keep, make_data):
    data = make_data(SIZES, shape=(12,))
    model = initial(make, np.random.default_rng(0))
    trained = ENGINES[kind](make, data).train(model, np.arange(3), PLAN)
    expected, steps = by_hand(make, model, data, keep), [-(-keep // 8) * 2, 4]
    np.testing.assert_allclose(model.params + trained.updates.delta[0], expected.params, atol=1e-5)
    np.testing.assert_allclose(trained.updates.buffers[0], expected.buffers, atol=1e-5)
    assert trained.updates.counters[:2, 0].tolist() == trained.updates.steps[:2].tolist() == steps
    assert trained.failed.tolist() == [False, False, make is by_batch]
    assert set(trained.reasons) == ({2} if make is by_batch else set())


def test_a_module_that_cannot_be_copied_is_made_again(make_data):
    data = make_data(SIZES[:2], shape=(12,))
    model = initial(Guarded, np.random.default_rng(0))
    assert ReferenceEngine(Guarded, data).train(model, np.arange(2), PLAN).failed.tolist() == [False, False]


def test_vmap_leaves_out_what_the_reference_leaves_out(make_data):
    data = make_data(SIZES[:2], shape=(12,))
    model = initial(Picky, np.random.default_rng(0))
    made = [ENGINES[k](Picky, data).train(model, np.arange(2), PLAN).updates for k in ("torch_reference", "torch_vmap")]
    assert [updates.steps.tolist() for updates in made] == [[4, 4], [4, 4]]
    np.testing.assert_allclose(made[0].delta, made[1].delta, atol=1e-6)


@pytest.mark.parametrize("kind", ENGINES)
def test_one_sample_is_evaluated_by_its_own_statistics(kind, make_data):
    """It is its own mean: what a normalisation makes of it is the shift, here 0, and then the last bias."""
    data = make_data([CHUNK + 1, 1], shape=(12,))
    model = initial(always_by_batch, np.random.default_rng(0))
    engine, bias = ENGINES[kind](always_by_batch, data), model.params[-4:]
    np.testing.assert_allclose(engine.logits(model.params[None], data.x[:1])[0, 0], bias, atol=1e-4)
    whole = engine.logits(model.params[None], data.x[: CHUNK + 1])[0]
    np.testing.assert_allclose(whole[:CHUNK], engine.logits(model.params[None], data.x[:CHUNK])[0], atol=1e-6)
    label = int(data.train.label[-1])
    expected = np.log(np.exp(bias.astype(float)).sum()) - bias[label]
    assert engine.losses(model, np.arange(2), "train", CROSS_ENTROPY).loss[1] == pytest.approx(expected, rel=1e-4)
    gradient = engine.gradients(model, np.arange(2))
    share = np.exp(bias.astype(float)) / np.exp(bias.astype(float)).sum()
    np.testing.assert_allclose(gradient[1, -4:], share - np.eye(4)[label], atol=1e-4)


X = np.random.default_rng(0).standard_normal((160, 12)).astype(np.float32)
OWNER = np.repeat([0, 1, 2], [17, 16, 127])


def run(**more):
    """Three clients, tested on samples apart."""
    task = TorchTask(by_batch, (X, X[:, :4].argmax(axis=1)), client=OWNER, test=(X, X[:, :4].argmax(axis=1)), **more)
    return simulate(task=task, world="owners-v1", rounds=2, cohort_size=3, engine="torch_reference")


def test_it_is_said_once_what_becomes_of_single_samples(caplog):
    with caplog.at_level(logging.WARNING, "fedcohort.engine"):
        history = run(batch_size=13, validation=0.0)  # and a world's own validation leaves 14, 14 and 108 samples
    said = [r.getMessage() for r in caplog.records if "one sample" in r.getMessage()]
    assert said == [
        "module Sequential cannot be trained on one sample: with batch_size 13, 2 of 3 clients leave one out of "
        "every epoch; use another batch_size, or GroupNorm instead of BatchNorm"
    ]
    assert history.column("ok").tolist() == [3.0, 3.0]


def test_batches_of_one_sample_are_refused():
    with pytest.raises(
        BadParameter, match=r"batch_size = 1: module Sequential cannot be trained on one sample, so every"
    ):
        run(batch_size=1)
