"""The stand-alone analytics: planted skewness is found in worlds and in own arrays, and the report is right."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedcohort import Dataset
from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter, DataError, UnknownName
from fedcohort.registry.lookup import make_task_spec, make_world_spec
from fedcohort.skew import SkewReport, rank_clients, ranking, skewness
from fedcohort.tasks.classification import ClassificationSpec
from fedcohort.types import Plan
from fedcohort.worlds.built_world import build_world
from fedcohort.worlds.natural import LabelSkew
from fedcohort.worlds.world_spec import Validation, WorldSpec

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fedacs_training_run
import real_data


def own_arrays(owners=12, each=60, classes=4, seed=0):
    """Owner i takes a share i / (owners - 1) of its samples from one class; features are noisy class centres."""
    rng = np.random.default_rng(seed)
    alpha = np.linspace(0, 1, owners)
    client = np.repeat(np.arange(owners), each)
    y = np.where(rng.random(client.size) < alpha[client], client % classes, rng.integers(0, classes, client.size))
    x = rng.normal(size=(classes, 6))[y] + 0.5 * rng.normal(size=(client.size, 6))
    return x, y, client, alpha


def report(win_share, q=None, compared=10, **more):
    win_share = np.asarray(win_share, float)
    n = win_share.size
    q = -win_share if q is None else np.asarray(q, float)
    counts = np.broadcast_to(compared, (n,)).copy()
    return SkewReport("t", "w", 10, np.full(n, 5), counts, win_share, q, **more)


def test_a_world_of_the_catalogue():
    found = rank_clients("digits-mlp", "fedacs-uniform-v1(clients=60)", rounds=6, seed=1)
    assert found.truth is not None
    assert spearman(found.rank, found.truth) > 0.9
    assert (found.compared == 6).all()
    best = np.zeros(60, bool)
    best[np.argsort(found.truth)[:24]] = True
    assert best[found.best()].mean() > 0.8


def test_own_arrays_by_owner():
    x, y, client, alpha = own_arrays()
    found = rank_clients(Dataset.from_arrays(x, y, client), rounds=8)
    assert found.population == 12
    assert found.samples.tolist() == [60] * 12  # nothing is cut away
    assert spearman(found.rank, alpha) > 0.85
    assert spearman(found.rank, found.truth) > 0.85


def test_own_arrays_in_a_world():
    x, y, _, _ = own_arrays(owners=20)
    found = rank_clients(Dataset.from_arrays(x, y), "dirichlet-0.1-v1(clients=8)", rounds=2)
    assert found.population == 8


def test_training_along_finds_it_too():
    found = rank_clients("digits-mlp", "fedacs-uniform-v1(clients=60)", rounds=20, per_round=20, train=True, seed=1)
    assert spearman(found.rank, found.truth) > 0.7
    assert not found.independent
    assert "not independent" in found.statement()


def test_turns_are_even_and_rounds_repeat_with_the_seed():
    one = rank_clients("digits-softmax", "fedacs-uniform-v1(clients=50)", rounds=7, per_round=12)
    two = rank_clients("digits-softmax", "fedacs-uniform-v1(clients=50)", rounds=7, per_round=12)
    other = rank_clients("digits-softmax", "fedacs-uniform-v1(clients=50)", rounds=7, per_round=12, seed=5)
    assert one.compared.sum() == 7 * 12
    assert one.compared.max() - one.compared.min() <= 1
    np.testing.assert_array_equal(one.win_share, two.win_share)
    assert not np.array_equal(one.win_share, other.win_share)


def test_a_win_share_is_the_share_of_the_others_beaten():
    """One round of everybody: the shares are (N - 1 - place) / (N - 1) in the order of Q, and sum to N / 2."""
    found = rank_clients("digits-softmax", "fedacs-uniform-v1(clients=11)", rounds=1)
    np.testing.assert_allclose(np.sort(found.win_share), np.arange(11) / 10)
    np.testing.assert_array_equal(np.argsort(found.win_share)[::-1], np.argsort(found.q))


def test_liars_and_drop_outs_do_not_break_it():
    found = rank_clients("digits-mlp", "liars-v1", rounds=5)
    assert np.isfinite(found.win_share[found.known]).all()
    assert (found.rank[~found.known] != found.rank[~found.known]).all()


def test_skewness_by_hand():
    """M = 1 4 1 on a line at 0 3 6: mean 3, Q = 3 0 3."""
    np.testing.assert_allclose(skewness(np.array([[0.0], [3.0], [6.0]]), np.array([1, 4, 1])), [3, 0, 3])


def test_report_ranks_ties_and_the_never_compared():
    """Shares .9 .5 .5 .1 and one client nobody met: Q decides between equals; equal in both share their rank."""
    found = report([0.9, 0.5, 0.5, 0.1, math.nan], q=[1, 3, 2, 4, math.nan], compared=[9, 9, 9, 9, 0], share=0.5)
    np.testing.assert_array_equal(found.rank, [1, 3, 2, 4, math.nan])
    assert found.order().tolist() == [0, 2, 1, 3]
    assert found.confidence[4] == 0
    assert not found.settled[4]
    same = report([0.5, 0.5], q=[1, 1])
    np.testing.assert_array_equal(same.rank, [1.5, 1.5])


def test_report_confidence_by_hand():
    """Shares .9 .7 .3 .1 and half of them kept: border .5; n = 10: 1 - exp(-20 gap^2), gaps .4 .2 .2 .4.

    1 - e^-3.2 = .959238 and 1 - e^-.8 = .550671; with delta = .05 the outer two are settled.
    """
    found = report([0.9, 0.7, 0.3, 0.1], share=0.5)
    assert found.border == pytest.approx(0.5)
    np.testing.assert_allclose(found.confidence, [0.959238, 0.550671, 0.550671, 0.959238], atol=1e-6)
    assert found.settled.tolist() == [True, False, False, True]
    assert found.best().tolist() == [0, 1]
    assert found.best(0.25).tolist() == [0]
    text = found.statement()
    assert "2 of 4 clients are on their side" in text
    assert f"within {math.sqrt(math.log(160) / 20):.2f}" in text
    assert f"needs {found.needed(0.1)} comparisons" in text


def test_report_without_any_comparison_says_so():
    nothing = report([math.nan, math.nan], compared=0)
    assert "nothing can be said" in nothing.statement()
    assert nothing.best().size == 0


def test_confidence_grows_with_rounds():
    few = rank_clients("digits-softmax", "fedacs-uniform-v1(clients=30)", rounds=3)
    many = rank_clients("digits-softmax", "fedacs-uniform-v1(clients=30)", rounds=30)
    assert many.settled.sum() > few.settled.sum()
    assert (many.radius < few.radius).all()


def test_mistakes_are_named():
    x, y, client, _ = own_arrays()
    with pytest.raises(DataError, match=r"owners.*world"):
        rank_clients(Dataset.from_arrays(x, y))
    with pytest.raises(BadParameter, match="one class"):
        rank_clients(Dataset.from_arrays(x, np.zeros_like(y), client))
    with pytest.raises(UnknownName, match="fedacs-uniform-v1"):
        rank_clients("digits-mlp", "fedacs-uniform")
    world = "fedacs-uniform-v1(clients=10)"
    for bad in ({"rounds": 0}, {"per_round": 1}, {"share": 1.0}, {"delta": 0.0}):
        with pytest.raises(BadParameter, match=next(iter(bad))):
            rank_clients("digits-softmax", world, **bad)


def test_specifications_instead_of_names():
    found = rank_clients(make_task_spec("digits-softmax"), make_world_spec("fedacs-uniform-v1(clients=10)"), rounds=1)
    assert found.population == 10


def test_q_follows_alpha_in_a_real_training_run(monkeypatch):
    """CIFAR-10, 5,000 of its samples, the paper's CNN: after four rounds of training under FedACS, Spearman >= 0.8."""
    folder = real_data.need("cifar10")
    monkeypatch.setenv("FEDCOHORT_DATA", str(folder))
    spec = make_task_spec("cifar10-cnn")
    whole = spec.data
    few = replace(whole, x=whole.x[:5000], y=whole.y[:5000], x_test=whole.x_test[:200], y_test=whole.y_test[:200])
    small = replace(spec, dataset=few)
    monkeypatch.setattr("fedcohort.experiment.runs.make_task_spec", lambda text: small)
    world = "fedacs-uniform-v1(reuse=2.0, clients=100)"
    found = fedacs_training_run.follow("cifar10-cnn", (4,), world=world)
    assert found[4][0] >= 0.8


def test_the_world_is_the_one_of_a_run_and_its_clock_goes_on():
    rng = np.random.default_rng(0)
    doing = rng.integers(0, 8, 600)
    data = Dataset.from_arrays(rng.normal(size=(600, 4)), doing % 2, client=rng.integers(0, 6, 600), activity=doing)
    place = WorldSpec("w", 0, LabelSkew(labels=3), validation=Validation(held_out=0.0))
    task = ranking._spec(data)
    sizes = build_world(place, task.labels(), seed=0, owners=task.owners(), activities=task.activities()).train.sizes
    assert rank_clients(data, place, rounds=1).samples.tolist() == sizes.tolist()
    by_the_clock = rank_clients("digits-softmax", "diurnal-v1(tick=60.0)", rounds=30)
    assert by_the_clock.known.all()  # whoever sleeps in the first round is awake later


def test_the_common_model_takes_over_the_clients_statistics():
    """Insights are gradients with the running statistics of batch normalisation: a trained model has trained ones."""
    torch = pytest.importorskip("torch")
    x, y, client, _ = own_arrays()
    spec = ClassificationSpec("mine", Dataset.from_arrays(x, y, client), partial(_normalised, torch), Plan(lr=0.1))
    world = build_world(make_world_spec("owners-v1"), spec.labels(), seed=0, owners=spec.owners(), classes=4)
    tally = ranking._Tally(spec.bind(world), world, True, 0)
    first = tally.model
    tally.round(0, np.arange(world.population))
    assert not np.array_equal(tally.model.params, first.params)
    assert np.abs(tally.model.buffers - first.buffers).max() > 0.01
    assert tally.model.counters.min() > 0


def _normalised(torch):
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
