"""FedBiO (our construction): hypergradients against finite differences, u averaged against local averages, cleaning."""

from __future__ import annotations

import numpy as np
import pytest
from linear_world import (
    LinearEvaluator,
    check_invariants,
    check_resume,
    context_of,
    model_of,
    planted,
    softmax,
    updates_of,
)

from fedcohort.errors import BadParameter, StateMismatch
from fedcohort.methods._parts import fedbio_samples as samples
from fedcohort.methods.fedbio import FedBiO, client_weights, hypergradient
from fedcohort.types import Plan

# --- variant B: client weights ----------------------------------------------------------------------------------------


def make_evaluator(seed=0, n=200):
    x, y, rule = planted(np.random.default_rng(seed), n, 5, 3)
    return LinearEvaluator(5, 3, validation=(x, y)), rule.reshape(-1)


def test_client_hypergradient_is_the_derivative_of_the_validation_loss():
    """F(x) = f(w + sum_k a_k(x) D_k) by central differences, against eq. 2."""
    evaluator, _ = make_evaluator()
    rng = np.random.default_rng(1)
    w, delta, x = rng.normal(0, 1, 15), rng.normal(0, 1, (4, 15)), rng.normal(0, 1, 4)
    share = np.array([0.1, 0.2, 0.3, 0.4])
    target = np.eye(3)[evaluator.labels("validation")]
    rows = np.arange(200)

    def f(x):
        a = share * np.exp(x)
        return evaluator.gradient(w + (a / a.sum()) @ delta, "validation", rows, target)[0]

    weight = client_weights(share, x)
    gradient = evaluator.gradient(w + weight @ delta, "validation", rows, target)[1].astype(np.float64)
    for k in range(4):
        e = np.zeros(4)
        e[k] = 1e-5
        assert hypergradient(weight, delta, gradient)[k] == pytest.approx((f(x + e) - f(x - e)) / 2e-5, abs=1e-6)


def test_good_client_gains_weight_and_the_state_survives_its_absence():
    """Client 1 moves to the planted rule, clients 0 and 2 away from it."""
    evaluator, rule = make_evaluator()
    method, model = FedBiO(), model_of(np.zeros(15))
    delta = np.stack([-rule, rule, -0.5 * rule]) * 0.1
    done = method.aggregate(model, updates_of(delta, clients=[3, 5, 9]), context_of(evaluator))
    x = method.state.x
    assert x[5] > 0 > max(x[3], x[9])
    assert x[[3, 5, 9]].sum() == pytest.approx(0, abs=1e-5)
    assert done.info["fedbio_top_weight"] > 0.5
    before = x.copy()
    method.aggregate(model, updates_of(delta[:2], clients=[0, 1]), context_of(evaluator, index=1))
    np.testing.assert_array_equal(method.state.x[[3, 5, 9]], before[[3, 5, 9]])
    loss = [
        evaluator.gradient(p, "validation", np.arange(200), np.eye(3)[evaluator.labels("validation")])[0]
        for p in (done.model.params, delta.mean(axis=0))
    ]
    assert loss[0] < loss[1]  # better than FedAvg on validation


def test_starts_as_fedavg_and_zero_weight_stays_zero():
    evaluator, _ = make_evaluator()
    delta = np.random.default_rng(2).normal(0, 1, (3, 15)).astype(np.float32)
    done = FedBiO(outer_steps=0).aggregate(
        model_of(np.zeros(15)), updates_of(delta, weight=[1, 2, 0]), context_of(evaluator)
    )
    np.testing.assert_allclose(done.model.params, (delta[0] + 2 * delta[1]) / 3, atol=1e-6)
    np.testing.assert_allclose(client_weights(np.array([0.5, 0.5, 0.0]), np.array([0, np.log(3), 9])), [0.25, 0.75, 0])


def test_clients_invariants_and_resume():
    evaluator, _ = make_evaluator()
    params = np.random.default_rng(3).normal(0, 1, 15)
    check_invariants(FedBiO, evaluator, params)
    assert check_resume(FedBiO, evaluator, params)["x"].any()


# --- variant A: sample cleaning ---------------------------------------------------------------------------------------


class Squares:
    """Clients with per-sample losses (a_j . w - b_j)^2 / 2: everything has a closed form."""

    def __init__(self, a, b, va, vb):
        self.a, self.b, self.va, self.vb = a, b, va, vb

    def _of(self, client, part):
        return (self.a[client], self.b[client]) if part == "train" else (self.va[client], self.vb[client])

    def size(self, client, part):
        return len(self._of(client, part)[1])

    def losses(self, params, client, part):
        a, b = self._of(client, part)
        return 0.5 * (a @ params - b) ** 2

    def gradient(self, params, client, part, weight=None):
        a, b = self._of(client, part)
        weight = np.ones(len(b)) if weight is None else weight
        return a.T @ (weight * (a @ params - b)) / len(b)


P, DAMP = 3, 0.05


@pytest.fixture
def squares():
    rng = np.random.default_rng(0)
    sizes = (6, 9, 12)
    a = [rng.normal(0, s, (n, P)) for n, s in zip(sizes, (0.5, 1.0, 2.0), strict=True)]
    b = [rng.normal(0, 1, n) for n in sizes]
    va = [rng.normal(0, 1, (5, P)) for _ in sizes]
    vb = [rng.normal(0, 1, 5) for _ in sizes]
    lam = [rng.normal(0, 1, n) for n in sizes]
    return Squares(a, b, va, vb), np.array(sizes) / sum(sizes), lam


def lower(evaluator, share, lam):
    """argmin_w of eq. 1, by linear algebra: hessian and solution."""
    hessian, right = DAMP * np.eye(P), np.zeros(P)
    for k, p in enumerate(share):
        s = 2 / (1 + np.exp(-lam[k])) * p / len(lam[k])
        hessian = hessian + (evaluator.a[k] * s[:, None]).T @ evaluator.a[k]
        right = right + evaluator.a[k].T @ (s * evaluator.b[k])
    return hessian, np.linalg.solve(hessian, right)


def outer(evaluator, share, w):
    return sum(p * evaluator.losses(w, k, "validation").mean() for k, p in enumerate(share))


def our_hypergradient(evaluator, share, lam, u, w):
    """Eq. 3 with the module's finite differences."""
    return [
        -share[k] / len(lam[k]) * samples.sample_slope(np.asarray(lam[k])) * samples.along(evaluator, w, k, u)
        for k in range(len(share))
    ]


def test_sample_hypergradient_is_the_derivative_and_local_averages_are_not(squares):
    """D8. True derivative: difference of f at two exactly solved lower problems. u averaged: right.

    Each client solving with its own Hessian and its own validation gradient, then the same formula: wrong by a lot.
    """
    evaluator, share, lam = squares
    hessian, w = lower(evaluator, share, lam)
    clients = np.arange(3)
    settings = samples.CleaningSettings(1.0, 1.0 / np.linalg.eigvalsh(hessian)[-1], 3000, DAMP, False)
    gradient = samples.outer_gradient(w, clients, share, context_of(client_evaluator=evaluator), clean=False)
    weights = {k: 2 / (1 + np.exp(-lam[k])) for k in range(3)}
    u = samples.solve(evaluator, w, clients, share, weights, gradient, settings, np.zeros(P))
    np.testing.assert_allclose(u, np.linalg.solve(hessian, gradient), rtol=1e-5)
    ours = our_hypergradient(evaluator, share, lam, u, w)
    truth, local = [], []
    for k in range(3):
        own = DAMP * np.eye(P) + (evaluator.a[k] * weights[k][:, None]).T @ evaluator.a[k] / len(lam[k])
        u_k = np.linalg.solve(own, evaluator.gradient(w, k, "validation"))
        local.append(our_hypergradient(evaluator, share, lam, u_k, w)[k])
        for j in range(len(lam[k])):
            ends = []
            for sign in (1, -1):
                moved = [x.copy() for x in lam]
                moved[k][j] += sign * 1e-5
                ends.append(outer(evaluator, share, lower(evaluator, share, moved)[1]))
            truth.append((ends[0] - ends[1]) / 2e-5)
    size = np.linalg.norm(truth)
    assert np.linalg.norm(np.concatenate(ours) - truth) < 1e-4 * size
    assert np.linalg.norm(np.concatenate(local) - truth) > 0.5 * size


class SoftmaxClients:
    """Clients of a linear softmax task."""

    def __init__(self, train, validation, classes):
        self.parts, self.classes = {"train": train, "validation": validation}, classes

    def size(self, client, part):
        return len(self.parts[part][client][1])

    def _p(self, params, x):
        return softmax(x @ np.asarray(params, float).reshape(self.classes, -1).T)

    def losses(self, params, client, part):
        x, y = self.parts[part][client]
        return -np.log(self._p(params, x)[np.arange(len(y)), y])

    def gradient(self, params, client, part, weight=None):
        x, y = self.parts[part][client]
        weight = np.ones(len(y)) if weight is None else weight
        return (
            ((self._p(params, x) - np.eye(self.classes)[y]) * weight[:, None] / len(y))
            .T.reshape(self.classes, -1)
            .dot(x)
            .reshape(-1)
        )


def noisy_clients(seed, noise=0.3, clients=4, n=60, noisy_validation=False):
    rng = np.random.default_rng(seed)
    rule = rng.normal(0, 2, (3, 6))

    def draw(m):
        x = rng.normal(0, 1, (m, 6))
        return x, (x @ rule.T).argmax(axis=1)

    def flip(y):
        bad = rng.random(len(y)) < noise
        return np.where(bad, (y + rng.integers(1, 3, len(y))) % 3, y), bad

    train, validation, flipped = [], [], []
    for _ in range(clients):
        x, y = draw(n)
        y, bad = flip(y)
        train.append((x, y))
        flipped.append(bad)
        x, y = draw(30)
        validation.append((x, flip(y)[0] if noisy_validation else y))
    return SoftmaxClients(train, validation, 3), flipped, LinearEvaluator(6, 3, validation=draw(300))


def rounds(method, world, evaluator, count=25, clients=4, lr=0.5):
    """A loop with honest local training: ten full-batch steps under the plan's sample weights."""
    model = model_of(np.zeros(18))
    for t in range(count):
        plan = method.prepare(Plan(round=t), model, np.arange(clients))
        delta = []
        for k in range(clients):
            w = model.params.astype(float)
            for _ in range(10):
                w = w - lr * world.gradient(w, k, "train", (plan.sample_weight or {}).get(k))
            delta.append(w - model.params)
        u = updates_of(delta, weight=np.full(clients, 60.0))
        model = method.aggregate(model, u, context_of(evaluator, index=t, client_evaluator=world)).model
    return model


def auc(score, bad):
    """Probability that a clean sample has the higher weight."""
    return float((score[~bad][:, None] > score[bad][None]).mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_cleaning_finds_the_noisy_samples(seed):
    world, flipped, evaluator = noisy_clients(seed)
    method = FedBiO(variant="samples")
    rounds(method, world, evaluator)
    found = np.concatenate([method.state.weights[k] for k in range(4)])
    assert auc(found, np.concatenate(flipped)) > 0.8


def test_own_validation_data_work_too_and_are_asked_for_by_name():
    world, flipped, _ = noisy_clients(2)
    method = FedBiO(variant="samples", clean_validation=False)
    rounds(method, world, None)
    found = np.concatenate([method.state.weights[k] for k in range(4)])
    assert auc(found, np.concatenate(flipped)) > 0.75


def test_sample_weights_reach_the_plan_and_start_at_one():
    world, _, evaluator = noisy_clients(3)
    method = FedBiO(variant="samples")
    model = model_of(np.zeros(18))
    assert method.prepare(Plan(), model, np.arange(4)).sample_weight is None
    method.aggregate(
        model, updates_of(np.ones((2, 18)) * 0.1, clients=[0, 2]), context_of(evaluator, client_evaluator=world)
    )
    plan = method.prepare(Plan(), model, np.array([0, 1]))
    assert set(plan.sample_weight) == {0}
    assert plan.sample_weight[0].shape == (60,)
    assert ((plan.sample_weight[0] > 0) & (plan.sample_weight[0] < 2)).all()
    np.testing.assert_allclose(samples.sample_weight(np.array([0.0, np.log(3)])), [1.0, 1.5], rtol=1e-6)
    # slope against differences
    x = np.array([-1.0, 0.0, 2.0])
    numeric = (2 / (1 + np.exp(-(x + 1e-6))) - 2 / (1 + np.exp(-(x - 1e-6)))) / 2e-6
    np.testing.assert_allclose(samples.sample_slope(x), numeric, rtol=1e-6)


def test_samples_invariants_and_resume():
    world, _, evaluator = noisy_clients(4, clients=13)
    params = np.random.default_rng(5).normal(0, 1, 18)
    check_invariants(lambda: FedBiO(variant="samples"), evaluator, params, client_evaluator=world)
    saved = check_resume(lambda: FedBiO(variant="samples"), evaluator, params, client_evaluator=world)
    assert saved["slots"].tolist() == [1, 4, 6, 9]
    assert saved["start"].tolist() == [0, 60, 120, 180, 240]
    fresh = FedBiO(variant="samples")
    fresh.load_state_dict(FedBiO(variant="samples").state_dict())  # nothing learnt yet
    assert fresh.state.weights == {}


def test_refuses():
    u, model = updates_of(np.ones((2, 18))), model_of(np.zeros(18))
    _, _, evaluator = noisy_clients(0)
    with pytest.raises(BadParameter, match="client_evaluator"):
        FedBiO(variant="samples").aggregate(model, u, context_of(evaluator))
    with pytest.raises(BadParameter, match="no labelled validation data"):
        FedBiO().aggregate(model, u, context_of())
    for bad in ({"variant": "x"}, {"outer_lr": 0.0}, {"outer_steps": -1}, {"damping": -0.1}):
        with pytest.raises(BadParameter):
            FedBiO(**bad)
    for variant in ("clients", "samples"):
        with pytest.raises(StateMismatch):
            FedBiO(variant=variant).load_state_dict({"nothing": np.zeros(2)})
