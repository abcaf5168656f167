"""Hoeffding's inequality: closed forms, inverses of each other, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.errors import BadParameter
from fedcohort.skew.confidence import comparisons_needed, confidence_of, radius, settled_after


def test_radius_by_hand():
    """n = 50, delta = 0.05: sqrt(ln 40 / 100) = sqrt(3.688879 / 100) = 0.192065; four times the n, half the radius."""
    assert radius(50) == pytest.approx(0.192065, abs=1e-6)
    assert radius(200) == pytest.approx(0.192065 / 2, abs=1e-6)
    assert radius(50, 0.05, 10) == pytest.approx(math.sqrt(math.log(400) / 100))
    assert radius(0) == 1.0


def test_needed_by_hand():
    """eps = 0.1, delta = 0.05: ln 40 / 0.02 = 184.4, so 185; for 200 clients at once ln 8000 / 0.02 = 449.4, so 450."""
    assert comparisons_needed(0.1) == 185
    assert comparisons_needed(0.1, clients=200) == 450


@settings(max_examples=50, deadline=None)
@given(st.floats(0.02, 1.0), st.floats(0.001, 0.5), st.integers(1, 1000))
def test_needed_is_the_smallest_count(eps, delta, clients):
    n = comparisons_needed(eps, delta, clients)
    assert radius(n, delta, clients) <= eps + 1e-9
    if n > 1:
        assert radius(n - 1, delta, clients) > eps - 1e-9


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 1.0), st.floats(0.001, 0.5))
def test_settled_after_inverts_the_confidence(gap, delta):
    n = float(settled_after(gap, delta))
    assert confidence_of(gap, n) >= 1 - delta - 1e-9
    assert confidence_of(gap, n - 1) < 1 - delta + 1e-9
    assert np.isinf(settled_after(0.0, delta))


def test_intervals_cover_at_least_as_promised():
    """Worst case for Hoeffding: fair coins. 20 clients at once, 4000 times: all covered in at least 1 - delta."""
    rng, n, clients, delta = np.random.default_rng(0), 40, 20, 0.1
    shares = rng.binomial(n, 0.5, (4000, clients)) / n
    covered = (np.abs(shares - 0.5) <= radius(n, delta, clients)).all(axis=1).mean()
    alone = (np.abs(shares - 0.5) <= radius(n, delta)).mean()
    assert covered >= 1 - delta
    assert 1 - delta <= alone < 1  # not so wide as to say nothing


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0])
def test_impossible_deltas_are_refused(delta):
    with pytest.raises(BadParameter, match="delta"):
        radius(10, delta)
    with pytest.raises(BadParameter, match="delta"):
        comparisons_needed(0.1, delta)


def test_impossible_counts_and_distances_are_refused():
    with pytest.raises(BadParameter, match="eps"):
        comparisons_needed(0.0)
    with pytest.raises(BadParameter, match="comparisons"):
        radius(-1)
    with pytest.raises(BadParameter, match="clients"):
        radius(1, clients=0)
