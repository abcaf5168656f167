"""Clustered sampling: contract, eq. 1 for both algorithms, vessels by hand, unbiasedness and inclusion by counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.errors import BadParameter
from fedcohort.selectors.clustered import Clustered, included, pour, ward
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestClusteredSimilarity(SelectorContract):
    runs = 40

    def make(self):
        return Clustered()


class TestClusteredSize(SelectorContract):
    runs = 40

    def make(self):
        return Clustered(algorithm="size")


def ask(size, samples, available=None, index=1):
    n = len(samples)
    here = np.arange(n) if available is None else np.asarray(available)
    return Round(index, size, here, n, profiles=Signals({"samples": np.asarray(samples)}))


def told(selector, rows):
    rows = np.asarray(rows, np.float32)
    ok = np.full(len(rows), Outcome.OK, np.int8)
    selector.observe(RoundResult(0, np.arange(len(rows)), ok, np.ones(len(rows)), Signals({"last_layer_delta": rows})))
    return selector


def matrix(pieces, m, n):
    r = np.zeros((m, n))
    np.add.at(r, (pieces[1], pieces[0]), pieces[2])
    return r


def test_vessels_by_hand():
    """n = 4 3 2 2 1 (12 in all), m = 3: units 1, 3/4, 1/2, 1/2, 1/4. Largest first: client 0 fills vessel 0; vessel 1
    gets client 1 and half of client 2 (1/4); vessel 2 the other half, client 3 and client 4."""
    units = 3 * np.array([4, 3, 2, 2, 1]) / 12
    r = matrix(pour([], np.arange(5), units, 3), 3, 5)
    np.testing.assert_allclose(r, [[1, 0, 0, 0, 0], [0, 0.75, 0.25, 0, 0], [0, 0, 0.25, 0.5, 0.25]], atol=1e-12)


def test_groups_start_the_vessels():
    """Six equal clients, m = 2: units 1/3. Groups {0 3} and {1 4} start a vessel each; 5, then 2 fill up."""
    r = matrix(pour([np.array([0, 3]), np.array([1, 4])], np.array([5, 0, 1, 2, 3, 4]), np.full(6, 1 / 3), 2), 2, 6)
    np.testing.assert_allclose(r * 3, [[1, 0, 0, 1, 0, 1], [0, 1, 1, 0, 1, 0]], atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 25), st.integers(1, 8), st.booleans())
def test_equation_one_holds(seed, n, m, grouped):
    rng = np.random.default_rng(seed)
    m = min(m, n)
    share = rng.dirichlet(np.full(n, 0.5)) + 1e-6
    units = m * share / share.sum()
    groups = ward(rng.standard_normal((n, 3)), np.minimum(units, 1), m) if grouped else []
    r = matrix(pour(groups, rng.permutation(n), units, m), m, n)
    np.testing.assert_allclose(r.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(r.sum(axis=0), units, atol=1e-6)
    assert (r >= 0).all()


def test_ward_finds_known_groups_and_respects_the_vessel():
    rng = np.random.default_rng(0)
    rows = np.repeat(np.eye(4) * 5, 5, axis=0) + 0.1 * rng.standard_normal((20, 4))
    found = ward(rows, np.full(20, 0.2), 4)
    assert sorted(sorted((g // 5).tolist()) for g in found) == [[0] * 5, [1] * 5, [2] * 5, [3] * 5]
    tight = ward(rows, np.full(20, 0.4), 4)
    assert max(g.size for g in tight) == 2  # three of 0.4 do not fit


def test_similar_clients_compete_with_each_other():
    """Four groups of five alike, four places: one of each group in every round."""
    rng = np.random.default_rng(0)
    rows = np.repeat(np.eye(4), 5, axis=0) + 0.02 * rng.standard_normal((20, 4))
    selector = told(Clustered(), rows)
    for seed in range(30):
        cohort = selector.select(ask(4, np.full(20, 7)), np.random.default_rng(seed))
        assert sorted((cohort.clients // 5).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("algorithm", ["size", "similarity"])
def test_draws_are_proportional_to_data_and_inclusion_is_true(algorithm):
    """Counted over 3000 rounds: multiplicity has mean m p_i, and the stated inclusion is how often a client comes."""
    samples = np.array([40, 5, 10, 20, 1, 8, 30, 6])
    selector = told(Clustered(algorithm=algorithm), np.random.default_rng(1).standard_normal((8, 3)))
    drawn, came, stated = np.zeros(8), np.zeros(8), np.zeros(8)
    for seed in range(3000):
        cohort = selector.select(ask(3, samples), np.random.default_rng(seed))
        drawn[cohort.clients] += cohort.directives["multiplicity"]
        came[cohort.clients] += 1
        stated[cohort.clients] += 1 / cohort.inclusion  # Horvitz and Thompson: its mean is 1
        assert cohort.directives["multiplicity"].sum() == 3
    np.testing.assert_allclose(drawn / 3000, 3 * samples / samples.sum(), atol=0.04)
    seldom = samples / samples.sum() * 3 > 0.1
    np.testing.assert_allclose(stated[seldom] / 3000, 1, atol=0.15)


def test_inclusion_by_hand():
    """A client with 3/4 of one vessel and 1/2 of another: 1 - (1/4) (1/2) = 7/8."""
    assert included(np.array([0, 0, 1]), np.array([0.75, 0.5, 0.25]), np.array([0]))[0] == pytest.approx(0.875)


def test_a_client_of_more_than_a_vessel_is_drawn_more_than_once():
    cohort = Clustered(algorithm="size").select(ask(4, [97, 1, 1, 1]), np.random.default_rng(0))
    assert cohort.directives["multiplicity"][cohort.clients.tolist().index(0)] >= 3


def test_shares_are_among_the_available():
    cohort = Clustered().select(ask(2, [1000, 1, 1, 1000], [1, 2]), np.random.default_rng(0))
    assert set(cohort.clients.tolist()) <= {1, 2}


@pytest.mark.parametrize("bad", [{"algorithm": "magic"}, {"signal": "weights"}, {"memory": 0}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        Clustered(**bad)
