"""Seed bands against the intervals of the comparison and against curves worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.experiment.metrics.paired import interval, spread
from fedcohort.report.plots import bands

A, B, C = np.array([0.1, 0.5, 0.6]), np.array([0.3, 0.4, 0.9]), np.array([0.2, 0.7, 0.3])


def test_band_of_few_seeds_is_the_range_of_every_round():
    found = bands.by_round([A, B, C])
    assert found.x.tolist() == [0.0, 1.0, 2.0]
    assert found.y == pytest.approx([0.2, 1.6 / 3, 0.6])
    assert found.low.tolist() == [0.1, 0.4, 0.3]
    assert found.high.tolist() == [0.3, 0.7, 0.9]
    assert (found.low[0], found.high[0]) == spread([A[0], B[0], C[0]])


def test_band_of_five_seeds_is_the_interval_of_every_round():
    curves = [A, B, C, A / 2, B / 3]
    found = bands.by_round(curves)
    for t in range(3):
        assert (found.low[t], found.high[t]) == pytest.approx(interval([c[t] for c in curves]))


def test_one_seed_has_no_band():
    found = bands.by_round([A])
    assert found.low is None
    assert found.high is None
    assert found.y.tolist() == A.tolist()


def test_rounds_that_some_seed_has_not_measured_are_left_out():
    found = bands.by_round([np.array([0.1, np.nan, 0.3, 0.4]), np.array([0.3, np.nan, 0.5])])
    assert found.x.tolist() == [0.0, 2.0]
    assert found.y == pytest.approx([0.2, 0.4])


def test_against_time_the_newest_model_counts():
    """Seeds end rounds at 1, 3, 5 and 2, 4, 9 s: both have a model from 2 s on, the first one ends at 5 s."""
    found = bands.by_time([np.array([1.0, 3.0, 5.0]), np.array([2.0, 4.0, 9.0])], [A, B], points=7)
    assert found.x.tolist() == pytest.approx([2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0])
    first, second = [0.1, 0.1, 0.5, 0.5, 0.5, 0.5, 0.6], [0.3, 0.3, 0.3, 0.3, 0.4, 0.4, 0.4]
    assert found.y == pytest.approx(np.mean([first, second], axis=0))


def test_against_time_without_any_measurement_or_overlap():
    assert bands.by_time([np.array([1.0])], [np.array([np.nan])]).x.size == 0
    apart = bands.by_time([np.array([1.0, 2.0]), np.array([5.0, 6.0])], [A[:2], B[:2]])
    assert apart.x.size == 0


def test_participation_is_sorted_before_the_mean():
    """Counts 3, 0, 1 and 0, 5, 1 become 3, 1, 0 and 5, 1, 0: mean 4, 1, 0."""
    found = bands.by_rank([np.array([3, 0, 1]), np.array([0, 5, 1])])
    assert found.x.tolist() == [1.0, 2.0, 3.0]
    assert found.y.tolist() == [4.0, 1.0, 0.0]


def test_long_curves_are_thinned_and_keep_their_spike():
    long = np.full(5000, 0.5)
    long[3333] = 0.9
    found = bands.by_round([long, long], points=100)
    assert found.x.size <= 102
    assert found.y.max() == 0.9
    assert 3333.0 in found.x
