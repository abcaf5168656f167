"""The numpy engine against PyTorch, finite differences and by hand; test_engine_contract.py has the plan's features."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedcohort.engines import losses as objectives
from fedcohort.engines.interface import batch_order
from fedcohort.engines.networks import lenet, mlp
from fedcohort.engines.numpy_engine import NumpyEngine
from fedcohort.errors import BadParameter, TrainingError, UnknownName
from fedcohort.signals import SIGNALS, of_side
from fedcohort.types import Model, Objective, Plan

SIZES = [23, 1, 0, 7, 40, 16]
NETWORK = mlp(12, 9, 6, classes=4)
EVERYBODY = np.arange(6)
CLIENT_SIGNALS = of_side(SIGNALS, "client")
P = NETWORK.n_params


@pytest.fixture(scope="module")
def model():
    return Model(NETWORK.initial(np.random.default_rng(5)))


@pytest.fixture
def data(make_data):
    return make_data(SIZES, held=3)


@pytest.fixture
def engine(data):
    return NumpyEngine(NETWORK, data)


@pytest.fixture
def reference(data):
    pytest.importorskip("torch")
    from fedcohort.engines.torch_reference import ReferenceEngine

    return ReferenceEngine(NETWORK, data)


PLANS = {
    "smoothing": Plan(objective=objectives.label_smoothing(0.2)),
    "robust": Plan(objective=objectives.flash_robust(0.5, 2.0)),
}


def test_steps_are_counted(engine, model):
    """ceil(n / 8) batches of each epoch: 23 -> 3, 1 -> 1, 0 -> none, 7 -> 1, 40 -> 5, 16 -> 2; three epochs."""
    trained = engine.train(model, EVERYBODY, Plan(batch_size=8, epochs=3))
    assert trained.updates.steps.tolist() == [9, 3, 0, 3, 15, 6]
    assert trained.updates.weight.tolist() == SIZES
    assert not trained.updates.delta[2].any()


def test_softmax_regression_by_hand(make_data):
    """One client, full batch, two steps of plain gradient descent: W -= lr (p - e_y)^T x / n, b likewise."""
    data = make_data([10], shape=(3,), classes=3)
    network = mlp(3, classes=3)
    x, y = data.x[data.train.index].astype(np.float64), data.train.label
    w, b = np.zeros((3, 3)), np.zeros(3)
    for _ in range(2):
        z = x @ w.T + b
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        d = (p - np.eye(3)[y]) / 10
        w, b = w - 0.5 * d.T @ x, b - 0.5 * d.sum(axis=0)
    model = Model(np.zeros(12, np.float32))
    plan = Plan(batch_size=10, epochs=2, lr=0.5, measure=frozenset({"loss_before", "insight"}))
    trained = NumpyEngine(network, data).train(model, np.array([0]), plan)
    assert np.allclose(trained.updates.delta[0], np.concatenate([w.ravel(), b]), atol=1e-6)
    assert trained.signals["loss_before"][0] == pytest.approx(math.log(3))


def test_gradient_by_finite_differences(engine, model):
    """(F(w + h e) - F(w - h e)) / 2h in 40 coordinates, F the engine's own loss; float32 allows about 1e-3."""
    gradient = engine.gradients(model, np.array([4]))[0]
    for j in np.random.default_rng(0).choice(P, 40, replace=False):
        ends = []
        for h in (2e-3, -2e-3):
            moved = model.params.copy()
            moved[j] += h
            ends.append(engine.losses(Model(moved), np.array([4]), "train", Objective()).loss[0])
        assert gradient[j] == pytest.approx((ends[0] - ends[1]) / 4e-3, abs=1e-3)


def test_insight_is_one_full_batch_step_of_the_last_layer(engine, model):
    plan = Plan(batch_size=1000, lr=0.1, measure=frozenset({"insight"}))
    trained = engine.train(model, EVERYBODY, plan)
    last = trained.updates.delta[:, NETWORK.last_layer]
    fine = ~trained.failed
    assert np.allclose(trained.signals["insight"][fine], last[fine], atol=1e-6)
    wild = engine.train(model, EVERYBODY, replace(plan, lr=3.0, momentum=0.9, batch_size=4, epochs=2))
    assert np.array_equal(wild.signals["insight"], trained.signals["insight"], equal_nan=True)


def test_first_epoch_statistics_at_moving_weights(engine, model):
    """With rate 0 the weights stay: first-epoch statistics are those of the broadcast model, whatever the order."""
    plan = Plan(batch_size=8, epochs=4, lr=0.0, measure=CLIENT_SIGNALS, objective=objectives.flash_robust())
    signals = engine.train(model, EVERYBODY, plan).signals
    fine = np.array([0, 1, 3, 4, 5])
    stats = engine.losses(model, fine, "train", Objective())
    assert np.allclose(signals["train_loss"][fine], stats.loss)
    assert np.allclose(signals["train_loss_sq"][fine], stats.square)
    assert np.allclose(signals["utility"][fine], stats.count * np.sqrt(stats.square))
    assert signals["loss_count"][fine].tolist() == [23, 1, 7, 40, 16]
    moving = engine.train(model, EVERYBODY, replace(plan, lr=0.5)).signals["train_loss"]
    assert np.abs(moving - signals["train_loss"])[4] > 1e-3


def test_zero_epochs_change_nothing(engine, model):
    trained = engine.train(model, EVERYBODY, Plan(epochs=0, measure=CLIENT_SIGNALS))
    assert not trained.updates.delta.any()
    assert not trained.updates.steps.any()
    assert trained.failed.tolist() == [k == 2 for k in range(6)]
    assert np.isnan(trained.signals["train_loss"]).all()


def test_pseudo_labels_are_frozen_at_the_broadcast_model(engine, reference, model):
    """Self-distillation alone: no gradient at step 1, some at step 2 once another term has moved the weights."""
    only = Plan(batch_size=1000, objective=Objective(ce=0.0, pseudo=1.0))
    assert np.abs(engine.train(model, EVERYBODY, only).updates.delta).max() < 1e-6
    push = replace(only, epochs=2, correction=np.full(P, 0.3, np.float32))
    free = replace(push, objective=Objective(ce=0.0))
    pulled = engine.train(model, EVERYBODY, push).updates.delta - engine.train(model, EVERYBODY, free).updates.delta
    assert np.abs(pulled[4]).max() > 1e-4
    assert np.allclose(
        engine.train(model, EVERYBODY, push).updates.delta,
        reference.train(model, EVERYBODY, push).updates.delta,
        atol=1e-6,
    )


@pytest.mark.parametrize("plan", [Plan(batch_size=8, epochs=2, momentum=0.9), PLANS["robust"], Plan(optimiser="adam")])
def test_same_bytes_whoever_else_is_there(engine, model, plan):
    plan = replace(plan, measure=CLIENT_SIGNALS)
    together = engine.train(model, EVERYBODY, plan)
    again = engine.train(model, EVERYBODY, plan)
    assert together.updates.delta.tobytes() == again.updates.delta.tobytes()
    for cohort in ([0], [1, 4], [5, 3, 0], [4]):
        some = engine.train(model, np.array(cohort), plan)
        assert some.updates.delta.tobytes() == together.updates.delta[cohort].tobytes()
        for name, value in some.signals.items():
            assert value.tobytes() == together.signals[name][cohort].tobytes(), name


def test_batch_order_depends_on_seed_round_client_and_epoch(engine, model):
    plan = Plan(batch_size=4, seed=1, round=1)
    base = engine.train(model, EVERYBODY, plan).updates.delta
    assert not np.array_equal(base, engine.train(model, EVERYBODY, replace(plan, seed=2)).updates.delta)
    assert not np.array_equal(base, engine.train(model, EVERYBODY, replace(plan, round=2)).updates.delta)
    orders = {tuple(batch_order(23, plan, k, e)) for k in (0, 4) for e in (0, 1)}
    assert len(orders) == 4


@pytest.mark.parametrize("which", ["engine", "reference"])
def test_a_broken_client_fails_alone(which, request, make_data, model):
    """A NaN input at client 0 and an exploding rate at client 4: both FAILED, the others as if alone."""
    engine = request.getfixturevalue(which)
    engine._data.x[engine._data.train.index[0]] = np.nan
    lr = np.array([0.1, 0.1, 0.1, 0.1, 1e30, 0.1])
    plan = Plan(batch_size=8, epochs=3, lr=lr, measure=CLIENT_SIGNALS)
    trained = engine.train(model, EVERYBODY, plan)
    assert trained.failed.tolist() == [True, False, True, False, True, False]
    assert {k: "non-finite" in v for k, v in trained.reasons.items()} == {0: True, 2: False, 4: True}
    assert np.isfinite(trained.updates.delta).all()
    assert not trained.updates.delta[[0, 2, 4]].any()
    for value in trained.signals.values():
        assert np.isnan(value[[0, 2, 4]]).all()
        assert np.isfinite(value[[1, 3, 5]]).all()
    alone = engine.train(model, np.array([3]), replace(plan, lr=0.1))
    assert np.array_equal(alone.updates.delta[0], trained.updates.delta[3])


def test_looking_agrees(engine, reference, model, data):
    for part, objective in (
        ("train", Objective()),
        ("validation", objectives.flash_robust()),
        ("train", PLANS["smoothing"].objective),
    ):
        mine, theirs = (e.losses(model, EVERYBODY, part, objective) for e in (engine, reference))
        assert np.array_equal(mine.count, theirs.count)
        for field in ("loss", "square", "accuracy"):
            assert np.allclose(getattr(mine, field), getattr(theirs, field), rtol=1e-5, equal_nan=True)
    assert np.isnan(engine.losses(model, np.array([2]), "train", Objective()).loss[0])
    both = np.stack([model.params, -model.params])
    assert np.allclose(engine.logits(both, data.x), reference.logits(both, data.x), rtol=1e-4, atol=1e-6)
    assert np.allclose(engine.gradients(model, EVERYBODY), reference.gradients(model, EVERYBODY), atol=1e-6)
    assert np.array_equal(
        engine.gradients(model, EVERYBODY, last_layer=True), engine.gradients(model, EVERYBODY)[:, NETWORK.last_layer]
    )


def test_soft_gradient(engine, reference, model, data):
    """Against PyTorch, and zero when the targets are the model's own predictions."""
    z = engine.logits(model.params[None], data.x)[0]
    own = np.exp(objectives.log_softmax(z))
    loss, gradient = engine.soft_gradient(model.params, data.x, own)
    assert loss == pytest.approx(float(-(own * np.log(own)).sum(axis=1).mean()), rel=1e-5)
    assert np.abs(gradient).max() < 1e-6
    target = np.eye(4, dtype=np.float32)[np.random.default_rng(0).integers(4, size=len(z))]
    mine, theirs = (e.soft_gradient(model.params, data.x, target) for e in (engine, reference))
    assert mine[0] == pytest.approx(theirs[0], rel=1e-5)
    assert np.allclose(mine[1], theirs[1], atol=1e-6)


def test_many_samples_at_one_client(make_data):
    """More samples than an evaluation chunk holds: the mean over 300 is the mean over all, not over chunks."""
    data = make_data([300, 65], shape=(5,), classes=3)
    network = mlp(5, classes=3)
    model = Model(network.initial(np.random.default_rng(0)))
    engine = NumpyEngine(network, data)
    z = engine.logits(model.params[None], data.x[data.train.index])[0].astype(np.float64)
    each = np.log(np.exp(z).sum(axis=1)) - z[np.arange(365), data.train.label]
    stats = engine.losses(model, np.array([0, 1]), "train", Objective())
    assert np.allclose(stats.loss, [each[:300].mean(), each[300:].mean()], rtol=1e-6)
    right = z.argmax(axis=1) == data.train.label
    assert np.allclose(stats.accuracy, [right[:300].mean(), right[300:].mean()])


def test_bad_plans_and_models(engine, model, make_data):
    with pytest.raises(UnknownName, match="adam"):
        engine.train(model, EVERYBODY, Plan(optimiser="adm"))
    with pytest.raises(BadParameter, match="correction"):
        engine.train(model, EVERYBODY, Plan(correction=np.zeros(3, np.float32)))
    with pytest.raises(BadParameter, match="batch"):
        engine.train(model, EVERYBODY, Plan(batch_size=0))
    with pytest.raises(BadParameter, match="one per client"):
        engine.train(model, EVERYBODY, Plan(lr=np.array([0.1, 0.2])))
    with pytest.raises(BadParameter, match="owns 23 samples"):
        engine.train(model, EVERYBODY, Plan(sample_weight={0: np.ones(5)}))
    with pytest.raises(UnknownName, match="validation"):
        engine.losses(model, EVERYBODY, "test", Objective())
    with pytest.raises(TrainingError, match="Conv"):
        NumpyEngine(lenet((1, 8, 8), (2,), 3, (), 4), make_data([3], shape=(1, 8, 8)))


def test_nobody(engine, model):
    trained = engine.train(model, np.empty(0, np.int64), Plan(measure=CLIENT_SIGNALS))
    assert trained.updates.delta.shape == (0, P)
    assert trained.failed.size == 0


def test_a_model_that_exploded_is_looked_at_without_a_sound(engine, data, recwarn):
    """Infinite parameters give NaN, not warnings and not exceptions."""
    wild = Model(np.full(P, np.float32(3e38)))
    assert np.isnan(engine.losses(wild, np.array([0]), "train", Objective()).loss).all()
    engine.gradients(wild, EVERYBODY)
    engine.logits(wild.params[None], data.x)
    engine.soft_gradient(wild.params, data.x, np.full((len(data.x), 4), 0.25))
    assert engine.train(wild, EVERYBODY, Plan(measure=CLIENT_SIGNALS)).failed.all()
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]
