"""FedCS: contract, one greedy run by hand, the deadline by an independent schedule, bandwidth, nobody fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.errors import BadParameter
from fedcohort.selectors.fedcs import FedCS, fitting, greedy
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestFedCSParallel(SelectorContract):
    runs = 40

    def make(self):
        return FedCS(uplink="parallel", deadline=15.0, candidates=1.0)


class TestFedCSMeasured(SelectorContract):
    runs = 40

    def make(self):
        return FedCS(resources="measured", candidates=1.0)


class TestFedCSBandwidth(SelectorContract):
    runs = 40

    def make(self):
        return FedCS(model_mbit=5.0)


def ask(size, seconds, bandwidth=None, available=None):
    n = len(seconds)
    columns = {"expected_seconds": np.asarray(seconds, float)}
    if bandwidth is not None:
        columns["bandwidth"] = np.asarray(bandwidth, float)
    here = np.arange(n) if available is None else np.asarray(available)
    return Round(0, size, here, n, profiles=Signals(columns))


def finish(down, update, up, order):
    """Independent schedule: multicast at the slowest link, then each trains; uploads go one by one in this order."""
    start = max(down[k] for k in order)
    free = start
    for k in order:
        free = max(free, start + update[k]) + up[k]
    return free


def test_greedy_by_hand():
    """Six clients, Td = 0, t^UD = 1 5 2 9 4 30, t^UL = 2 1 2 1 3 1, deadline 13.

    Theta = 0:  cost = UL + UD = 3 6 4 10 7 31       -> client 0, Theta = 3
    Theta = 3:  UL + max(0, UD - 3) = . 3 2 7 4 28   -> client 2, Theta = 5
    Theta = 5:  . 1 . 5 3 26                         -> client 1, Theta = 6
    Theta = 6:  . . . 4 3 25                         -> client 4, Theta = 9
    Theta = 9:  . . . 1 . 22                         -> client 3, Theta = 10
    Theta = 10: only client 5 is left, 10 + 1 + 20 = 31 >= 13: the end.
    """
    update, up = np.array([1.0, 5, 2, 9, 4, 30]), np.array([2.0, 1, 2, 1, 3, 1])
    order, done = greedy(np.zeros(6), update, up, 13.0, 6)
    assert order.tolist() == [0, 2, 1, 4, 3]
    assert done.tolist() == [3, 5, 6, 9, 10]
    assert greedy(np.zeros(6), update, up, 9.5, 6)[0].tolist() == [0, 2, 1, 4]
    assert greedy(np.zeros(6), update, up, 13.0, 2)[0].tolist() == [0, 2]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(1, 60))
def test_the_round_ends_before_the_deadline_and_nobody_else_would_fit(seed, n, deadline):
    rng = np.random.default_rng(seed)
    down, update, up = rng.uniform(0, 3, n), rng.uniform(0, 20, n), rng.uniform(0.1, 5, n)
    order, done = greedy(down, update, up, deadline, n)
    if order.size:
        assert finish(down, update, up, order) == pytest.approx(done[-1])
        assert done[-1] < deadline
    for other in set(range(n)) - set(order.tolist()):
        assert finish(down, update, up, [*order, other]) >= deadline - 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 10))
def test_more_bandwidth_never_loses_a_client_in_parallel(seed, more):
    rng = np.random.default_rng(seed)
    update, mbit = rng.uniform(0, 20, 15), rng.uniform(0.5, 9, 15)
    before = fitting(8 / mbit, update, 8 / mbit, 20.0, 15)[0].size
    mbit[rng.integers(15)] += more
    assert fitting(8 / mbit, update, 8 / mbit, 20.0, 15)[0].size >= before


def test_total_estimated_time_is_below_the_deadline_through_the_selector():
    rng = np.random.default_rng(0)
    for seed in range(50):
        seconds = rng.uniform(1, 30, 40)
        cohort = FedCS(deadline=40.0, upload=0.3, overhead=5.0).select(ask(10, seconds), np.random.default_rng(seed))
        assert 0 < cohort.clients.size <= 10
        assert cohort.why["done"].max() + 5.0 < 40.0


def test_nobody_fits_the_fastest_is_asked():
    for uplink in ("sequential", "parallel"):
        cohort = FedCS(deadline=1.0, uplink=uplink, candidates=1.0).select(
            ask(3, [9.0, 4.0, 7.0, 5.0]), np.random.default_rng(0)
        )
        assert cohort.clients.tolist() == [1]


def test_the_fastest_of_the_candidates_are_taken():
    cohort = FedCS(candidates=1.0, deadline=1000.0).select(ask(3, [9.0, 4.0, 7.0, 5.0, 8.0]), np.random.default_rng(0))
    assert sorted(cohort.clients.tolist()) == [1, 2, 3]


def test_candidates_are_drawn_without_replacement_and_uniformly():
    """2 K = 4 of 20 say what they can do: slow clients are asked too, now and then."""
    hits = np.zeros(20)
    for seed in range(500):
        chosen = FedCS(deadline=1e6).select(ask(2, np.arange(1.0, 21.0)), np.random.default_rng(seed)).clients
        assert np.unique(chosen).size == 2
        hits[chosen] += 1
    assert (hits[:15] > 0).all()
    assert hits[:5].sum() > hits[10:].sum()


def test_busy_clients_are_not_asked():
    chosen = FedCS(candidates=1.0).select(ask(3, np.arange(1.0, 9.0), available=[4, 6, 7]), np.random.default_rng(0))
    assert sorted(chosen.clients.tolist()) == [4, 6, 7]


def test_bandwidth_splits_the_duration():
    """20 s in all, 10 Mbit at 5 Mbit/s: 2 s down, 2 s up, 16 s of training."""
    cohort = FedCS(model_mbit=10.0).select(ask(1, [20.0], [5.0]), np.random.default_rng(0))
    assert [float(cohort.why[n][0]) for n in ("download", "update", "upload", "done")] == [2.0, 16.0, 2.0, 20.0]
    assert FedCS(model_mbit=10.0).needs == {"expected_seconds", "bandwidth"}


def test_measured_durations_stand_in_for_profiles():
    fedcs = FedCS(resources="measured", candidates=1.0)
    assert fedcs.needs == frozenset()
    told = np.arange(4)
    seconds = np.array([9.0, 2.0, 8.0, 3.0])
    fedcs.observe(RoundResult(0, told, np.full(4, Outcome.OK, np.int8), seconds, Signals()))
    assert sorted(fedcs.select(Round(1, 2, told, 4), np.random.default_rng(0)).clients.tolist()) == [1, 3]


@pytest.mark.parametrize(
    "bad",
    [
        {"deadline": 0.0},
        {"candidates": 0.0},
        {"uplink": "both"},
        {"resources": "rumours"},
        {"upload": 1.5},
        {"model_mbit": -1.0},
        {"overhead": -1.0},
    ],
)
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        FedCS(**bad)


def test_the_deadline_is_of_the_real_work_once_it_was_measured():
    """Profiles say 1 to 4 seconds; a round takes five times as long."""
    chosen, profile = FedCS(deadline=12.0, uplink="parallel", candidates=1.0), np.array([1.0, 2.0, 3.0, 4.0])
    rnd = Round(0, 4, np.arange(4), 4, 0.0, Signals({"expected_seconds": profile}))
    assert chosen.select(rnd, np.random.default_rng(0)).clients.size == 4
    outcome = np.full(2, Outcome.OK, np.int8)
    chosen.observe(RoundResult(0, np.array([0, 3]), outcome, 5 * profile[[0, 3]], Signals({})))
    assert sorted(chosen.select(rnd, np.random.default_rng(0)).clients.tolist()) == [0, 1]
