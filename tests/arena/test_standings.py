"""Ranks, intervals, wins, profiles and the critical difference: by hand and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedcohort.arena.leaderboard import make_board
from fedcohort.arena.problem_set import tier_problems
from fedcohort.arena.standings import (
    Results,
    average_ranks,
    cliques,
    collect,
    mean_difference,
    minus,
    pairwise,
    problem_ranks,
    profile,
    seed_ranks,
    verdict,
    wins_and_p,
)
from fedcohort.errors import StoreError, UnknownName
from fedcohort.experiment.metrics import paired

PROBLEMS = [p.name for p in tier_problems("quick")]


def rows(table, seeds=(0,), problems=PROBLEMS, **more):
    """Rows from {entry: value or function of (problem number, seed)}."""
    found = []
    for name, value in table.items():
        for number, on in enumerate(problems):
            for seed in seeds:
                score = value(number, seed) if callable(value) else value
                scores = {"anytime": score, "final": score, "time_to_target": None, "worst_tenth": score}
                scores |= {"traffic": 100.0, "own_ms": 1.0}
                found.append(
                    {"selector": name, "problem": on, "seed": seed, "scores": scores, "privacy": 1, "needs": []}
                )
    return found


def results(values, entries=None):
    values = np.asarray(values, np.float64)
    names = entries or ("uniform", *(f"e{i}" for i in range(1, values.shape[0])))
    return Results("anytime", tuple(names), tuple(PROBLEMS[: values.shape[1]]), tuple(range(values.shape[2])), values)


def test_ranks_agree_with_scipy():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 4, (5, 6, 3)).astype(float)
    values[2, 1, 0] = -math.inf
    expected = stats.rankdata(-values, axis=0)
    np.testing.assert_allclose(seed_ranks(values), expected)
    np.testing.assert_allclose(problem_ranks(expected), stats.rankdata(expected.mean(axis=2).round(9), axis=0))


def test_average_ranks_and_critical_difference_of_demsar():
    """Demšar 2006, tables 5 and 6: k = 4 and N = 14 give CD = 1.25 with q = 2.569."""
    assert paired.critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=2e-3)
    for k in (2, 5, 33):
        q = stats.studentized_range.ppf(0.95, k, np.inf) / math.sqrt(2)
        assert paired.critical_difference(k, 16) == pytest.approx(q * math.sqrt(k * (k + 1) / (6 * 16)), rel=1e-3)


def test_average_ranks_by_hand():
    """Two problems, one seed: ranks (1, 2, 3) and (2.5, 2.5, 1)."""
    found, low, high = average_ranks(results([[[0.9], [0.1]], [[0.8], [0.1]], [[0.7], [0.5]]]))
    np.testing.assert_allclose(found, [1.75, 2.25, 2.0])
    np.testing.assert_allclose(low, [1.0, 2.0, 1.0])
    np.testing.assert_allclose(high, [2.5, 2.5, 3.0])


def test_intervals_are_repeatable_and_hold_the_mean():
    values = np.random.default_rng(1).normal(size=(4, 8, 5))
    a, b = average_ranks(results(values)), average_ranks(results(values))
    np.testing.assert_array_equal(a, b)
    assert (a[1] <= a[0]).all()
    assert (a[0] <= a[2]).all()


def test_the_interval_of_a_constant_difference_is_a_point():
    assert mean_difference(np.full((3, 2), 0.25)) == (0.25, 0.25, 0.25)
    assert mean_difference(np.array([[0.1, -math.inf]])) is None


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng, hits = np.random.default_rng(2), 0
    for _ in range(60):
        truth = 0.3 + rng.normal(0, 0.2, 16)[:, None]  # problems differ, and seeds within them
        _, low, high = mean_difference(truth + rng.normal(0, 0.1, (16, 5)))
        hits += low <= 0.3 <= high
    assert hits >= 49


def test_two_that_are_not_reached_are_equal():
    inf = math.inf
    np.testing.assert_array_equal(minus(np.array([-inf, 1.0, -inf]), np.array([-inf, -inf, 2.0])), [0.0, inf, -inf])


def test_wins_and_p_agree_with_scipy():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.4, 1, (12, 4)), rng.normal(0, 1, (12, 4))
    won, lost, p = wins_and_p(a, b)
    d = (a - b).mean(axis=1)
    assert (won, lost) == ((d > 0).sum(), (d < 0).sum())
    assert p == pytest.approx(stats.wilcoxon(d, method="exact").pvalue)


def test_wins_with_unreached_targets_use_the_sign_test():
    inf = math.inf
    a = np.array([[1.0, 1.0], [-inf, -inf], [1.0, 2.0]])
    b = np.array([[-inf, 0.0], [-inf, -inf], [2.0, 3.0]])
    assert wins_and_p(a, b) == (1, 1, 1.0)


def test_pairwise_is_corrected_for_all_pairs():
    values = np.zeros((3, 8, 2))
    values[0], values[1] = 2.0 + np.arange(8)[:, None] / 100, 1.0
    found = pairwise(results(values))
    assert found.wins[0, 1] == 8
    assert found.wins[1, 0] == 0
    assert found.p[0, 1] == pytest.approx(3 * 2**-7)  # Holm: the smallest of three
    np.testing.assert_array_equal(found.p, found.p.T)


def test_profile_by_hand():
    values = np.array([[[0.9, 0.5]], [[0.8, 0.6]]])
    np.testing.assert_allclose(profile(results(values), [0.0, 0.05, 0.2]), [[0.5, 0.5, 1.0], [0.5, 0.5, 1.0]])
    lost = np.array([[[-math.inf]], [[0.8]]])
    np.testing.assert_allclose(profile(results(lost), [0.0, 1e9]), [[0.0, 0.0], [1.0, 1.0]])


def test_cliques_join_what_cannot_be_told_apart():
    assert cliques([1.0, 2.0, 3.0], 10.0) == [(0, 2)]
    assert cliques([1.0, 2.0, 3.0], 0.5) == []
    assert cliques([1.0, 1.8, 2.6], 1.0) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("interval", "won", "lost", "p", "adjusted", "words"),
    [
        ((0.1, 0.05, 0.2), 16, 0, 1e-4, 0.003, "better than uniform"),
        ((-0.1, -0.2, -0.05), 0, 16, 1e-4, 0.003, "worse than uniform"),
        ((0.1, 0.05, 0.2), 7, 1, 0.02, 0.4, "ahead, undecided after correction"),
        ((0.01, -0.05, 0.06), 5, 3, 0.3, 1.0, "inside the noise"),
        ((-0.01, -0.05, 0.06), 5, 3, 0.3, 1.0, "inside the noise"),
        (None, 8, 0, 0.008, 0.2, "ahead, undecided after correction"),
        ((0.1, 0.05, 0.2), 3, 0, 0.25, 1.0, "ahead, undecided: 3 problems are too few for 1 comparisons"),
    ],
)
def test_words(interval, won, lost, p, adjusted, words):
    assert verdict(interval, won, lost, p, adjusted) == words


def test_eight_problems_cannot_decide_among_thirty():
    said = verdict((0.1, 0.05, 0.2), 8, 0, 2**-7, 32 * 2**-7, comparisons=32)
    assert said == "ahead, undecided: 8 problems are too few for 32 comparisons"


def test_the_largest_complete_table():
    table = rows({"uniform": 0.5, "a": 0.6, "b": 0.7}, seeds=(0, 1))
    short = [r for r in table if not (r["selector"] == "b" and r["seed"] == 1 and r["problem"] == PROBLEMS[0])]
    found, notes = collect(short, PROBLEMS)
    assert found.entries == ("a", "uniform")
    assert found.seeds == (0, 1)
    assert any("not ranked" in n and "b" in n for n in notes)
    found, _ = collect(short, PROBLEMS, keep=["b"])
    assert found.seeds == (0,)
    assert "b" in found.entries


def test_problems_that_are_not_filled_are_named():
    table = rows({"uniform": 0.5, "a": 0.6}, problems=PROBLEMS[:3])
    found, notes = collect(table, PROBLEMS)
    assert found.problems == tuple(PROBLEMS[:3])
    assert PROBLEMS[3] in notes[0]


def test_a_problem_that_is_hardly_begun_does_not_cost_the_others_their_seeds():
    table = rows({"uniform": 0.5, "a": 0.6, "b": 0.7}, seeds=(0, 1, 2), problems=PROBLEMS[:2])
    begun = rows({"uniform": 0.5, "a": 0.6, "b": 0.7}, seeds=(0,), problems=PROBLEMS[2:3])
    found, notes = collect([*table, *begun], PROBLEMS[:3])
    assert found.problems == tuple(PROBLEMS[:2])
    assert found.seeds == (0, 1, 2)
    assert PROBLEMS[2] in notes[0]


def test_without_uniform_there_is_no_board():
    with pytest.raises(StoreError, match="no run of uniform"):
        collect(rows({"a": 0.5}), PROBLEMS)
    with pytest.raises(UnknownName, match="anytime"):
        collect(rows({"uniform": 0.5}), PROBLEMS, score="anytim")


def test_a_failed_run_is_last_and_said():
    table = rows({"uniform": 0.5, "a": 0.6})
    table[-1] = {k: v for k, v in table[-1].items() if k != "scores"} | {"error": "boom"}
    made = make_board(table, tier_problems("quick"))
    assert made.heat()[made.results.entries.index("a")][-1] == -0.5
    assert any("a failed in 1 runs" in n and "boom" in n for n in made.notes)
    assert "a failed in 1 runs" in made.text()
