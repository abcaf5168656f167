"""The quadratic task against closed forms: fixed points, minimisers, momentum, prox, corrections."""

from dataclasses import replace

import numpy as np
import pytest

from fedcohort.errors import BadParameter, UnknownName
from fedcohort.signals import SIGNALS, of_side
from fedcohort.tasks.quadratic import Quadratic, QuadraticSpec
from fedcohort.types import Model, Plan

A = np.array([[1.0, 0.5], [2.0, 1.0], [0.5, 3.0]])
C = np.array([[0.0, 1.0], [1.0, -1.0], [3.0, 0.5]])
N = np.array([10, 30, 20])
CLIENTS = np.arange(3)


@pytest.fixture
def task():
    return Quadratic.from_arrays(A, C, N)


def fedavg(task, plan, rounds=400):
    model = Model(np.zeros(2, np.float32))
    for _ in range(rounds):
        updates = task.train(model, CLIENTS, plan).updates
        model = model.with_params(model.params + updates.weight / updates.weight.sum() @ updates.delta)
    return model


def test_optimum_and_gap(task):
    """Coordinate 1: sum n a c / sum n a = (0 + 60 + 30) / (10 + 60 + 10) = 1.125; coordinate 2: 5 / 95."""
    assert np.allclose(task.optimum, [1.125, (5 - 30 + 30) / (5 + 30 + 60)])
    best = Model(task.optimum.astype(np.float32))
    out = task.evaluate(best, "test")
    assert out["accuracy"] == pytest.approx(1.0)
    assert out["gap"] == pytest.approx(0.0, abs=1e-10)
    w = np.array([2.0, -1.0])
    direct = sum(n * 0.5 * (a * (w - c) ** 2).sum() for a, c, n in zip(A, C, N, strict=True)) / N.sum()
    away = task.evaluate(Model(w.astype(np.float32)), "validation")
    assert away["loss"] == pytest.approx(direct)
    assert away["accuracy"] == pytest.approx(1 / (1 + direct - task.minimum))


def test_local_training_is_the_closed_form(task):
    """w_tau = c + (1 - eta a)^tau (w - c)."""
    w = np.array([0.3, -2.0])
    plan = Plan(epochs=np.array([1, 4, 7]), lr=np.array([0.1, 0.2, 0.05]))
    got = task.train(Model(w.astype(np.float32)), CLIENTS, plan).updates
    for i in CLIENTS:
        expected = C[i] + (1 - plan.lr[i] * A[i]) ** plan.epochs[i] * (w - C[i])
        assert np.allclose(w + got.delta[i], expected, atol=1e-6)
    assert got.steps.tolist() == [1, 4, 7]


def test_fedavg_fixed_point(task):
    """FedAvg rests at the optima weighted by p (1 - (1 - eta a)^tau), not by p a."""
    tau, eta, p = np.array([2, 5, 9]), 0.1, N / N.sum()
    pull = p[:, None] * (1 - (1 - eta * A) ** tau[:, None])
    rest = (pull * C).sum(axis=0) / pull.sum(axis=0)
    found = fedavg(task, Plan(epochs=tau, lr=eta))
    assert np.allclose(found.params, rest, atol=1e-4)
    assert np.abs(rest - task.optimum).max() > 0.01


def test_prox_fixed_point(task):
    """With prox the pull of a client is p a / (a + mu) (1 - (1 - eta (a + mu))^tau)."""
    tau, eta, mu, p = np.array([2, 5, 9]), 0.1, 0.7, N / N.sum()
    pull = p[:, None] * A / (A + mu) * (1 - (1 - eta * (A + mu)) ** tau[:, None])
    rest = (pull * C).sum(axis=0) / pull.sum(axis=0)
    found = fedavg(task, Plan(epochs=tau, lr=eta, prox=mu))
    assert np.allclose(found.params, rest, atol=1e-4)


def test_ideal_corrections_reach_the_optimum(task):
    """SCAFFOLD's fixed point: with c - c_k = mean gradient minus own gradient at w*, nobody moves from w*."""
    best = task.optimum
    own = A * (best - C)
    correction = (N / N.sum()) @ own - own
    plan = Plan(epochs=np.array([3, 8, 5]), lr=0.1, correction=correction.astype(np.float32))
    assert np.abs(task.train(Model(best.astype(np.float32)), CLIENTS, plan).updates.delta).max() < 1e-6


def test_momentum_decay_and_adam_by_a_scalar_recurrence(task):
    for plan in (Plan(epochs=6, momentum=0.9, weight_decay=0.1), Plan(epochs=6, optimiser="adam", lr=0.3)):
        w = np.array([0.3, -2.0])
        for i in CLIENTS:
            x, b, v = w.copy(), np.zeros(2), np.zeros(2)
            for t in range(1, 7):
                g = A[i] * (x - C[i]) + plan.weight_decay * x
                if plan.optimiser == "adam":
                    b, v = 0.9 * b + 0.1 * g, 0.999 * v + 0.001 * g * g
                    x = x - plan.lr * (b / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
                else:
                    b = 0.9 * b + g
                    x = x - plan.lr * b
            got = task.train(Model(w.astype(np.float32)), CLIENTS, plan).updates.delta[i]
            assert np.allclose(w + got, x, atol=1e-5)


def test_signals_by_hand(task):
    plan = Plan(epochs=2, lr=0.1, measure=of_side(SIGNALS, "client") | {"full_gradient"})
    w = np.zeros(2, np.float32)
    trained = task.train(Model(w), CLIENTS, plan)
    before = 0.5 * (A * C**2).sum(axis=1)
    after = 0.5 * (A * (C - trained.updates.delta) ** 2).sum(axis=1)
    assert np.allclose(trained.signals["loss_before"], before)
    assert np.allclose(trained.signals["loss_after"], after, rtol=1e-5)
    assert np.allclose(trained.signals["utility"], N * before)
    assert np.allclose(trained.signals["grad_norm"], np.sqrt((A * C) ** 2 @ np.ones(2)))
    assert np.allclose(trained.signals["insight"], 0.1 * A * C)
    assert np.array_equal(trained.signals["network_insight"], trained.signals["insight"])  # it has one layer
    assert np.allclose(trained.updates.extras["full_gradient"], -A * C)
    probed = task.probe(Model(w), CLIENTS, of_side(SIGNALS, "probe"), plan)
    assert set(probed) == of_side(SIGNALS, "probe")
    assert np.allclose(probed["probe_loss"], before)
    assert np.allclose(probed["probe_weights"], 0.1 * A * C, atol=1e-6)
    assert np.allclose(probed["probe_accuracy"], 1 / (1 + before))


def test_broken_and_empty_clients(task):
    odd = Quadratic.from_arrays(A, C, np.array([10, 0, 20]))
    plan = Plan(epochs=200, lr=np.array([0.1, 0.1, 1e9]), measure=frozenset({"train_loss", "loss_after"}))
    trained = odd.train(Model(np.ones(2, np.float32)), CLIENTS, plan)
    assert trained.failed.tolist() == [False, True, True]
    assert trained.reasons == {1: "owns no samples", 2: "training became non-finite"}
    assert not trained.updates.delta[1:].any()
    assert np.isnan(trained.signals["train_loss"][1:]).all()
    assert trained.updates.steps.tolist() == [200, 0, 200]
    assert np.isnan(odd.client_accuracy(Model(np.ones(2, np.float32)))[1])


def test_bound_to_a_world(make_world):
    """Optima are label means of the centres; noise moves what clients train on, not the clean optimum."""
    spec = QuadraticSpec(pool=600, dimension=3, classes=4)
    clean, noisy = (spec.bind(make_world(spec.labels(), 12, 4, alpha=0.2, noise=e)) for e in (0.0, 0.5))
    assert np.allclose(clean.optimum, noisy.optimum)
    world = make_world(spec.labels(), 12, 4, alpha=0.2)
    centre = clean._centre
    direct = np.stack(
        [centre[world.train.label[world.train.of(k)]].mean(axis=0) for k in range(12) if world.train.sizes[k]]
    )
    assert np.allclose(clean.optima()[world.train.sizes > 0], direct)
    model = clean.initial(np.random.default_rng(0))
    k = int(world.train.sizes.argmax())
    each = 0.5 * (clean._a[k] * (model.params - centre[world.train.label[world.train.of(k)]]) ** 2).sum(axis=1)
    plan = replace(clean.plan(), measure=frozenset({"train_loss", "train_loss_sq"}))
    got = clean.train(model, np.array([k]), plan).signals
    assert got["train_loss"][0] == pytest.approx(each.mean())
    assert got["train_loss_sq"][0] == pytest.approx((each**2).mean())

    def rest(task, rounds=150):
        m = model
        for _ in range(rounds):
            u = task.train(m, np.flatnonzero(world.train.sizes), replace(task.plan(), epochs=1)).updates
            m = m.with_params(m.params + u.weight / u.weight.sum() @ u.delta)
        return task.evaluate(m, "test")["accuracy"]

    assert rest(clean) > 0.9999
    assert rest(noisy) < 0.998


def test_sample_weights(make_world):
    """Weights that keep one label only: the client then pulls towards that label's centre."""
    spec = QuadraticSpec(pool=400, dimension=3, classes=4)
    world = make_world(spec.labels(), 3, 4)
    task = spec.bind(world)
    label = world.train.label[world.train.of(1)]
    keep = (label == 2).astype(float)
    plan = Plan(epochs=1, lr=1.0, sample_weight={1: keep})
    w = np.zeros(3, np.float32)
    delta = task.train(Model(w), np.array([0, 1]), plan).updates.delta
    assert np.allclose(delta[1], keep.mean() * task._a[1] * task._centre[2], atol=1e-6)
    assert np.allclose(delta[0], task._a[0] * task.optima()[0], atol=1e-6)


def test_bad_input(task):
    with pytest.raises(BadParameter, match="convex"):
        Quadratic.from_arrays(-A, C, N)
    with pytest.raises(BadParameter, match="per client"):
        Quadratic.from_arrays(A, C, N[:2])
    with pytest.raises(UnknownName):
        task.evaluate(Model(np.zeros(2, np.float32)), "train")
    with pytest.raises(BadParameter):
        QuadraticSpec(curvature=(2.0, 1.0))
