"""FedAvg, FedProx and FedNova on quadratics: where they stop, in closed form (spec part D, items 2, 3 and 5)."""

import numpy as np
import pytest
from quadratic_clients import Clients, one_round, play

from fedcohort.errors import BadParameter
from fedcohort.methods._parts.local_solver import gradient_weight
from fedcohort.methods.fedavg import FedAvg
from fedcohort.methods.fednova import FedNova
from fedcohort.methods.fedprox import FedProx
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Plan, Updates

ETA = 0.05
CLIENTS = Clients.random(6, 3, seed=1, steps=[1, 2, 5, 10, 20, 40])
PLAN = Plan(lr=ETA)


def weighted(weight: np.ndarray) -> np.ndarray:
    """sum weight c / sum weight, per coordinate."""
    return (weight * CLIENTS.c).sum(axis=0) / weight.sum(axis=0)


def shrink(curvature: np.ndarray) -> np.ndarray:
    """How much of the way to its centre a client goes in tau steps: 1 - (1 - eta a)^tau."""
    return 1 - (1 - ETA * curvature) ** CLIENTS.tau[:, None]


def test_fedavg_stops_where_steps_weigh():
    """w_k - w = -s_k (w - c_k), s_k = 1 - (1 - eta a_k)^tau_k: sum p_k s_k (w - c_k) = 0 at the fixed point."""
    p = CLIENTS.n[:, None] / CLIENTS.n.sum()
    assert np.allclose(play(FedAvg(), CLIENTS, 200, PLAN), weighted(p * shrink(CLIENTS.a)), atol=1e-5)


def test_fednova_stops_at_the_same_over_tau():
    p = CLIENTS.n[:, None] / CLIENTS.n.sum()
    want = weighted(p * shrink(CLIENTS.a) / CLIENTS.tau[:, None])
    assert np.allclose(play(FedNova(), CLIENTS, 400, PLAN), want, atol=1e-5)


@pytest.mark.parametrize("mu", [0.1, 2.0])
def test_fedprox_stops_with_the_proximal_weight(mu: float):
    """The local minimiser is (a c + mu w) / (a + mu), reached at the rate a + mu: a / (a + mu) of the gap to c."""
    p = CLIENTS.n[:, None] / CLIENTS.n.sum()
    want = weighted(p * CLIENTS.a / (CLIENTS.a + mu) * shrink(CLIENTS.a + mu))
    assert np.allclose(play(FedProx(mu=mu), CLIENTS, 300, PLAN), want, atol=1e-5)


def test_fednova_removes_most_of_the_bias_of_unequal_steps():
    clients = Clients.random(6, 3, seed=1, steps=[1, 1, 2, 3, 5, 8])
    true = clients.optimum(clients.n / clients.n.sum())
    small = Plan(lr=0.01)
    far = np.abs(play(FedAvg(), clients, 400, small) - true).max()
    near = np.abs(play(FedNova(), clients, 400, small) - true).max()
    assert far > 0.2
    assert near < 0.1 * far


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_is_fedavg_at_equal_steps(momentum: float):
    clients = Clients.random(5, 3, seed=2, steps=[7] * 5)
    plan = Plan(lr=0.03, momentum=momentum)
    one, two = play(FedNova(), clients, 15, plan), play(FedAvg(), clients, 15, plan)
    assert np.allclose(one, two, atol=1e-6)


def test_fedprox_without_weight_is_plain_gradient_descent():
    """Against gradient descent written out here, not against the trainer above."""
    w = np.zeros(3)
    p = CLIENTS.n / CLIENTS.n.sum()
    for _ in range(10):
        ends = []
        for k in range(6):
            v = w
            for _ in range(CLIENTS.tau[k]):
                v = v - ETA * CLIENTS.a[k] * (v - CLIENTS.c[k])
            ends.append(v)
        w = p @ np.array(ends)
    assert np.allclose(play(FedProx(mu=0.0), CLIENTS, 10, PLAN), w, atol=1e-5)


def test_fedprox_forms():
    """Two clients moving by 1 and 5 with 3 and 1 samples: 2 by samples, 3 plainly."""
    updates = Updates(np.arange(2), np.array([[1.0], [5.0]], np.float32), np.array([3.0, 1.0]), np.ones(2, np.int64))
    context = Aggregation(0, PLAN, 2, np.array([3, 1]), np.arange(2))
    model = Model(np.zeros(1, np.float32))
    assert FedProx().aggregate(model, updates, context).model.params[0] == 2.0
    assert FedProx(form="uniform").aggregate(model, updates, context).model.params[0] == 3.0
    assert FedProx(mu=0.7).prepare(PLAN, model, np.arange(2)).prox == 0.7


def test_original_fedavg_is_a_server_learning_rate():
    """original = w + P_S (normalised - w), P_S = sum of p over those that returned."""
    model = Model(np.array([0.3, -1.0, 2.0], np.float32))
    cohort = np.array([1, 3, 4])
    share = CLIENTS.n[cohort].sum() / CLIENTS.n.sum()
    original = one_round(FedAvg(form="original"), CLIENTS, model, cohort, PLAN).model.params
    normalised = one_round(FedAvg(), CLIENTS, model, cohort, PLAN).model.params
    assert np.allclose(original, model.params + share * (normalised - model.params), atol=1e-6)
    assert 0.1 < share < 0.9


# |a|_1


@pytest.mark.parametrize("tau", [1, 2, 7, 60])
def test_norm_closed_forms(tau: int):
    """tau; [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho); [1 - (1 - eta mu)^tau] / (eta mu)."""
    steps, lr = np.array([tau]), np.array([0.1])
    rho, mu = 0.9, 0.5
    assert gradient_weight(steps, lr, momentum=0.0, prox=0.0)[0] == tau
    want = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    assert np.isclose(gradient_weight(steps, lr, momentum=rho, prox=0.0)[0], want)
    want = (1 - (1 - 0.1 * mu) ** tau) / (0.1 * mu)
    assert np.isclose(gradient_weight(steps, lr, momentum=0.0, prox=mu)[0], want)


@pytest.mark.parametrize(("rho", "mu"), [(0.9, 0.5), (0.5, 2.0), (0.9, 0.0), (0.0, 1.0)])
def test_norm_by_impulses(rho: float, mu: float):
    """a_s is what one unit of gradient at step s, and none elsewhere, makes of the local change."""
    eta, taus = 0.1, np.array([1, 3, 12, 50])
    for tau, got in zip(taus, gradient_weight(taus, np.full(4, eta), momentum=rho, prox=mu), strict=True):
        total = 0.0
        for at in range(tau):
            x = b = 0.0
            for s in range(tau):
                b = rho * b + (1.0 if s == at else 0.0) + mu * x
                x -= eta * b
            total += abs(x) / eta
        assert np.isclose(got, total)


@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5), (0.5, 0.3)])
def test_fednova_on_linear_losses_follows_the_mean_gradient(rho: float, mu: float):
    """With constant gradients g_k the direction is exactly sum p_k g_k, whatever steps, rates, momentum and prox."""
    rng = np.random.default_rng(3)
    g, n, tau = rng.normal(size=(4, 3)), np.array([5, 1, 2, 8]), np.array([1, 4, 9, 16])
    lr = np.array([0.1, 0.05, 0.2, 0.01])
    delta = []
    for k in range(4):
        x, b = np.zeros(3), np.zeros(3)
        for _ in range(tau[k]):
            b = rho * b + g[k] + mu * x
            x = x - lr[k] * b
        delta.append(x)
    updates = Updates(np.arange(4), np.array(delta, np.float32), n.astype(float), tau)
    context = Aggregation(0, Plan(lr=lr, momentum=rho, prox=mu), 4, n, np.arange(4))
    change = FedNova().aggregate(Model(np.zeros(3, np.float32)), updates, context).model.params.astype(float)
    mean = (n / n.sum()) @ g
    cosine = -change @ mean / np.linalg.norm(change) / np.linalg.norm(mean)
    assert cosine > 1 - 1e-6
    # the rates follow their clients: rows in another order than the dispatch, one client silent
    context = Aggregation(0, Plan(lr=lr[[2, 0, 3, 1]], momentum=rho, prox=mu), 4, n, np.array([2, 0, 3, 1]))
    again = FedNova().aggregate(Model(np.zeros(3, np.float32)), updates, context).model.params
    assert np.allclose(again, change, atol=1e-6)


def test_fednova_leaves_out_who_took_no_step():
    updates = Updates(np.arange(3), np.array([[1.0], [9.0], [1.0]], np.float32), np.full(3, 2.0), np.array([1, 0, 1]))
    context = Aggregation(0, PLAN, 3, np.full(3, 2), np.arange(3))
    made = FedNova().aggregate(Model(np.zeros(1, np.float32)), updates, context)
    assert made.accepted.tolist() == [True, False, True]
    assert made.model.params[0] == 1.0


def test_fednova_tau_eff_by_steps():
    """One client, prox: |a|_1 = (1 - 0.9^2) / 0.1 = 1.9 for two steps, so the released code goes 2 / 1.9 as far."""
    updates = Updates(np.array([0]), np.array([[1.0]], np.float32), np.array([1.0]), np.array([2]))
    context = Aggregation(0, Plan(lr=0.1, prox=1.0), 1, np.array([1]), np.array([0]))
    made = FedNova(tau_eff="steps").aggregate(Model(np.zeros(1, np.float32)), updates, context)
    assert np.isclose(made.model.params[0], 2 / 1.9)


def test_fednova_and_adam():
    plan, model = Plan(optimiser="adam"), Model(np.zeros(1, np.float32))
    with pytest.raises(BadParameter, match=r'optimiser="sgd".*adam="steps"'):
        FedNova().prepare(plan, model, np.arange(2))
    method = FedNova(adam="steps")
    assert method.prepare(plan, model, np.arange(2)) == plan
    updates = Updates(np.arange(2), np.array([[2.0], [4.0]], np.float32), np.ones(2), np.array([1, 4]))
    made = method.aggregate(model, updates, Aggregation(0, plan, 2, np.ones(2, int), np.arange(2)))
    # directions 2 and 1, mean 1.5, tau_eff = 2.5
    assert np.isclose(made.model.params[0], 3.75)
