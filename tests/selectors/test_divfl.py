"""DivFL: contract, greedy against brute force, the wrong end, strangers first, liars."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedcohort.errors import BadParameter
from fedcohort.selectors.divfl import DivFL, facility_location
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestDivFLStochastic(SelectorContract):
    runs = 40

    def make(self):
        return DivFL(signal="delta", epsilon=0.1, memory=15)


def told(selector, rows, index=0, clients=None):
    rows = np.asarray(rows, np.float32)
    clients = np.arange(len(rows)) if clients is None else np.asarray(clients)
    ok = np.full(clients.size, Outcome.OK, np.int8)
    selector.observe(RoundResult(index, clients, ok, np.ones(clients.size), Signals({"last_layer_delta": rows})))
    return selector


def distances(rows):
    rows = np.asarray(rows, float)
    return np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(-1))


def test_six_clients_by_hand():
    """On a line at 0 1 2, 10 11, 20. Largest distance 20. Gains of the first pick, sum of (20 - distance):

    at 10: 20 * 6 - (10 + 9 + 8 + 0 + 1 + 10) = 82;  at 2: 120 - (2 + 1 + 0 + 8 + 9 + 18) = 82;  at 11: 120 - 40 = 80;
    at 1: 120 - (1 + 0 + 1 + 9 + 10 + 19) = 80;  at 0: 76;  at 20: 56. So 10 or 2 comes first, at random.
    With three places the groups {0 1 2}, {10 11} and {20} have one each.
    """
    rows = np.array([0.0, 1, 2, 10, 11, 20])[:, None]
    firsts = set()
    for seed in range(40):
        chosen, gain = facility_location(distances(rows), 3, 6, np.random.default_rng(seed))
        assert gain[0] == pytest.approx(82)
        firsts.add(int(chosen[0]))
        groups = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
        assert sorted(groups[i] for i in chosen.tolist()) == ["a", "b", "c"]
    assert firsts == {2, 3}


@pytest.mark.parametrize("seed", range(5))
def test_greedy_is_within_its_guarantee_of_the_best(seed):
    d = distances(np.random.default_rng(seed).standard_normal((9, 3)))
    chosen, gain = facility_location(d, 3, 9, np.random.default_rng(0))
    value = lambda s: float((d.max() - d[:, list(s)].min(axis=1)).sum())  # noqa: E731
    assert gain.sum() == pytest.approx(value(chosen))
    assert gain.sum() >= (1 - 1 / np.e) * max(value(s) for s in combinations(range(9), 3))
    assert (np.diff(gain) <= 1e-9).all()  # submodular: gains never rise


def test_the_right_end_is_chosen():
    """A published bug: argpartition took the smallest gains. Thirty clients in three far groups, three places."""
    rng = np.random.default_rng(0)
    rows = np.repeat(np.eye(3) * 10, 10, axis=0) + 0.1 * rng.standard_normal((30, 3))
    divfl = told(DivFL(), rows)
    for seed in range(20):
        cohort = divfl.select(Round(1, 3, np.arange(30), 30), np.random.default_rng(seed))
        assert sorted((cohort.clients // 10).tolist()) == [0, 1, 2]
        assert cohort.why["represents"].tolist() == [10, 10, 10]


def test_those_away_are_represented_but_not_chosen():
    rows = np.array([0.0, 1, 2, 10, 11, 20])[:, None]
    cohort = told(DivFL(), rows).select(Round(1, 2, np.array([0, 4]), 6), np.random.default_rng(0))
    assert sorted(cohort.clients.tolist()) == [0, 4]
    assert cohort.why["represents"].sum() == 6


def test_unknown_clients_get_their_share_of_the_cohort():
    """Ten known and ten unknown: two of four places each. All unknown: all places."""
    divfl = told(DivFL(), np.random.default_rng(0).standard_normal((10, 3)))
    for seed in range(10):
        chosen = divfl.select(Round(1, 4, np.arange(20), 20), np.random.default_rng(seed)).clients
        assert (chosen >= 10).sum() == 2
    assert DivFL().select(Round(0, 4, np.arange(20), 20), np.random.default_rng(0)).clients.size == 4


def test_a_liar_is_not_always_chosen():
    """One update a thousandfold: cut to three median lengths it wins no place, and the honest choice stays."""
    rng = np.random.default_rng(0)
    rows = np.repeat(np.eye(4), 10, axis=0) + 0.05 * rng.standard_normal((40, 4))
    lied = rows.copy()
    lied[0] *= 1000
    groups = []
    for data in (rows, lied):
        chosen = told(DivFL(), data).select(Round(1, 4, np.arange(40), 40), np.random.default_rng(1)).clients
        groups.append(sorted((chosen // 10).tolist()))
    assert groups == [[0, 1, 2, 3]] * 2


def test_memory_keeps_the_newest_and_survives_another_width():
    divfl = DivFL(memory=3)
    told(divfl, [[1.0], [2.0]], 0, [0, 1])
    told(divfl, [[3.0], [4.0]], 1, [2, 0])
    assert divfl.state.who.tolist() == [1, 2, 0]
    assert divfl.state.row.ravel().tolist() == [2.0, 3.0, 4.0]
    told(divfl, [[1.0, 2.0]], 2, [5])
    assert divfl.state.who.tolist() == [5]


@pytest.mark.parametrize("bad", [{"signal": "weights"}, {"epsilon": 1.0}, {"memory": 1}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        DivFL(**bad)
