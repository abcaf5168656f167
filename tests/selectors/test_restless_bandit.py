"""The restless bandit: its filter against enumeration, its sequencing, a change of regime, and the contract."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.errors import BadParameter
from fedcohort.selectors.restless_bandit import RestlessBandit, RestlessState, regimes, thetas
from fedcohort.testing import SelectorContract, SyntheticFederation
from fedcohort.types import Round


class TestDiscountedContract(SelectorContract):
    runs = 40

    def make(self):
        return RestlessBandit(mode="discounted")


def test_the_filter_equals_enumeration():
    """Three rounds, two regimes, fixed transitions: P(z_3 | data) by summing over all eight paths."""
    move, squares, noise = np.array([[0.8, 0.2], [0.4, 0.6]]), np.array([[1.0, 3.0], [2.0, 0.5], [0.2, 0.9]]), 0.7
    belief = np.array([0.5, 0.5])
    for row in squares:
        joint, belief = regimes(belief, move, row, noise)
    paths = {}
    for path in itertools.product((0, 1), repeat=4):  # z_0 is the start
        weight = 0.5
        for t in range(3):
            weight *= move[path[t], path[t + 1]] * math.exp(-squares[t, path[t + 1]] / (2 * noise))
        paths[path] = weight
    total = sum(paths.values())
    ends = [sum(w for p, w in paths.items() if p[3] == h) / total for h in (0, 1)]
    pairs = [[sum(w for p, w in paths.items() if p[2:] == (g, h)) / total for h in (0, 1)] for g in (0, 1)]
    assert belief == pytest.approx(ends)
    assert joint == pytest.approx(np.array(pairs))


def test_the_filter_by_hand():
    """Equal belief, transitions .9 / .1, residual squares 0 and 2 ln 9 at unit noise: likelihoods 1 and 1/9.

    Ahead of the data both regimes have .5 * .9 + .5 * .1 = .5, so the belief is (.5, .5 / 9) / (5 / 9) = (.9, .1);
    the two-slice posterior is [.45, .05/9; .05, .45/9] / (5/9) = [.81, .01; .09, .09].
    """
    joint, belief = regimes(
        np.array([0.5, 0.5]), np.array([[9.0, 1.0], [1.0, 9.0]]), np.array([0, 2 * math.log(9)]), 1.0
    )
    assert belief == pytest.approx([0.9, 0.1])
    assert joint == pytest.approx(np.array([[0.81, 0.01], [0.09, 0.09]]))


def _synthetic(mode):
    """A bandit over six clients whose single feature is the last reward: -1, -.6, -.2, .2, .6, 1 after scaling."""
    bandit = RestlessBandit(mode=mode, context="reward", explore=0.0)
    s = bandit.state
    s.grow(6)
    s.reward[:], s.paid[:], s.seconds[:] = [-5, -3, -1, 1, 3, 5], True, 1.0
    s.asked_round = 0
    return bandit, s


def test_six_clients_by_hand():
    """Two regimes with theta = +1 and -1 (V = 1, b = +1 and -1), belief (.2, .8), transitions .9 / .1.

    Next regime: (.2 * .9 + .8 * .1, .2 * .1 + .8 * .9) = (.26, .74), so theta = .26 - .74 = -.48: the clients with
    the smallest feature are best. Trimmed at 5 %, rewards -5 -3 -1 1 3 5 become -5 -3 -1 1 3 3: mean -1/3,
    sum of squares 54, variance 54/6 - 1/9 = 80/9. So client 0 is at z = (-14/3) / 2.981 = -1.565 and client 1 at -.894,
    and the best two are 0 and 1, with scores .751 and .429.
    """
    bandit, s = _synthetic("hidden")
    s.V, s.b = np.ones((2, 1, 1)), np.array([[1.0], [-1.0]])
    s.belief, s.counts = np.array([0.2, 0.8]), np.array([[9.0, 1.0], [1.0, 9.0]])
    cohort = bandit.select(Round(1, 2, np.arange(6), 6), generator(0, "by-hand"))
    assert sorted(cohort.clients) == [0, 1]
    assert np.sort(cohort.why["score"]) == pytest.approx([0.4293, 0.7513], abs=2e-4)


def test_discounted_score_by_hand():
    """d = 1, V = 4, W = 9, b = 2, beta = 1: x * .5 + |x| * sqrt(9) / 4 = .5 x + .75 |x|."""
    bandit, s = _synthetic("discounted")
    s.V, s.b = np.array([[[4.0]], [[9.0]]]), np.array([[2.0], [0.0]])
    cohort = bandit.select(Round(1, 6, np.arange(6), 6), generator(0, "by-hand"))
    f = np.array([-5, -3, -1, 1, 3, 3])
    z = ((f - f.mean()) / f.std())[cohort.clients]
    assert cohort.why["score"] == pytest.approx(0.5 * z + 0.75 * np.abs(z), rel=1e-4)


def test_exploration_follows_the_logarithm():
    """After round t, the rounds explored are the smallest count not below D ln(1 + t), as far as one a round allows."""
    bandit, fed = RestlessBandit(explore=2.0), SyntheticFederation(20, seed=3)
    for t in range(40):
        fed.play(bandit, [t], 4)
        assert bandit.state.explored <= 2.0 * math.log(1 + t) + 1
    assert bandit.state.explored >= 2.0 * math.log(40) - 1
    still, fed = RestlessBandit(explore=0.0), SyntheticFederation(20, seed=3)
    fed.play(still, 10, 4)
    assert still.state.explored == 0


def test_a_change_of_regime_is_noticed():
    """Rewards y = +x for 30 rounds, then y = -x: the belief moves, and the other model takes the new sign."""
    bandit, rng = RestlessBandit(context="reward"), generator(0, "switch")
    s = bandit.state
    assert isinstance(s, RestlessState)
    pending = {}
    bandit.context = type("Planted", (), {"settle": lambda self, state, index, probed: pending["xy"]})()
    leader = []
    for t in range(60):
        x = rng.normal(size=(8, 1))
        pending["xy"] = (x, (1.0 if t < 30 else -1.0) * x[:, 0] + 0.1 * rng.normal(size=8))
        bandit._learn(s, t, None)
        leader.append(int(s.belief.argmax()))
    assert leader[29] != leader[59]
    assert thetas(s)[leader[29], 0] > 0.3
    assert thetas(s)[leader[59], 0] < -0.1
    assert np.linalg.eigvalsh(s.V).min() > 0


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "no"},
        {"regimes": 1},
        {"stay": 1.0},
        {"discount": 0.0},
        {"explore": -1.0},
        {"width": -1.0},
        {"ridge": 0.0},
        {"initial": "no"},
    ],
)
def test_bad_values_are_refused(options):
    with pytest.raises(BadParameter):
        RestlessBandit(**options)
