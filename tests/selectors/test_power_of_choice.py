"""Power-of-choice: the contract for every mode, the laws of its two draws, and the bugs of its published versions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fedcohort
from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter
from fedcohort.rounds.session import Session
from fedcohort.selectors.power_of_choice import PowerOfChoice
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Probed, Round, RoundResult, Signals


class TestBatch(SelectorContract):
    def make(self):
        return PowerOfChoice(mode="cpow-d", d=9)


class TestReported(SelectorContract):
    def make(self):
        return PowerOfChoice(mode="rpow-d")


class TestReportedFew(SelectorContract):
    def make(self):
        return PowerOfChoice(mode="rpow-d", d=10)


class TestAdaptive(SelectorContract):
    exempt = {"seeds": "greedy over everybody in the first half: losses decide, not chance"}  # noqa: RUF012

    def make(self):
        return PowerOfChoice(mode="adapow-d", rounds=200)


class TestOpening(SelectorContract):
    def make(self):
        return PowerOfChoice(opening=2)


def ask(size, n, index=0, samples=None, available=None, probed=None):
    profiles = Signals({"samples": np.ones(n) if samples is None else np.asarray(samples)})
    here = np.arange(n) if available is None else np.asarray(available)
    return Round(index, size, here, n, profiles=profiles, probed=probed)


def answer(clients, loss, name="probe_loss"):
    return Probed(np.asarray(clients, np.int64), Signals({name: np.asarray(loss, float)}))


def told(index, clients, loss, outcome=None):
    clients = np.asarray(clients, np.int64)
    outcome = np.full(clients.size, Outcome.OK, np.int8) if outcome is None else np.asarray(outcome, np.int8)
    return RoundResult(index, clients, outcome, np.ones(clients.size), Signals({"train_loss": np.asarray(loss, float)}))


def test_one_round_by_hand():
    """Six clients, d = 4: 1 3 4 5 are candidates with losses 0.5 2 1 3. K = 2: clients 3 and 5."""
    cohort = PowerOfChoice(d=4).select(ask(2, 6, probed=answer([1, 3, 4, 5], [0.5, 2, 1, 3])), np.random.default_rng(0))
    assert dict(zip(cohort.clients.tolist(), cohort.why["loss"].tolist(), strict=True)) == {3: 2.0, 5: 3.0}


@pytest.mark.parametrize("mode", ["pow-d", "cpow-d"])
def test_everybody_a_candidate_is_greedy(mode):
    """d = N: the K largest losses, through a session that answers the probe, in every round."""
    loss = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0, 3.5])
    name = "probe_loss" if mode == "pow-d" else "probe_batch_loss"
    asked = []

    def probe(clients, names):
        assert names == {name}
        asked.append(clients.size)
        return answer(clients, loss[clients], name)

    session = Session(PowerOfChoice(mode=mode, d=8), cohort_size=3, seed=1)
    for index in range(3):
        cohort = session.ask(np.arange(8), profiles={"samples": np.arange(1, 9)}, probe=probe)
        assert set(cohort.clients) == {2, 4, 6}
        session.tell(RoundResult(index, cohort.clients, np.zeros(3, np.int8), np.ones(3)))
    assert asked == [8, 8, 8]


@pytest.mark.parametrize(
    ("d", "size", "n", "probes"), [(None, 5, 40, 10), (3, 5, 40, 0), (20, 5, 40, 20), (99, 5, 40, 40)]
)
def test_d_is_at_least_k_and_at_most_n(d, size, n, probes):
    """d = None is 2 K. d <= K asks nobody: all candidates would be chosen anyway."""
    s = PowerOfChoice(d=d)
    assert s.probe(ask(size, n), np.random.default_rng(0)).size == probes
    assert s.select(ask(size, n), np.random.default_rng(0)).clients.size == size


def test_candidates_are_drawn_by_samples_without_replacement():
    """p = (4 3 2 1) / 10, d = 2. P(k in A) by enumeration of ordered draws."""
    p = np.array([4, 3, 2, 1]) / 10
    want = np.zeros(4)
    for i, j in itertools.permutations(range(4), 2):
        want[[i, j]] += p[i] * p[j] / (1 - p[i])
    s, n, hits = PowerOfChoice(d=2), 3000, np.zeros(4)
    for seed in range(n):
        found = s.probe(ask(1, 4, samples=[40, 30, 20, 10]), np.random.default_rng(seed))
        assert np.unique(found).size == 2
        hits[found] += 1
    assert np.abs(hits / n - want).max() < 4.5 * 0.5 / np.sqrt(n)


def test_d_equal_to_k_draws_by_samples():
    s, n = PowerOfChoice(d=1), 3000
    hits = np.bincount(
        [s.select(ask(1, 3, samples=[60, 30, 10]), np.random.default_rng(i)).clients[0] for i in range(n)]
    )
    np.testing.assert_allclose(hits / n, [0.6, 0.3, 0.1], atol=4.5 * 0.5 / np.sqrt(n))


def test_probe_is_repeatable_and_select_uses_who_answered():
    s, rnd = PowerOfChoice(d=6), ask(2, 30)
    first = s.probe(rnd, np.random.default_rng(4))
    assert np.array_equal(first, s.probe(rnd, np.random.default_rng(4)))
    cohort = s.select(ask(2, 30, probed=answer(first, np.arange(6.0))), np.random.default_rng(99))
    assert set(cohort.clients) == set(first[-2:])


def test_positions_among_candidates_are_not_slots():
    """Published bug (easyFL): the position within the candidates indexed the available list."""
    here = np.array([3, 7, 11, 15, 19])
    cohort = PowerOfChoice(d=3).select(
        ask(1, 20, available=here, probed=answer([7, 11, 19], [1.0, 2.0, 9.0])), np.random.default_rng(0)
    )
    assert cohort.clients.tolist() == [19]


def test_silent_candidates_are_replaced():
    """Three of four answer, one of them with NaN; two are known, so two places are drawn from the others."""
    probed = answer([2, 5, 8], [1.0, np.nan, 2.0])
    for seed in range(20):
        cohort = PowerOfChoice(d=4).select(ask(4, 10, probed=probed), np.random.default_rng(seed))
        assert {2, 8} <= set(cohort.clients)
        assert cohort.clients.size == 4
        assert np.isnan(cohort.why["loss"]).sum() == 2


@pytest.mark.parametrize(("n", "k"), [(20, 5), (23, 4)])
def test_rpow_visits_everybody_once_first(n, k):
    """Also those that report a huge loss in the first round have to wait."""
    s, seen = PowerOfChoice(mode="rpow-d"), []
    for index in range(n // k):
        assert s.probe(ask(k, n, index), np.random.default_rng(index)).size == 0
        cohort = s.select(ask(k, n, index), np.random.default_rng(index)).clients
        seen += cohort.tolist()
        s.observe(told(index, cohort, np.full(k, 1000.0)))
    assert len(set(seen)) == len(seen) == n // k * k


def test_rpow_uses_the_last_training_loss():
    s = PowerOfChoice(mode="rpow-d")
    s.observe(told(0, range(5), [5, 4, 3, 2, 1]))
    s.observe(told(1, [0], [0.1]))
    assert set(s.select(ask(2, 5, 2), np.random.default_rng(0)).clients) == {1, 2}


def test_rpow_does_not_ask_the_silent_for_ever():
    """Client 0 fails in its first round: it counts as the mean of the known (2.5), not as infinity."""
    s = PowerOfChoice(mode="rpow-d")
    s.observe(told(0, range(5), [np.nan, 4, 3, 2, 1], [Outcome.FAILED, 0, 0, 0, 0]))
    assert set(s.select(ask(2, 5, 1), np.random.default_rng(0)).clients) == {1, 2}
    assert set(s.select(ask(3, 5, 1), np.random.default_rng(0)).clients) == {0, 1, 2}


def test_adapow_asks_everybody_in_the_first_half_and_nobody_in_the_second():
    s = PowerOfChoice(mode="adapow-d", rounds=10)
    asked = [s.probe(ask(3, 12, t), np.random.default_rng(t)).size for t in range(10)]
    assert asked == [12] * 5 + [0] * 5


def test_opening_rounds_are_uniform_and_free():
    """Samples do not matter in them."""
    s, hits = PowerOfChoice(opening=1), np.zeros(4)
    assert s.probe(ask(1, 4), np.random.default_rng(0)).size == 0
    for seed in range(2000):
        hits[s.select(ask(1, 4, samples=[97, 1, 1, 1]), np.random.default_rng(seed)).clients] += 1
    np.testing.assert_allclose(hits / 2000, 0.25, atol=0.05)
    assert s.probe(ask(1, 4, index=1), np.random.default_rng(0)).size == 2


@pytest.mark.parametrize("mode", ["pow-d", "rpow-d"])
def test_a_liar_moves_no_honest_client(mode):
    """One of 100 reports a thousandfold loss: it takes one place, and the honest keep their order."""

    def correlation(lie):
        truth = np.linspace(1, 10, 100)
        loss = np.r_[truth[0] * lie, truth[1:]]
        s, counts = PowerOfChoice(mode=mode, d=20), np.zeros(100)
        if mode == "rpow-d":
            s.observe(told(0, range(100), loss))
        for seed in range(600):
            who = s.probe(ask(5, 100, 1), np.random.default_rng([0, seed]))
            rnd = ask(5, 100, 1, probed=answer(who, loss[who]) if who.size else None)
            counts[s.select(rnd, np.random.default_rng([1, seed])).clients] += 1
        return spearman(truth[1:], counts[1:])

    honest, lied = correlation(1.0), correlation(1000.0)
    assert honest > 0.8
    assert abs(honest - lied) < 0.05


def test_needs_follow_the_mode():
    needs = {mode: PowerOfChoice(mode=mode).needs for mode in ("pow-d", "cpow-d", "rpow-d", "adapow-d")}
    assert needs["pow-d"] == needs["adapow-d"] == {"samples", "probe_loss"}
    assert needs["cpow-d"] == {"samples", "probe_batch_loss"}
    assert needs["rpow-d"] == {"samples", "train_loss"}


def test_probes_are_paid_for():
    """Two rounds of five: ten candidates a round are probed, their model goes down and the clock runs."""
    options = {"world": "mixed-v1", "task": "quadratic", "rounds": 2, "cohort_size": 5, "seed": 0}
    probing = fedcohort.simulate("power-of-choice", **options).rows
    free = fedcohort.simulate("power-of-choice(mode='rpow-d')", **options).rows
    assert [row["probed"] for row in probing] == [10, 10]
    assert all(row["bytes_probes"] > 0 for row in probing)
    assert [row["probed"] for row in free] == [0, 0]
    assert all(row["bytes_probes"] == 0 for row in free)


@pytest.mark.parametrize("bad", [{"mode": "pow"}, {"d": 0}, {"rounds": 0}, {"opening": -1}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        PowerOfChoice(**bad)
