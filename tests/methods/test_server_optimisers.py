"""FedAvgM, FedAdam, FedYogi, FedAdagrad: two steps by hand. FedDyn: against its own optimality."""

import numpy as np
import pytest
from quadratic_clients import Clients, play

from fedcohort.errors import StateMismatch
from fedcohort.methods.fedavgm import FedAvgM
from fedcohort.methods.feddyn import FedDyn
from fedcohort.methods.fedopt import FedAdagrad, FedAdam, FedOpt, FedYogi
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Plan, Updates


def two_rounds(method, first, second, weight=(3.0, 1.0)) -> np.ndarray:
    """Two clients in two rounds, one parameter starting at 1; the parameter after each round."""
    model, seen = Model(np.ones(1, np.float32)), []
    for t, moves in enumerate((first, second)):
        delta = np.array(moves, np.float32)[:, None]
        updates = Updates(np.arange(2), delta, np.array(weight), np.ones(2, np.int64))
        model = method.aggregate(model, updates, Aggregation(t, Plan(), 2, np.array([3, 1]), np.arange(2))).model
        seen.append(float(model.params[0]))
    return np.array(seen)


# Moves (1, -1) by weights (3, 1) average to D = 0.5, then (2, 2) to D = 2.
FIRST, SECOND = (1.0, -1.0), (2.0, 2.0)


def test_fedavgm_by_hand():
    """beta 0.5, eta 2: v = 0.5, w = 1 + 1 = 2; v = 0.25 + 2 = 2.25, w = 2 + 4.5 = 6.5."""
    assert np.allclose(two_rounds(FedAvgM(momentum=0.5, server_lr=2.0), FIRST, SECOND), [2.0, 6.5])


def test_fedavgm_without_momentum_is_fedavg():
    assert np.allclose(two_rounds(FedAvgM(momentum=0.0), FIRST, SECOND), [1.5, 3.5])


def test_fedadam_by_hand():
    """beta1 0.5, beta2 0.75, tau 1, eta 1; v starts at tau^2 = 1.

    D = 0.5: m = 0.25, v = 0.75 + 0.0625 = 0.8125, step 0.25 / (0.901388 + 1) = 0.131483
    D = 2:   m = 1.125, v = 0.609375 + 1 = 1.609375, step 1.125 / (1.268611 + 1) = 0.495898
    """
    got = two_rounds(FedAdam(server_lr=1.0, beta1=0.5, beta2=0.75, tau=1.0), FIRST, SECOND)
    assert np.allclose(got, [1.131483, 1.627381], atol=2e-6)


def test_fedyogi_by_hand():
    """The same with v - 0.25 D^2 sign(v - D^2).

    D = 0.5: D^2 = 0.25 < v = 1, v = 1 - 0.0625 = 0.9375, step 0.25 / (0.968246 + 1) = 0.127017
    D = 2:   D^2 = 4 > v, v = 0.9375 + 1 = 1.9375, step 1.125 / (1.391941 + 1) = 0.470329
    """
    got = two_rounds(FedYogi(server_lr=1.0, beta1=0.5, beta2=0.75, tau=1.0), FIRST, SECOND)
    assert np.allclose(got, [1.127017, 1.597346], atol=2e-6)


def test_fedadagrad_by_hand():
    """beta1 0, tau 1, eta 1; v starts at 1.

    D = 0.5: v = 1.25, step 0.5 / (1.118034 + 1) = 0.236068
    D = 2:   v = 5.25, step 2 / (2.291288 + 1) = 0.607665
    """
    got = two_rounds(FedAdagrad(server_lr=1.0, tau=1.0), FIRST, SECOND)
    assert np.allclose(got, [1.236068, 1.843733], atol=2e-6)


def test_uniform_weighting_is_the_paper():
    """(1, -1) average to nothing: no step at all in the first round."""
    got = two_rounds(FedAdagrad(server_lr=1.0, tau=1.0, weighting="uniform"), FIRST, SECOND)
    assert np.allclose(got, [1.0, 1.0 + 2 / (np.sqrt(5.0) + 1)], atol=2e-6)


@pytest.mark.parametrize("method", [FedAdam(server_lr=0.05), FedYogi(server_lr=0.05), FedAdagrad(server_lr=0.3)])
def test_adaptive_methods_reach_a_consensus(method: FedOpt):
    clients = Clients.random(5, 3, seed=7, steps=[5] * 5)
    clients.c[:] = clients.c[0]
    got = play(method, clients, 300, Plan(lr=0.1))
    assert np.abs(got - clients.c[0]).max() < 0.05


def test_state_of_a_sibling_is_refused():
    adam = FedAdam()
    two_rounds(adam, FIRST, SECOND)
    with pytest.raises(StateMismatch):
        FedYogi().load_state_dict(adam.state_dict())
    with pytest.raises(StateMismatch):
        adam.aggregate(
            Model(np.zeros(4, np.float32)),
            Updates(np.arange(1), np.zeros((1, 4), np.float32), np.ones(1), np.ones(1, np.int64)),
            Aggregation(0, Plan(), 1, np.ones(1, int), np.arange(1)),
        )


# FedDyn

CLIENTS = Clients.random(6, 3, seed=9, steps=[300] * 6)  # long enough to solve the local problem
ALPHA = 0.5


def some(t: int) -> np.ndarray:
    return np.random.default_rng([4, t]).permutation(6)[:3]


def textbook(rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Local problems solved in closed form: v = (a c + g + alpha w) / (a + alpha)."""
    w, h, g = np.zeros(3), np.zeros(3), np.zeros((6, 3))
    for t in range(rounds):
        cohort = some(t)
        a, c = CLIENTS.a[cohort], CLIENTS.c[cohort]
        v = (a * c + g[cohort] + ALPHA * w) / (a + ALPHA)
        g[cohort] -= ALPHA * (v - w)
        h = h - ALPHA / 6 * (v - w).sum(axis=0)
        w = v.mean(axis=0) - h / ALPHA
    return w, h


def test_feddyn_follows_the_textbook():
    method = FedDyn(alpha=ALPHA)
    got = play(method, CLIENTS, 10, Plan(lr=0.2), some)
    want, h = textbook(10)
    assert np.allclose(got, want, atol=1e-4)
    assert np.allclose(method.state.mean(3), h, atol=1e-4)


def test_feddyn_reaches_the_optimum_with_partial_cohorts():
    """At the fixed point g_k is the gradient of F_k and their mean is zero: the optimum of the plain mean."""
    want, _ = textbook(400)
    true = CLIENTS.optimum(np.ones(6))
    assert np.allclose(want, true, atol=1e-6)
    short = Clients(CLIENTS.a, CLIENTS.c, CLIENTS.n, np.full(6, 60))
    assert np.allclose(play(FedDyn(alpha=ALPHA), short, 150, Plan(lr=0.2), some), true, atol=1e-3)


def test_feddyn_plan():
    method, model = FedDyn(alpha=0.3), Model(np.zeros(2, np.float32))
    updates = Updates(np.array([1]), np.array([[1.0, -2.0]], np.float32), np.ones(1), np.ones(1, np.int64))
    method.aggregate(model, updates, Aggregation(0, Plan(), 4, np.ones(4, int), np.array([1])))
    plan = method.prepare(Plan(), model, np.array([0, 1]))
    assert plan.prox == 0.3
    assert np.allclose(plan.correction, [[0.0, 0.0], [0.3, -0.6]])  # minus g_1 = +alpha * delta
