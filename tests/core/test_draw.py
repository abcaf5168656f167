"""Draws against closed forms and naive loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from fedcohort.core import draw


def rng(seed=0):
    return np.random.default_rng(seed)


def chi_square_ok(counts, expected):
    """Pearson's statistic below its 1 - 1e-5 quantile."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    return statistic < scipy_stats.chi2.ppf(1 - 1e-5, len(counts) - 1)


def test_uniform_makes_every_set_equally_likely():
    """6 choose 2 = 15 sets."""
    r, sets = rng(), list(itertools.combinations(range(6), 2))
    counts = np.zeros(15)
    for _ in range(6000):
        counts[sets.index(tuple(sorted(draw.uniform(np.arange(6), 2, r))))] += 1
    assert chi_square_ok(counts, np.full(15, 400.0))


@pytest.mark.parametrize("k", [0, -1])
def test_nothing_asked_nothing_drawn(k):
    for drawn in (
        draw.uniform(np.arange(5), k, rng()),
        draw.top(np.ones(5), k, rng()),
        draw.weighted(np.ones(5), k, rng()),
        draw.softmax(np.ones(5), k, 1.0, rng()),
    ):
        assert drawn.size == 0
        assert drawn.dtype == np.int64


def test_split_keeps_order():
    on, off = draw.split(np.array([4, 1, 3]), np.array([0, 1, 0, 0, 1], bool))
    assert on.tolist() == [4, 1]
    assert off.tolist() == [3]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 14), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_top_takes_the_largest(values, k, seed):
    """The chosen scores are the k largest, as sorting says."""
    score = np.array(values, float)
    at = draw.top(score, k, rng(seed))
    assert np.unique(at).size == at.size == min(k, score.size)
    assert sorted(score[at]) == sorted(values)[len(values) - at.size :]
    low = draw.bottom(score, k, rng(seed))
    assert sorted(score[low]) == sorted(values)[: low.size]


def test_top_breaks_ties_at_random():
    """One clear winner, five tied for two places: each is in with probability 2 / 5."""
    r, counts = rng(), np.zeros(6)
    for _ in range(3000):
        counts[draw.top(np.array([1.0, 1, 1, 9, 1, 1]), 3, r)] += 1
    assert counts[3] == 3000
    assert chi_square_ok(np.delete(counts, 3), np.full(5, 1200.0))


def test_top_ranks_nan_last_and_infinity_first():
    score = np.array([np.nan, 1.0, np.inf, np.nan, 2.0])
    assert sorted(draw.top(score, 3, rng())) == [1, 2, 4]
    assert draw.top(score, 4, rng()).size == 4
    assert draw.top(np.full(5, np.nan), 2, rng()).size == 2


def sequential_probabilities(weight, k):
    """P(set) for k draws one after the other with odds proportional to what is left, by enumeration."""
    found = {}
    for order in itertools.permutations(range(len(weight)), k):
        p, left = 1.0, sum(weight)
        for i in order:
            p *= weight[i] / left
            left -= weight[i]
        key = tuple(sorted(order))
        found[key] = found.get(key, 0.0) + p
    return found


@pytest.mark.parametrize("kind", ["race", "gumbel"])
def test_weighted_equals_sequential_draws(kind):
    """The race and Gumbel top-k have the law of drawing one after the other; all 10 pairs of 5 weights."""
    weight, r = np.array([1.0, 2.0, 0.5, 4.0, 2.5]), rng(3)
    law = sequential_probabilities(weight, 2)
    counts = dict.fromkeys(law, 0)
    for _ in range(8000):
        at = draw.weighted(weight, 2, r) if kind == "race" else draw.softmax(2.0 * np.log(weight), 2, 2.0, r)
        counts[tuple(sorted(at.tolist()))] += 1
    assert chi_square_ok(np.array([counts[s] for s in law]), 8000 * np.array(list(law.values())))


def test_weighted_uses_zero_weights_last_and_uniformly():
    weight, r, counts = np.array([0.0, 3.0, 0.0, 1.0, 0.0]), rng(), np.zeros(5)
    assert set(draw.weighted(weight, 2, r)) == {1, 3}
    for _ in range(2400):
        counts[draw.weighted(weight, 3, r)] += 1
    assert counts[1] == counts[3] == 2400
    assert chi_square_ok(counts[[0, 2, 4]], np.full(3, 800.0))


def test_weighted_survives_denormal_weights():
    at = draw.weighted(np.array([5e-324, 1.0, 5e-324, 1.0]), 2, rng())
    assert sorted(at) == [1, 3]


def inclusion_by_loop(weight, k):
    """The textbook capping loop: cap whoever exceeds 1, spread the rest, repeat."""
    w, capped = np.asarray(weight, float), set()
    while True:
        rest = [i for i in range(len(w)) if i not in capped]
        p = np.ones(len(w))
        p[rest] = (k - len(capped)) * w[rest] / w[rest].sum()
        over = [i for i in rest if p[i] > 1 + 1e-12]
        if not over:
            return p
        capped.update(over)


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=15), st.data())
@settings(max_examples=80, deadline=None)
def test_capped_inclusion_equals_the_loop(values, data):
    k = data.draw(st.integers(1, len(values)))
    p = draw.capped_inclusion(np.array(values), k)
    assert p.sum() == pytest.approx(k)
    np.testing.assert_allclose(p, inclusion_by_loop(values, k) if k < len(values) else 1.0, rtol=1e-9)


@pytest.mark.parametrize(
    ("weight", "k", "want"),
    [
        ([1, 0, 0], 2, [1, 0.5, 0.5]),
        ([0, 0, 0, 0], 2, [0.5] * 4),
        ([1, 1, 0], 2, [1, 1, 0]),
        ([100, 1, 1], 2, [1, 0.5, 0.5]),
        ([1, 1], 5, [1, 1]),
        ([3, 1], 0, [0, 0]),
    ],
)
def test_capped_inclusion_by_hand(weight, k, want):
    np.testing.assert_allclose(draw.capped_inclusion(np.array(weight, float), k), want)


def test_depround_has_exact_marginals_and_size():
    p, r, counts, runs = np.array([0.9, 0.1, 0.5, 1.0, 0.25, 0.25, 0.0]), rng(5), np.zeros(7), 8000
    for _ in range(runs):
        at = draw.depround(p, r)
        assert at.size == 3
        assert np.unique(at).size == 3
        counts[at] += 1
    assert counts[3] == runs
    assert counts[6] == 0
    inside = [0, 1, 2, 4, 5]
    z = (counts - runs * p)[inside] / np.sqrt(runs * p * (1 - p))[inside]
    assert np.abs(z).max() < 4.5


@given(st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=40), st.integers(1, 39), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_depround_always_draws_k(values, k, seed):
    k = min(k, len(values))
    at = draw.depround(draw.capped_inclusion(np.array(values), k), rng(seed))
    assert np.unique(at).size == k


def test_depround_of_nothing():
    assert draw.depround(np.empty(0), rng()).size == 0
    assert draw.depround(np.zeros(4), rng()).size == 0
