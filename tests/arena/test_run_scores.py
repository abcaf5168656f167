"""Scores by hand: step curves, censoring, horizons before, between and after evaluations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedcohort.arena.run_scores import (
    SCORES,
    RunScores,
    anytime,
    final_accuracy,
    order_value,
    thinned,
    time_to_target,
    worst_tenth,
)
from fedcohort.errors import BadParameter

CLOCK, ACCURACY = [2.0, 6.0, 12.0], [0.5, 1.0, 0.2]


@pytest.mark.parametrize(
    ("horizon", "area"),
    [
        (1.0, 0.0),  # before the first evaluation
        (2.0, 0.0),  # the first evaluation is at the horizon
        (4.0, (2 * 0.0 + 2 * 0.5) / 4),
        (10.0, (2 * 0.0 + 4 * 0.5 + 4 * 1.0) / 10),
        (20.0, (4 * 0.5 + 6 * 1.0 + 8 * 0.2) / 20),  # the run ended early: the last accuracy stays
    ],
)
def test_anytime_is_the_area_under_the_steps(horizon, area):
    assert anytime(CLOCK, ACCURACY, horizon) == pytest.approx(area)


def test_rounds_without_evaluation_do_not_count():
    assert anytime([1.0, 2.0, 3.0], [0.4, math.nan, 0.8], 4.0) == pytest.approx((2 * 0.4 + 1 * 0.8) / 4)
    assert final_accuracy([1.0, 2.0], [0.4, math.nan], 4.0) == 0.4


def test_several_rounds_at_one_moment():
    assert anytime([1.0, 1.0], [0.2, 0.6], 2.0) == pytest.approx(0.3)


@pytest.mark.parametrize(("horizon", "accuracy"), [(1.0, 0.0), (2.0, 0.5), (5.9, 0.5), (6.0, 1.0), (99.0, 0.2)])
def test_final_is_the_last_one_by_the_horizon(horizon, accuracy):
    assert final_accuracy(CLOCK, ACCURACY, horizon) == accuracy


def test_an_empty_run():
    assert anytime([], [], 5.0) == 0.0
    assert final_accuracy([], [], 5.0) == 0.0
    assert time_to_target([], [], 5.0, 0.5) is None
    assert thinned([], [], 5.0) == []


def test_time_to_target_is_censored_at_the_horizon():
    assert time_to_target(CLOCK, ACCURACY, 10.0, 0.5) == 2.0
    assert time_to_target(CLOCK, ACCURACY, 10.0, 0.9) == 6.0
    assert time_to_target(CLOCK, ACCURACY, 5.0, 0.9) is None
    assert time_to_target(CLOCK, ACCURACY, 6.0, 0.9) == 6.0


def test_what_was_not_reached_is_below_everything_else():
    assert order_value("time_to_target", None) == -math.inf
    assert order_value("time_to_target", 10.0) > order_value("time_to_target", 1e9) > -math.inf
    assert order_value("anytime", 0.7) == 0.7
    assert order_value("traffic", math.e) == pytest.approx(-1.0)


def test_worst_tenth_leaves_out_clients_without_data():
    accuracies = np.r_[np.linspace(0.05, 1.0, 20), np.nan]
    assert worst_tenth(accuracies) == pytest.approx((0.05 + 0.1) / 2)
    assert worst_tenth(None) is None
    assert worst_tenth([np.nan]) is None


def test_a_curve_is_thinned_to_its_first_and_last_points():
    clock = np.arange(1.0, 501.0)
    curve = thinned(clock, clock / 1000, 400.0)
    assert len(curve) == 60
    assert curve[0] == [1.0, 0.001]
    assert curve[-1] == [400.0, 0.4]


def test_a_horizon_is_positive():
    with pytest.raises(BadParameter, match="horizon = 0"):
        anytime(CLOCK, ACCURACY, 0)


def test_data_is_plain_and_complete():
    plain = RunScores(0.123456789, 0.5, None, None, 1e9, 0.25, 7).data()
    assert set(SCORES) < set(plain)
    assert plain["anytime"] == 0.1234568
    assert plain["time_to_target"] is None
    assert plain["rounds"] == 7
