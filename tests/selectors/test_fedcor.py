"""FedCor: contract, greedy selection against dense matrices, fitting, schedule and what it costs, liars."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.core import lowrank
from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter
from fedcohort.selectors.fedcor import RANK, FedCor, adam, correlated
from fedcohort.testing import SelectorContract
from fedcohort.testing.synthetic_federation import SyntheticFederation
from fedcohort.types import Outcome, Probed, Round, RoundResult, Signals

NEEDS = FedCor.needs


class TestFedCor(SelectorContract):
    """Short of warm-up, so that every clause sees rounds before and after the first fit."""

    runs = 40

    def make(self):
        return FedCor(warm_up=2, interval=3, history=8, first=30, later=5)


def dense_greedy(sigma, shares, alpha, k):
    """Eq. 3 and 4 as they stand, with an N x N matrix."""
    sigma, chosen = sigma.copy(), []
    for _ in range(k):
        score = alpha * (shares @ sigma) / np.sqrt(np.maximum(np.diag(sigma), 1e-12))
        score[chosen] = -np.inf
        best = int(np.argmax(score))
        chosen.append(best)
        sigma = sigma - np.outer(sigma[:, best], sigma[best]) / sigma[best, best]
        assert np.abs(sigma[best]).max() < 1e-9  # conditioning zeroes the chosen row
    return chosen


def test_a_diagonal_covariance_is_chosen_by_share_and_spread():
    """X = diag(3, 1, 2) and almost no noise: the gain is p_k sigma_k^2 / sigma_k = p_k sigma_k.

    p = (0.2, 0.45, 0.35), sigma = (3, 1, 2): gains 0.6, 0.45, 0.7, so 2 comes first, then 0, then 1.
    """
    x, p = np.diag([3.0, 1.0, 2.0]), np.array([0.2, 0.45, 0.35])
    chosen, gain = correlated(x, 1e-6, p, np.ones(3), np.arange(3), 3, np.random.default_rng(0))
    assert chosen.tolist() == [2, 0, 1]
    np.testing.assert_allclose(gain, [0.7, 0.6, 0.45], rtol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_rank_one_corrections_are_dense_conditioning(seed):
    rng = np.random.default_rng(seed)
    x, p, alpha = rng.standard_normal((4, 12)), rng.dirichlet(np.ones(12)), rng.uniform(0.5, 1, 12)
    want = dense_greedy(x.T @ x + 0.04 * np.eye(12), p, alpha, 6)
    got, _ = correlated(x, 0.2, p, alpha, np.arange(12), 6, np.random.default_rng(0))
    assert got.tolist() == want


def test_a_twin_is_not_chosen_twice():
    """Clients 0 and 1 always move together; after one of them the other adds nothing."""
    x = np.array([[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    chosen, _ = correlated(x, 0.01, np.full(4, 0.25), np.ones(4), np.arange(4), 3, np.random.default_rng(0))
    assert len({0, 1} & set(chosen[:3].tolist())) == 1


def test_busy_clients_are_not_chosen_but_still_count():
    x = np.array([[3.0, 1.0, 0.9], [0.0, 0.5, 2.0]])
    chosen, _ = correlated(x, 0.01, np.full(3, 1 / 3), np.ones(3), np.array([1, 2]), 2, np.random.default_rng(0))
    assert set(chosen.tolist()) == {1, 2}


def test_fitting_raises_the_likelihood_and_finds_known_groups():
    """Two groups of five clients that move together within, not across: the fitted covariance says so."""
    rng = np.random.default_rng(0)
    y = np.repeat(rng.standard_normal((40, 2)), 5, axis=1) + 0.05 * rng.standard_normal((40, 10))
    start = rng.standard_normal((RANK, 10)) / np.sqrt(RANK)
    seen, weight = np.ones((40, 10), np.bool_), np.ones(40)
    x = adam(start, 0.1, y, seen, weight, 300, 0.01)
    before, after = (lowrank.log_likelihood(v, 0.1, y, seen, weight)[0] for v in (start, x))
    assert after > before + 100
    s = x.T @ x
    c = s / np.sqrt(np.outer(np.diag(s), np.diag(s)))
    assert c[:5, :5].min() > 0.8
    assert np.abs(c[:5, 5:]).max() < 0.5


class Losses:
    """Clients whose losses move by shocks that groups of them share; plays FedCor through rounds and keeps the bill."""

    def __init__(self, n=10, seed=0, lie=1.0, reach=None, group=1):
        self.n, self.rng, self.lie, self.group = n, np.random.default_rng(seed), lie, group
        self.reach = np.linspace(0.02, 0.2, n) if reach is None else reach
        self.loss, self.bill, self.cohorts = np.full(n, 3.0), [], []

    def play(self, fedcor, rounds, size=3):
        profiles = Signals({"samples": np.full(self.n, 10)}, NEEDS)
        for index in range(rounds):
            rnd = Round(index, size, np.arange(self.n), self.n, profiles=profiles)
            asked = fedcor.probe(rnd, np.random.default_rng(index))
            told = self.loss.copy()
            told[0] *= self.lie
            probed = Probed(asked, Signals({"probe_loss": told[asked]}, NEEDS)) if asked.size else None
            cohort = fedcor.select(
                Round(index, size, rnd.available, self.n, 0.0, profiles, probed), np.random.default_rng(index)
            )
            self.bill.append(asked.size)
            self.cohorts.append(cohort.clients)
            ok = np.full(cohort.clients.size, Outcome.OK, np.int8)
            fedcor.observe(
                RoundResult(index, np.sort(cohort.clients), ok, np.ones(ok.size), Signals({}, NEEDS), probed=probed)
            )
            shock = np.repeat(self.rng.standard_normal(self.n // self.group), self.group)
            self.loss = 0.97 * self.loss + 0.05 - self.reach * (shock + 0.1 * self.rng.standard_normal(self.n))


def test_the_schedule_and_its_bill():
    """W = 3, Delta = 4: uniform in rounds 0 to 3, 7, 11; everybody probed in 0 to 3 and around each later sample."""
    fedcor = FedCor(warm_up=3, interval=4, first=5, later=5)
    run = Losses()
    run.play(fedcor, 13)
    assert [i for i in range(13) if fedcor.drawn_uniformly(i)] == [0, 1, 2, 3, 7, 11]
    assert run.bill == [10, 10, 10, 10, 0, 0, 0, 10, 10, 0, 0, 10, 10]
    assert np.sort(fedcor.state.when[fedcor.state.when >= 0]).tolist() == [0, 1, 2, 7, 11]
    assert fedcor.state.fits == 3


def test_alpha_decays_for_those_chosen_and_starts_anew_with_a_fit():
    """Fitted after round 2 (W = 2); rounds 3 and 4 are FedCor's, 5 is a sample, fitted again after 6 (Delta = 3)."""
    fedcor = FedCor(warm_up=2, interval=3, decay=0.5, first=5, later=5)
    run = Losses()
    run.play(fedcor, 5)
    times = np.bincount(np.concatenate(run.cohorts[3:5]), minlength=10)
    np.testing.assert_allclose(fedcor.state.alpha, 0.5**times)
    fresh = FedCor(warm_up=2, interval=3, decay=0.5, first=5, later=5)
    Losses().play(fresh, 7)
    np.testing.assert_allclose(fresh.state.alpha, 1.0)


def test_those_who_move_most_are_chosen():
    fedcor = FedCor(warm_up=15, first=300)
    run = Losses()
    run.play(fedcor, 30)
    counts = np.bincount(
        np.concatenate([c for i, c in enumerate(run.cohorts) if not fedcor.drawn_uniformly(i)]), minlength=10
    )
    assert counts[5:].sum() > 2 * counts[:5].sum()


def test_a_liar_does_not_disturb_the_honest():
    """Five groups of eight that move together, the later ones more. Client 0 reports a thousandfold loss: the order in
    which the honest would be chosen first (eq. 3) keeps its correlation with how much they move. Two runs each.
    """
    reach = np.repeat(np.linspace(0.05, 0.25, 5), 8)

    def correlation(lie):
        gain = np.zeros(40)
        for seed in range(2):
            fedcor, run = FedCor(warm_up=80, first=150, forget=1.0), Losses(40, seed, lie, reach, 8)
            run.play(fedcor, 81)
            x = fedcor.state.embedding.T
            gain += (x.T @ x).mean(axis=0) / np.sqrt((x * x).sum(axis=0) + 1e-4)
        return spearman(reach[1:], gain[1:])

    honest, lied = correlation(1.0), correlation(1000.0)
    assert honest > 0.6
    assert abs(honest - lied) < 0.05


def test_silent_clients_leave_no_trace_in_a_sample():
    fedcor = FedCor(warm_up=1, history=4)
    for index, who in enumerate([[0, 1, 2], [0, 1, 3]]):
        answers = Probed(np.array(who), Signals({"probe_loss": np.array([1.0, 2.0, 3.0]) - index}, NEEDS))
        fedcor._keep(index, answers)
    assert fedcor.state.seen.sum(axis=1).tolist() == [1, 1, 0, 0]
    assert fedcor.state.change[0].max() == 0.0
    assert fedcor.state.change[0].min() == -1.0


def test_presets_and_bad_parameters():
    cifar = FedCor(preset="cifar10")
    assert (cifar.warm_up, cifar.interval, cifar.history, cifar.forget, cifar.decay) == (20, 50, 500, 0.99, 0.9)
    for bad in (
        {"preset": "mnist"},
        {"warm_up": 0},
        {"interval": 1},
        {"history": 0},
        {"forget": 0.0},
        {"decay": 1.5},
        {"noise": 0.0},
    ):
        with pytest.raises(BadParameter, match=next(iter(bad))):
            FedCor(**bad)


def test_the_defaults_run_beyond_the_warm_up():
    federation = SyntheticFederation(24)
    steps = federation.play(FedCor(first=60), 30, 6)
    assert all(c.clients.size == 6 for _, c in steps)
