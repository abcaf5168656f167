"""Robust methods: against naive re-implementations, and against lying clients."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize

from fedcohort.methods._parts.robust import by_columns
from fedcohort.methods.base import MethodBase
from fedcohort.methods.fedavg import FedAvg
from fedcohort.methods.geometric_median import GeometricMedian
from fedcohort.methods.krum import Krum, MultiKrum, scores, tolerated
from fedcohort.methods.median import Median
from fedcohort.methods.norm_clip import NormClip
from fedcohort.methods.trimmed_mean import TrimmedMean
from fedcohort.protocols import Aggregated, Aggregation
from fedcohort.types import Model, Plan, Updates

MATRICES = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.floats(-10, 10, width=32)
)
ROBUST = {
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "geometric-median": GeometricMedian,
    "norm-clip": NormClip,
}


def run(
    method: MethodBase, delta: np.ndarray, weight: np.ndarray | None = None, times: dict | None = None
) -> Aggregated:
    m = delta.shape[0]
    weight = np.ones(m) if weight is None else weight
    updates = Updates(np.arange(m), delta.astype(np.float32), weight, np.ones(m, np.int64))
    context = Aggregation(0, Plan(), m, np.ones(m, int), np.arange(m), multiplicity=times or {})
    return method.aggregate(Model(np.zeros(delta.shape[1], np.float32)), updates, context)


# median and trimmed mean


@settings(max_examples=40, deadline=None)
@given(MATRICES)
def test_median_column_by_column(delta: np.ndarray):
    want = []
    for column in delta.T.astype(float):
        s, m = sorted(column), len(column)
        want.append(s[m // 2] if m % 2 else (s[m // 2 - 1] + s[m // 2]) / 2)
    assert np.allclose(run(Median(), delta).model.params, want, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(MATRICES, st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.49]))
def test_trimmed_mean_column_by_column(delta: np.ndarray, trim: float):
    want = []
    for column in delta.T.astype(float):
        s = sorted(column)
        cut = int(np.floor(round(trim * len(s), 9)))
        s = s[cut : len(s) - cut]
        want.append(sum(s) / len(s))
    assert np.allclose(run(TrimmedMean(trim=trim), delta).model.params, want, atol=1e-5)


def test_trim_counts_whole_rows():
    """0.29 of 100 rows is 29 rows, though the product falls below 29 in binary; 0.3 of ten is three."""
    assert 0.29 * 100 < 29
    assert run(TrimmedMean(trim=0.29), np.arange(100.0)[:, None]).info["trimmed"] == 29
    assert run(TrimmedMean(trim=0.3), np.arange(10.0)[:, None]).info["trimmed"] == 3


def test_drawn_twice_counts_twice():
    delta = np.array([[0.0], [1.0], [5.0]])
    assert run(Median(), delta, times={2: 3}).model.params[0] == 5.0
    assert np.isclose(run(TrimmedMean(trim=0.2), delta, times={0: 1, 1: 1, 2: 3}).model.params[0], 11 / 3)


def test_slabs_of_columns_change_nothing():
    wide = np.random.default_rng(0).normal(size=(3, 70_000)).astype(np.float32)
    assert np.allclose(by_columns(lambda x: x.sum(axis=0), wide), wide.astype(float).sum(axis=0))


# Krum


def naive_scores(x: np.ndarray, f: int) -> list[float]:
    out = []
    for i in range(len(x)):
        others = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i)
        out.append(sum(others[: max(1, len(x) - f - 2)]))
    return out


@settings(max_examples=30, deadline=None)
@given(hnp.arrays(np.float32, st.tuples(st.integers(3, 8), st.just(3)), elements=st.floats(-5, 5, width=32)))
def test_krum_by_brute_force(delta: np.ndarray):
    m = len(delta)
    f = min(int(np.ceil(0.3 * m - 1e-9)), (m - 3) // 2)
    x = delta.astype(float)
    want = naive_scores(x, f)
    assert np.allclose(scores(delta, f), want)
    made = run(Krum(), delta)
    chosen = int(np.flatnonzero(made.accepted)[0])
    assert made.accepted.sum() == 1
    assert np.isclose(want[chosen], min(want))
    assert np.array_equal(made.model.params, delta[chosen] + np.float32(0))


def test_multi_krum_keeps_the_set_of_smallest_scores():
    """Over all subsets of size m - f, the kept one has the smallest sum of scores."""
    delta = np.random.default_rng(5).normal(size=(9, 4)).astype(np.float32)
    f = tolerated(9, 0.3)
    assert f == 3
    want = naive_scores(delta.astype(float), f)
    best = min(itertools.combinations(range(9), 6), key=lambda s: sum(want[i] for i in s))
    made = run(MultiKrum(), delta)
    assert np.flatnonzero(made.accepted).tolist() == list(best)
    assert np.allclose(made.model.params, delta[list(best)].mean(axis=0), atol=1e-6)
    assert run(MultiKrum(keep=2), delta).accepted.sum() == 2


def test_krum_tolerates_only_what_a_majority_outweighs():
    assert [tolerated(m, 0.3) for m in (3, 4, 5, 7, 10, 20)] == [0, 0, 1, 2, 3, 6]
    assert [tolerated(m, 0.49) for m in (5, 10)] == [1, 3]


def test_two_rows_know_no_majority():
    assert np.isclose(run(Krum(), np.array([[1.0], [4.0]])).model.params[0], 2.5)


def test_equal_scores_take_the_lower_slot():
    assert np.flatnonzero(run(Krum(), np.zeros((5, 2))).accepted).tolist() == [0]


# geometric median


@pytest.mark.parametrize("seed", range(4))
def test_geometric_median_is_optimal(seed: int):
    """No point that a general-purpose minimiser finds has a smaller sum of distances."""
    x = np.random.default_rng(seed).normal(size=(7, 3)).astype(np.float32).astype(float)

    def cost(v: np.ndarray) -> float:
        return sum(float(np.linalg.norm(v - row)) for row in x)

    got = run(GeometricMedian(iterations=500, tolerance=1e-9), x).model.params.astype(float)
    best = minimize(cost, x.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).fun
    assert cost(got) <= best * (1 + 1e-6)
    pull = sum((row - got) / np.linalg.norm(row - got) for row in x)
    assert np.linalg.norm(pull) < 1e-3


def test_geometric_median_in_one_dimension_is_a_median():
    assert np.isclose(run(GeometricMedian(), np.array([[0.0], [1.0], [10.0]])).model.params[0], 1.0, atol=1e-4)


def test_geometric_median_by_samples():
    """More than half of the weight at one point: the point itself."""
    delta = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    made = run(GeometricMedian(weighting="data"), delta, weight=np.array([1.0, 10.0, 1.0]))
    assert np.allclose(made.model.params, [4.0, 0.0], atol=1e-3)


# norm clipping


def test_norm_clip_by_hand():
    """Lengths 1, 2, 3, 100. Q is their median 2.5, Z = 5 Q = 12.5: the last is left out.

    The third is shortened to 2.5: mean (1 + 2 + 2.5) / 3 = 11/6. Two of four lie at or below Q, so that Q stays.
    In the second round all lengths are 1: clipped nowhere, b = 1 and Q+ = 2.5 exp(-0.2 * 0.5).
    """
    method = NormClip()
    made = run(method, np.array([[1.0], [2.0], [3.0], [100.0]]))
    assert made.accepted.tolist() == [True, True, True, False]
    assert np.isclose(made.model.params[0], 11 / 6)
    assert made.info == {"clip": 2.5, "clipped": 1.0, "zeroed": 1.0}
    assert method.state.level == 2.5
    assert np.isclose(run(method, np.ones((3, 1))).model.params[0], 1.0)
    assert np.isclose(method.state.level, 2.5 * np.exp(-0.1))


def test_norm_clip_tracks_the_quantile():
    """Lengths uniform on [0, 1]: the level goes to the quantile from a start that is five times too high."""
    rng = np.random.default_rng(1)
    method = NormClip(quantile=0.7)
    run(method, np.full((4, 1), 5.0))
    levels = []
    for _ in range(400):
        run(method, rng.uniform(0, 1, (20, 1)))
        levels.append(method.state.level)
    assert abs(np.mean(levels[200:]) - 0.7) < 0.03


def test_norm_clip_catches_up_when_all_are_too_long():
    """The level was learnt at 1; all lengths are now 50 > Z = 5. It grows by exp(0.1) a round until they pass."""
    method = NormClip()
    run(method, np.ones((5, 1)))
    start = method.state.level
    first = run(method, np.full((5, 1), 50.0))
    assert not first.accepted.any()
    assert first.model.params[0] == 0.0
    assert np.isclose(method.state.level, start * np.exp(0.1))
    rounds = 1
    while not run(method, np.full((5, 1), 50.0)).accepted.all():
        rounds += 1
        assert rounds < 40
    assert rounds == int(np.ceil(np.log(10 / start) / 0.1))


def test_norm_clip_fixed_bound_and_no_zeroing():
    made = run(NormClip(bound=2.0, zero=float("inf")), np.array([[1.0], [-200.0], [3.0]]))
    assert made.accepted.all()
    assert np.isclose(made.model.params[0], (1 - 2 + 2) / 3)


# lying clients


def consensus(method: MethodBase, attack: str, rounds: int = 40) -> float:
    """Twenty clients near a common centre, cohorts of ten with exactly two liars; the final distance to the centre."""
    rng = np.random.default_rng(42)
    centre = rng.normal(size=8) * 3
    own = centre + 0.1 * rng.normal(size=(20, 8))
    model = Model(np.zeros(8, np.float32))
    for t in range(rounds):
        honest, liars = rng.permutation(16)[:8], 16 + rng.permutation(4)[:2]
        cohort = np.sort(np.r_[honest, liars])
        delta = 0.5 * (own[cohort] - model.params) + 0.02 * rng.normal(size=(10, 8))
        lying = cohort >= 16
        if attack == "flip":
            delta[lying] *= -1
        elif attack == "scale":
            delta[lying] *= 100
        elif attack == "flip and scale":
            delta[lying] *= -100
        elif attack == "nan":
            delta[lying] = np.nan
        elif attack == "weight":
            delta[lying] *= -3
        weight = np.where(lying & (attack == "weight"), 1e9, 10.0)
        updates = Updates(cohort, delta.astype(np.float32), weight, np.ones(10, np.int64))
        model = method.aggregate(model, updates, Aggregation(t, Plan(), 20, np.full(20, 10), cohort)).model
        if not np.abs(model.params).max() < 1e6:
            return np.inf
    return float(np.linalg.norm(model.params - centre))


@pytest.mark.parametrize("attack", ["flip", "scale", "flip and scale", "nan", "weight"])
@pytest.mark.parametrize("name", sorted(ROBUST))
def test_survives_a_fifth_of_liars(name: str, attack: str):
    assert consensus(ROBUST[name](), attack) < 0.5


@pytest.mark.parametrize("attack", ["scale", "flip and scale", "weight"])
def test_fedavg_does_not(attack: str):
    """So the attacks above are attacks."""
    assert consensus(FedAvg(), attack) > 2.0


@pytest.mark.parametrize("name", sorted(ROBUST))
def test_liars_do_not_own_buffers_and_counters(name: str):
    """Honest buffers lie around 1; two of ten liars send 1e9 and a counter of 10^15 with honest updates."""
    rng = np.random.default_rng(2)
    buffers = (1 + 0.01 * rng.normal(size=(10, 2))).astype(np.float32)
    counters = np.full((10, 1), 7)
    buffers[8:], counters[8:] = 1e9, 10**15
    delta = (1 + 0.01 * rng.normal(size=(10, 3))).astype(np.float32)
    delta[8:] *= -50
    updates = Updates(np.arange(10), delta, np.ones(10), np.ones(10, np.int64), buffers, counters)
    model = Model(np.zeros(3, np.float32), np.ones(2, np.float32), np.array([3]))
    made = ROBUST[name]().aggregate(model, updates, Aggregation(0, Plan(), 10, np.ones(10, int), np.arange(10))).model
    assert np.abs(made.buffers - 1).max() < 0.1
    assert made.counters.tolist() == [7]
