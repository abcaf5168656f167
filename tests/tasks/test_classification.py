"""Classification tasks: cuts of the data, probes, scores, the server's evaluator,
and FedAvg written by hand on digits."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedcohort.data.dataset import Dataset
from fedcohort.data.splits import cut, with_test
from fedcohort.engines.networks import mlp
from fedcohort.errors import BadParameter, ContractError, DataError, UnknownName
from fedcohort.methods._parts.server_validation import logits_of
from fedcohort.rounds.aggregation import model_gains
from fedcohort.rounds.sent_models import whole
from fedcohort.signals import SIGNALS, of_side
from fedcohort.tasks import catalogue
from fedcohort.tasks.classification import ClassificationSpec
from fedcohort.tasks.scores import scores
from fedcohort.types import Model, Objective, Plan


def blobs(n=400, classes=4, owners=8, test=0, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n + test)
    x = (rng.standard_normal((classes, 6)) * 2)[y] + rng.standard_normal((n + test, 6))
    who = rng.integers(owners, size=n + test)
    more = {"x_test": x[n:], "y_test": y[n:], "client_test": who[n:]} if test else {}
    return Dataset.from_arrays(x[:n], y[:n], who[:n], **more)


@pytest.fixture
def spec():
    return ClassificationSpec("blobs", blobs(), mlp(6, 8, classes=4), Plan(batch_size=10, lr=0.2), unlabelled=0.1)


@pytest.fixture
def task(spec, make_world):
    return spec.bind(make_world(spec.labels(), 5, 4, held=4), engine="numpy")


def fedavg(spec, world, rounds, seed=0):
    task = spec.bind(world, engine="numpy")
    model = task.initial(np.random.default_rng(seed))
    for r in range(rounds):
        cohort = np.sort(np.random.default_rng([seed, r]).choice(world.population, 10, replace=False))
        trained = task.train(model, cohort, replace(task.plan(), round=r, seed=seed))
        u = trained.updates
        model = model.with_params(model.params + u.weight / u.weight.sum() @ u.delta)
    return task.evaluate(model, "test")["accuracy"]


def test_digits_learn_and_heterogeneity_hurts(make_world):
    """30 rounds of 10 of 50 clients: above 0.93 when IID; label skew and label noise cost accuracy."""
    spec = catalogue.get("digits-mlp")

    def mean(**world):
        return np.mean([fedavg(spec, make_world(spec.labels(), 50, 10, seed=s, **world), 30, s) for s in range(2)])

    iid = mean()
    assert iid > 0.93
    assert mean(alpha=0.1) < iid - 0.03
    assert mean(alpha=0.1, noise=0.3) < iid - 0.1


def test_the_parts_are_disjoint_and_complete(spec):
    parts = spec.parts
    rows = np.concatenate([parts.pool, parts.validation, parts.unlabelled])
    assert np.array_equal(np.sort(rows), np.arange(len(spec.data.y)))
    assert len(spec.data.y) + len(spec.data.y_test) == 400
    assert spec.labels().size == parts.pool.size == spec.owners().size
    n = len(spec.data.y)
    assert abs(parts.validation.size - 0.1 * n) <= 2
    assert abs(parts.unlabelled.size - 0.1 * n) <= 2


def test_cuts_by_class_owner_and_within():
    data = blobs(4000, owners=10)
    rng = np.random.default_rng
    by_class = cut(data.y, None, 0.25, "class", rng(0))
    for k in range(4):
        assert abs(by_class[data.y == k].mean() - 0.25) < 1e-3
    by_owner = cut(data.y, data.client, 0.3, "owner", rng(0))
    assert np.unique(data.client[by_owner]).size == 3
    assert not np.intersect1d(data.client[by_owner], data.client[~by_owner]).size
    within = cut(data.y, data.client, 0.1, "within", rng(0))
    for k in range(10):
        assert abs(within[data.client == k].mean() - 0.1) < 0.01
    assert not cut(data.y, None, 0.0, "class", rng(0)).any()
    with pytest.raises(DataError, match="owners"):
        cut(data.y, None, 0.3, "owner", rng(0))


def owned(*sizes, classes=2):
    """Labels and owners of so many samples each."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return np.arange(owner.size) % classes, owner


@pytest.mark.parametrize("seed", range(5))
def test_a_cut_never_takes_the_last_sample_of_an_owner(seed):
    labels, owner = owned(40, 40, 30, *[1] * 10, 2, 2)
    bare = cut(labels, None, 0.4, "class", np.random.default_rng(seed))
    assert set(owner[~bare]) != set(owner)  # chance alone leaves somebody out
    mask = cut(labels, owner, 0.4, "class", np.random.default_rng(seed))
    assert set(owner[~mask]) == set(owner)
    assert np.bincount(labels[mask]).tolist() == np.bincount(labels[bare]).tolist()  # one for one, class by class
    within = cut(labels, owner, 0.9, "within", np.random.default_rng(seed))
    assert set(owner[~within]) == set(owner)


def test_cuts_that_leave_nobody_out_are_those_of_data_without_owners():
    labels, owner = owned(*[60] * 10)
    for share in (0.1, 0.2, 0.5):
        with_owners, without = (cut(labels, o, share, "class", np.random.default_rng(3)) for o in (owner, None))
        assert np.array_equal(with_owners, without)


def test_owners_of_one_sample_each_still_leave_something_to_test_on():
    labels, owner = owned(*[1] * 50)
    assert cut(labels, owner, 0.2, "class", np.random.default_rng(0)).sum() == 10


def test_volunteers_are_never_on_both_sides():
    spec = ClassificationSpec("b", blobs(2000, owners=20), mlp(6, classes=4), split="owner", validation=0.1, test=0.2)
    data, parts = spec.data, spec.parts
    sides = [set(data.client_test), set(data.client[parts.validation]), set(data.client[parts.pool])]
    assert [len(s) for s in sides] == [4, 2, 14]
    assert len(set.union(*sides)) == 20
    assert set(spec.owners()) == {data.client_names[c] for c in data.client[parts.pool]}


def test_whole_owners_come_from_every_kind():
    """15 owners with class 1 only, 9 with both: a fifth of 24 is five, three of the first kind and two of the other."""
    owner = np.repeat(np.arange(24), 10)
    labels = np.where((owner >= 15) & (np.arange(240) % 2 == 0), 0, 1)
    for seed in range(5):
        test = cut(labels, owner, 0.2, "owner", np.random.default_rng(seed))
        taken = np.unique(owner[test])
        assert (np.sum(taken < 15), np.sum(taken >= 15)) == (3, 2)
        assert test.sum() == 50


def test_an_official_test_set_stays_unless_recut():
    data = blobs(300, test=100)
    assert with_test(data, 0.5, "class", 0) is data
    anew = with_test(data, 0.25, "class", 0, anew=True)
    assert len(anew.y) + len(anew.y_test) == 400
    assert abs(len(anew.y_test) - 100) <= 4
    both = np.concatenate([anew.x, anew.x_test])
    assert np.allclose(np.sort(both.sum(axis=1)), np.sort(np.concatenate([data.x, data.x_test]).sum(axis=1)))
    assert anew.client.size == len(anew.y)


def test_cuts_depend_on_the_seed_only(spec):
    again = replace(spec)
    other = replace(spec, seed=1)
    assert np.array_equal(spec.parts.pool, again.parts.pool)
    assert np.array_equal(spec.data.y_test, again.data.y_test)
    assert not np.array_equal(spec.data.x_test, other.data.x_test)


def test_normalisation_and_shape(spec):
    moved = replace(spec, normal=(0.5, 2.0))
    assert np.allclose(moved.features("test"), (spec.features("test") - 0.5) / 2.0, atol=1e-6)
    assert np.allclose(moved.pool, (spec.data.x[spec.parts.pool] - 0.5) / 2.0, atol=1e-6)
    with pytest.raises(BadParameter, match="entry 2 must be positive"):
        replace(spec, normal=(0.0, 0.0))


def test_probes(task):
    """Each probe against the same number from raw logits of the client's samples."""
    model = task.initial(np.random.default_rng(0))
    clients = np.arange(5)
    plan = replace(task.plan(), batch_size=10_000, seed=4)
    got = task.probe(model, clients, of_side(SIGNALS, "probe"), plan)
    assert set(got) == of_side(SIGNALS, "probe") <= task.provides
    for k in clients:
        own = task._data.train.of(k)
        z = task.engine.logits(model.params[None], task._data.x[task._data.train.index[own]])[0].astype(float)
        y = task._data.train.label[own]
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        p_y = p[np.arange(len(y)), y]
        entropy = -(p * np.log(p)).sum(axis=1)
        assert got["probe_loss"][k] == pytest.approx(-np.log(p_y).mean(), rel=1e-5)
        assert got["probe_batch_loss"][k] == pytest.approx(-np.log(p_y).mean(), rel=1e-5)
        assert got["probe_accuracy"][k] == pytest.approx((z.argmax(axis=1) == y).mean())
        robust = (-np.log(p_y) + 0.1 * entropy + 4.0 * 4.0 * (1 - p_y)).mean()
        assert got["probe_robust_loss"][k] == pytest.approx(robust, rel=1e-5)
        gradient = task.engine.gradients(model, np.array([k]))[0]
        assert got["probe_grad_norm"][k] == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
        assert np.allclose(got["probe_weights"][k], model.params - 0.2 * gradient, atol=1e-6)
    held = task.engine.losses(model, clients, "validation", Objective()).loss
    assert np.array_equal(got["probe_val_loss"], held)
    assert set(task.probe(model, clients, frozenset({"probe_accuracy"}), plan)) == {"probe_accuracy"}


def test_batch_probe_is_keyed_and_small(task):
    model = task.initial(np.random.default_rng(0))
    want, plan = frozenset({"probe_batch_loss"}), replace(task.plan(), seed=1)
    both = task.probe(model, np.array([1, 3]), want, plan)["probe_batch_loss"]
    alone = task.probe(model, np.array([3]), want, plan)["probe_batch_loss"]
    assert both[1] == alone[0]
    later = task.probe(model, np.array([3]), want, replace(plan, round=1))["probe_batch_loss"]
    assert later[0] != alone[0]


def test_client_accuracy_prefers_validation(spec, make_world):
    held = make_world(spec.labels(), 5, 4, held=4)
    bare = make_world(spec.labels(), 5, 4)
    model = spec.bind(held, engine="numpy").initial(np.random.default_rng(0))
    first, second = (spec.bind(w, engine="numpy") for w in (held, bare))
    everybody = np.arange(5)
    assert np.array_equal(
        first.client_accuracy(model), first.engine.losses(model, everybody, "validation", Objective()).accuracy
    )
    assert np.array_equal(
        second.client_accuracy(model), second.engine.losses(model, everybody, "train", Objective()).accuracy
    )


def test_server_evaluator(task, spec):
    evaluator = task.server_evaluator()
    model = task.initial(np.random.default_rng(0))
    n = evaluator.size("validation")
    assert n == spec.parts.validation.size
    assert evaluator.size("unlabelled") == spec.parts.unlabelled.size > 0
    two = evaluator.logits(np.stack([model.params, 2 * model.params]), "validation")
    assert two.shape == (2, n, 4)
    accuracy = (two[0].argmax(axis=1) == evaluator.labels("validation")).mean()
    assert task.evaluate(model, "validation")["accuracy"] == pytest.approx(accuracy)
    target = np.full((3, 4), 0.25)
    loss, gradient = evaluator.gradient(model.params, "unlabelled", np.array([0, 2, 4]), target)
    z = evaluator.logits(model.params[None], "unlabelled")[0][[0, 2, 4]].astype(float)
    assert loss == pytest.approx(np.mean(np.log(np.exp(z).sum(axis=1)) - z.mean(axis=1)), rel=1e-5)
    assert gradient.shape == model.params.shape
    with pytest.raises(BadParameter, match="labelled"):
        evaluator.labels("unlabelled")
    with pytest.raises(UnknownName):
        evaluator.logits(model.params[None], "test")


def test_scores_by_hand():
    """Predictions 0 0 1 1 1 for labels 0 1 1 1 0: tp 2, fp 1, fn 1, F1 of class 1 = 4/6; of class 0 = 2/4."""
    said = np.array([0, 0, 1, 1, 1])
    out = scores(np.eye(2)[said] * 3.0, np.array([0, 1, 1, 1, 0]), per_class=True)
    assert out["accuracy"] == pytest.approx(0.6)
    assert out["f1"] == pytest.approx(4 / 6)
    assert out["macro_f1"] == pytest.approx((4 / 6 + 2 / 4) / 2)
    assert out["recall_1"] == pytest.approx(2 / 3)
    right, wrong = np.log1p(np.exp(-3.0)), 3.0 + np.log1p(np.exp(-3.0))
    assert out["loss"] == pytest.approx((3 * right + 2 * wrong) / 5)


def test_scores_match_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((50, 7)), rng.integers(5, size=50)
    z[:, 6] = -9.0
    mine = scores(z, y)
    assert mine["macro_f1"] == pytest.approx(metrics.f1_score(y, z.argmax(axis=1), average="macro", zero_division=0))
    assert "f1" not in mine
    assert np.isnan(scores(z[:0], y[:0])["accuracy"])


def test_evaluate_refuses_other_splits(task):
    with pytest.raises(UnknownName, match="test"):
        task.evaluate(task.initial(np.random.default_rng(0)), "tests")


def test_a_world_of_another_task_is_refused(spec, make_world):
    with pytest.raises(ContractError, match="labels"):
        spec.bind(make_world(np.zeros(50, np.int64), 5, 3), engine="numpy")
    with pytest.raises(ContractError, match="pool"):
        spec.bind(make_world(np.arange(5000) % 4, 5, 4), engine="numpy")


def test_bad_shares():
    with pytest.raises(BadParameter, match=r"validation = 1.0: .*1 is not allowed"):
        ClassificationSpec("b", blobs(), mlp(6, classes=4), validation=1.0)
    with pytest.raises(BadParameter, match="left"):
        ClassificationSpec("b", blobs(), mlp(6, classes=4), validation=0.5, unlabelled=0.5)


def test_modules_too(make_world):
    torch = pytest.importorskip("torch")

    spec = ClassificationSpec("mine", blobs(), partial(_normalised, torch), Plan(batch_size=10))
    task = spec.bind(make_world(spec.labels(), 5, 4), engine="torch_reference")
    model = task.initial(np.random.default_rng(0))
    trained = task.train(model, np.array([0, 2]), task.plan())
    assert trained.updates.buffers.shape == (2, 16)
    assert task.last_layer == slice(model.params.size - 36, model.params.size)
    moved = Model(model.params + trained.updates.delta[0], trained.updates.buffers[0], trained.updates.counters[0])
    assert task.evaluate(moved, "test")["loss"] != task.evaluate(model, "test")["loss"]
    assert task.server_evaluator().logits(model.params[None], "validation").shape[0] == 1


@pytest.fixture
def trained_with_statistics(make_world):
    """A task with batch normalisation, its first model, and what two clients made of it."""
    torch = pytest.importorskip("torch")
    spec = ClassificationSpec("mine", blobs(), partial(_normalised, torch), Plan(batch_size=10, lr=0.1))
    task = spec.bind(make_world(spec.labels(), 5, 4), engine="torch_reference")
    model = task.initial(np.random.default_rng(0))
    sent = task.train(model, np.array([0, 2]), task.plan()).updates
    return task, model, sent


def test_an_uploaded_model_is_judged_with_its_own_statistics(trained_with_statistics):
    """Batch normalisation: weights of a client with another model's statistics are a model that nobody has."""
    task, model, sent = trained_with_statistics
    evaluator, base = task.server_evaluator(), model.params
    mine = [replace(model, params=base + d, buffers=b) for d, b in zip(sent.delta, sent.buffers, strict=True)]
    expected = [task.evaluate(model, "validation")["loss"] - task.evaluate(m, "validation")["loss"] for m in mine]
    assert model_gains(sent.delta, whole(model), evaluator, sent.buffers) == pytest.approx(expected, abs=1e-5)
    evaluator.buffers = sent.buffers[1]  # whatever was sent out last
    assert model_gains(sent.delta, whole(model), evaluator, sent.buffers) == pytest.approx(expected, abs=1e-5)
    evaluator.buffers = model.buffers
    assert model_gains(sent.delta, base, evaluator) != pytest.approx(expected, abs=1e-2)
    assert logits_of(evaluator, base + sent.delta, "validation", sent.buffers)[1] == pytest.approx(
        evaluator.evaluate(mine[1], "validation"), abs=1e-5
    )


def test_losses_and_gradients_are_those_of_the_model_that_is_asked_for(trained_with_statistics):
    """Batch normalisation: evaluators with the statistics of a model agree with its evaluation, and with each other."""
    task, model, sent = trained_with_statistics
    new = replace(model, params=model.params + sent.delta[0], buffers=sent.buffers[0])
    server, clients, w, own = task.server_evaluator(), task.client_evaluator(), new.params, new.buffers
    y, only = server.labels("validation"), np.array([2])
    asked = (w, "validation", np.arange(y.size), np.eye(4, dtype=np.float32)[y])
    assert server.gradient(*asked, own)[0] == pytest.approx(task.evaluate(new, "validation")["loss"], abs=1e-5)
    bare = replace(new, buffers=model.buffers)  # the model that was sent out lends its own where none are given
    assert server.gradient(*asked)[0] == pytest.approx(task.evaluate(bare, "validation")["loss"], abs=1e-5)
    for held, given in ((new, (own,)), (bare, ())):
        expected = task.engine.losses(held, only, "train", Objective()).loss[0]
        assert clients.losses(w, 2, "train", *given).mean() == pytest.approx(expected, abs=1e-5)
        slope = clients.gradient(w, 2, "train", None, *given)
        assert slope == pytest.approx(task.engine.gradients(held, only)[0], abs=1e-5)


def _normalised(torch):
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
