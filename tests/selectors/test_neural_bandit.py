"""The neural bandit: gradients against finite differences and loops, its memory, and the contract."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.errors import BadParameter
from fedcohort.selectors._parts.reward_network import RewardNetwork
from fedcohort.selectors.neural_bandit import NeuralBandit
from fedcohort.testing import SelectorContract, SyntheticFederation
from fedcohort.types import Round


class TestThompsonContract(SelectorContract):
    runs = 30

    def make(self):
        return NeuralBandit(mode="thompson", explore=1.0)


def naive(net, w, x):
    """f of one row with loops over layers, in float64."""
    w1, b1, w2, b2, w3, b3 = (np.asarray(part, np.float64) for part in net.split(w))
    h1 = np.maximum(x @ w1 + b1, 0)
    return float(np.maximum(h1 @ w2 + b2, 0) @ w3 + b3[0])


def numeric(net, w, x):
    """Gradient of f at one row, parameter by parameter, by central differences."""
    out, w = np.empty(w.size), w.astype(np.float64)
    for j in range(w.size):
        up, down = w.copy(), w.copy()
        up[j] += 1e-6
        down[j] -= 1e-6
        out[j] = (naive(net, up, x) - naive(net, down, x)) / 2e-6
    return out


def small():
    net, rng = RewardNetwork(3, 5), generator(0, "net")
    w = net.initial(rng) + (0.1 * rng.standard_normal(net.ends[-1])).astype(np.float32)
    return net, w, rng.standard_normal((4, 3)).astype(np.float32), rng


def test_six_weights_by_hand():
    """d = q = 1: w1 = 2, b1 = 1, w2 = 3, b2 = -1, w3 = .5, b3 = 4 at x = 1, Z = 1.

    h1 = 3, h2 = 8, f = 8. df/dw3 = 8, df/db3 = 1, df/db2 = .5, df/dw2 = 3 * .5 = 1.5, df/db1 = .5 * 3 = 1.5,
    df/dw1 = 1.5. Squares: 2.25 + 2.25 + 2.25 + .25 + 64 + 1 = 72; sigma = sqrt(72). At x = -1, h1 = 0 (dead), h2 = 0:
    only b3 counts, f = 4, sigma = 1. With nu = .3 the first scores 8 + .3 * 8.485 = 10.546, the second 4.3.
    """
    net, w = RewardNetwork(1, 1), np.array([2, 1, 3, -1, 0.5, 4], np.float32)
    mean, sure = net.predict(w, np.ones(6, np.float32), np.array([[1.0], [-1.0]], np.float32))
    assert mean == pytest.approx([8.0, 4.0])
    assert sure == pytest.approx([np.sqrt(72.0), 1.0])
    assert mean + 0.3 * sure == pytest.approx([10.5456, 4.3], abs=1e-3)
    squares = net.squares(w, np.array([[1.0]], np.float32))
    assert squares == pytest.approx([2.25, 2.25, 2.25, 0.25, 64.0, 1.0])


def test_gradient_of_the_loss_equals_finite_differences():
    net, w, x, rng = small()
    y = rng.standard_normal(4).astype(np.float32)
    expected = np.mean(
        [(naive(net, w, row) - target) * numeric(net, w, row) for row, target in zip(x, y, strict=True)], 0
    )
    assert net.gradient(w, x, y) == pytest.approx(expected, abs=1e-4)


def test_confidence_equals_the_sum_over_parameters():
    """Eqs. 1, 2 and 5 with explicit per-row gradients."""
    net, w, x, rng = small()
    z = rng.uniform(0.5, 2.0, w.size).astype(np.float32)
    rows = np.array([numeric(net, w, row) for row in x]) / np.sqrt(net.q)
    mean, sure = net.predict(w, z, x)
    assert mean == pytest.approx([naive(net, w, row) for row in x], abs=1e-5)
    assert sure == pytest.approx(np.sqrt((rows**2 / z).sum(axis=1)), rel=1e-4)
    assert net.squares(w, x) == pytest.approx((rows**2).sum(axis=0), rel=1e-3, abs=1e-6)


def test_the_network_learns_what_a_line_cannot():
    """y = |x|: after some rounds of Adam the error is far below the variance of y."""
    bandit, rng = NeuralBandit(context="reward", steps=50), generator(2, "abs")
    s, pending = bandit.state, {}
    bandit.context = type("Planted", (), {"settle": lambda self, state, index, probed: pending["xy"]})()
    for t in range(20):
        x = rng.uniform(-1, 1, (32, 1))
        pending["xy"] = (x, np.abs(x[:, 0]))
        bandit._learn(s, t, None)
    x = np.linspace(-1, 1, 41, dtype=np.float32)[:, None]
    error = bandit.net.predict(s.w, s.Z, x)[0] - np.abs(x[:, 0])
    assert float(np.mean(error**2)) < 0.1 * float(np.var(np.abs(x)))


def test_memory_is_capped_and_confidence_only_grows():
    bandit, fed = NeuralBandit(memory=12), SyntheticFederation(20, seed=0)
    before = bandit.state.Z.copy()
    for t in range(8):
        fed.play(bandit, [t], 5)
        assert bandit.state.pairs_y.size <= 12
        assert (before <= bandit.state.Z).all()
        before = bandit.state.Z.copy()
    assert bandit.state.pairs_x.shape == (12, 4)


def test_thompson_noise_has_the_width_of_the_confidence():
    """Eq. 4: over many draws, the deviation of a client's score is nu sigma, and its mean is f."""
    bandit, fed = NeuralBandit(mode="thompson", explore=0.5), SyntheticFederation(4, seed=0)
    fed.play(bandit, 5, 4)
    rnd, draws = Round(5, 4, np.arange(4), 4), []
    for seed in range(800):
        cohort = bandit.select(rnd, generator(seed, "thompson"))
        order = np.argsort(cohort.clients)
        draws.append(cohort.why["score"][order])
        mean = cohort.why["mean"][order]
    x = bandit.context.matrix(bandit.state, np.arange(4), bandit.context.scale(bandit.state))
    sure = bandit.net.predict(bandit.state.w, bandit.state.Z, x)[1]
    assert np.std(draws, axis=0) == pytest.approx(0.5 * sure, rel=0.12)
    assert np.mean(draws, axis=0) == pytest.approx(mean, abs=0.5 * float(sure.max()) * 5 / np.sqrt(800))


def test_candidates_bound_the_work():
    bandit, fed = NeuralBandit(candidates=6), SyntheticFederation(40, seed=0)
    seen = {c for _, cohort in fed.play(bandit, 30, 5) for c in cohort.clients.tolist()}
    assert len(seen) > 30  # a fresh sample every round
    tight = NeuralBandit(candidates=1)
    assert all(cohort.clients.size == 5 for _, cohort in fed.play(tight, 5, 5))


@pytest.mark.parametrize(
    "options",
    [{"mode": "no"}, {"explore": -1.0}, {"ridge": 0.0}, {"lr": 0.0}, {"width": 0}, {"batch": 0}, {"steps": -1}],
)
def test_bad_values_are_refused(options):
    with pytest.raises(BadParameter):
        NeuralBandit(**options)
