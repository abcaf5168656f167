"""Small statistics against SciPy, closed forms and numbers done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from scipy.spatial.distance import jensenshannon

from fedcohort.core import stats

EMPTY = np.empty(0, np.float32)
finite = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20)


def test_winsorise_uses_order_statistics():
    """11 values: the 0.9 quantile is the 10th smallest (position 9), the 0.1 quantile position 1."""
    x = np.arange(11.0)[::-1].copy()
    assert stats.winsorise(x, 0.9, 0.1).tolist() == [9, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1]
    assert stats.winsorise(x).tolist() == x.tolist()


def test_minmax_by_hand():
    assert stats.minmax(np.array([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]
    assert stats.minmax(np.full(3, 7.0)).tolist() == [0.5] * 3
    assert stats.minmax(np.full(3, 7.0), constant=0.0).tolist() == [0.0] * 3


@given(finite)
@settings(max_examples=60, deadline=None)
def test_zscore_is_centred_finite_and_clipped(values):
    x = np.array(values)
    z = stats.zscore(x)
    assert np.isfinite(z).all()
    if np.ptp(x) > 1e-3 * (1 + np.abs(x).max()):
        assert z.mean() == pytest.approx(0.0, abs=1e-6)
        assert z.std() == pytest.approx(1.0, abs=1e-6)
    assert np.abs(stats.zscore(x, 0.5)).max() <= 0.5


def test_a_constant_column_has_no_score():
    """The mean of 1000 float32 copies of 0.1 is not 0.1; the z-score must be 0 all the same."""
    for n in (1, 7, 1000, 12345):
        assert not stats.zscore(np.full(n, 0.1, np.float32)).any()


def test_softmax_is_stable_and_shift_free():
    x = np.array([[1000.0, 1001.0], [0.0, 1.0]])
    p = stats.softmax(x)
    np.testing.assert_allclose(p, [[1 / (1 + np.e), np.e / (1 + np.e)]] * 2)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=15))
@settings(max_examples=50, deadline=None)
def test_rank_equals_scipy(values):
    np.testing.assert_allclose(stats.rank(np.array(values, float)), scipy_stats.rankdata(values) - 1)


def test_spearman_equals_scipy_and_is_zero_for_constants():
    r = np.random.default_rng(0)
    x, y = r.integers(0, 6, 30).astype(float), r.normal(size=30)
    assert stats.spearman(x, y) == pytest.approx(scipy_stats.spearmanr(x, y).statistic)
    assert stats.spearman(x, np.ones(30)) == 0.0


def test_jain_extremes():
    assert stats.jain(np.full(8, 3.0)) == pytest.approx(1.0)
    assert stats.jain(np.eye(8)[2]) == pytest.approx(1 / 8)
    assert stats.jain(np.zeros(3)) == 1.0


def test_js_divergence_equals_scipy():
    """SciPy gives the distance, the square root of the divergence."""
    r = np.random.default_rng(1)
    p, q = r.dirichlet(np.full(5, 0.3), 20), r.dirichlet(np.full(5, 0.3), 20)
    np.testing.assert_allclose(stats.js_divergence(p, q), jensenshannon(p, q, axis=1, base=2) ** 2, atol=1e-12)
    np.testing.assert_allclose(stats.js_divergence(np.eye(3), np.roll(np.eye(3), 1, 0)), 1.0)
    np.testing.assert_allclose(stats.js_divergence(p, p), 0.0, atol=1e-12)


def test_effective_classes():
    """k equally frequent classes count as k, whatever the counts' scale; no samples count as 1 (entropy 0)."""
    h = np.array([[5.0, 5, 0, 0], [2, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    np.testing.assert_allclose(stats.effective_classes(h), [2, 1, 4, 1])


def test_everything_takes_empty_input():
    for function in (stats.winsorise, stats.minmax, stats.zscore, stats.softmax, stats.rank):
        assert function(EMPTY).size == 0
    assert stats.spearman(EMPTY, EMPTY) == 0.0
    assert stats.jain(EMPTY) == 1.0
