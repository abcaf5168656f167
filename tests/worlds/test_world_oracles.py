"""Moments and counts of the generators against closed forms (spec part D, item 9)."""

import math

import numpy as np
import pytest
from scipy import stats

from fedcohort.errors import BadParameter
from fedcohort.types import Work
from fedcohort.worlds import catalogue, keyed_draws
from fedcohort.worlds.allocate import Pool, largest_remainder
from fedcohort.worlds.built_world import build_world
from fedcohort.worlds.dirichlet import ClassDirichlet, ClientDirichlet, LayeredDirichlet
from fedcohort.worlds.label_noise import BetaNoise
from fedcohort.worlds.latency import ShiftedExponential
from fedcohort.worlds.partition import Dominance, FewClass, FlashPartition, Iid
from fedcohort.worlds.world_spec import Validation, WorldSpec

LEVEL = np.arange(50_000) % 10  # as CIFAR-10: ten classes of 5,000
NO_SPLIT = Validation(held_out=0.0)


def counts_of(owned, labels, classes=10):
    """Naive (N, K) count matrix."""
    return np.array(
        [
            np.bincount(labels[owned.index[a:b]], minlength=classes)
            for a, b in zip(owned.start[:-1], owned.start[1:], strict=True)
        ]
    )


def own(partition, clients, seed=0, policy="strict", labels=LEVEL):
    return partition.own(Pool(labels, 10), clients, seed, policy)


@pytest.mark.parametrize("s", [0.5, 2.0, 5.0])
def test_inverse_pareto_has_the_mean_and_the_law_of_a_truncated_pareto(s):
    """alpha = 2 - x with P(X <= x) = (1 - x^-s) / (1 - 2^-s) on [1, 2]; the mean is 2/3 for s = 2."""
    alpha = Dominance(law="pareto", shape=s).alphas(np.arange(100_000), 3)
    mean_x = s / (s - 1.0) * (1.0 - 2.0 ** (1.0 - s)) / (1.0 - 2.0**-s)
    if s == 2.0:
        assert math.isclose(2.0 - mean_x, 2.0 / 3.0)
    assert abs(alpha.mean() - (2.0 - mean_x)) < 5 * alpha.std() / math.sqrt(alpha.size)
    cdf = lambda x: (1.0 - x**-s) / (1.0 - 2.0**-s)  # noqa: E731
    assert stats.kstest(2.0 - alpha[:20_000], cdf).pvalue > 1e-3


def test_uniform_dominance_is_uniform():
    alpha = Dominance(law="uniform").alphas(np.arange(20_000), 1)
    assert stats.kstest(alpha, "uniform").pvalue > 1e-3


def test_yurochkin_sizes_have_the_closed_form_variation():
    """CV^2 = (N - 1) / (K (N alpha + 1)): 19 / 30 for N = 20, alpha = 0.1, so CV = 0.796."""
    n, alpha, labels = 20, 0.1, np.arange(20_000) % 10
    square = []
    for seed in range(80):
        sizes = np.diff(own(ClientDirichlet(alpha=alpha, min_size=0), n, seed, labels=labels).start)
        assert sizes.sum() == labels.size
        square.append(np.mean((sizes / sizes.mean() - 1.0) ** 2))
    expected = (n - 1) / (10 * (n * alpha + 1))
    assert math.isclose(math.sqrt(expected), 0.796, abs_tol=5e-4)
    assert abs(np.mean(square) - expected) < 4 * np.std(square) / math.sqrt(len(square))


@pytest.mark.parametrize(("convention", "per_class"), [("per-class", 0.5), ("prior", 0.05)])
def test_hsu_counts_are_dirichlet_multinomial(convention, per_class):
    """Var = n p (1 - p) (n + A) / (1 + A) with A = K alpha: 157.5 for n = 100, alpha = 0.5 per class."""
    clients, n = 4000, 100
    partition = ClassDirichlet(alpha=0.5, alpha_convention=convention, samples=n)
    owned = own(partition, clients, policy="recycle")
    counts = counts_of(owned, LEVEL)
    assert (np.diff(owned.start) == n).all()
    a = 10 * per_class
    expected = n * 0.1 * 0.9 * (n + a) / (1 + a)
    if convention == "per-class":
        assert math.isclose(expected, 157.5)
    square = ((counts - n / 10) ** 2).mean(axis=1)
    assert abs(square.mean() - expected) < 4 * square.std() / math.sqrt(clients)
    assert abs(counts.mean(axis=0) - n / 10).max() < 5 * math.sqrt(expected / clients)


def test_hsu_by_largest_remainder_has_the_variance_of_the_mix_alone():
    """n^2 p (1 - p) / (1 + A) plus at most the rounding, which is below 1/4."""
    owned = own(ClassDirichlet(alpha=0.5, samples=200, rounding="largest-remainder"), 4000, policy="recycle")
    square = ((counts_of(owned, LEVEL) - 20.0) ** 2).mean(axis=1)
    assert abs(square.mean() - 200**2 * 0.09 / 6.0) < 4 * square.std() / math.sqrt(4000) + 0.25


@pytest.mark.parametrize("a", [0.01, 0.065, 0.1])
def test_share_of_dominated_clients_is_ten_beta_tails(a):
    """P(max > 0.8) = K P(Beta(a, 9 a) > 0.8), because two classes cannot both exceed one half."""
    q = keyed_draws.dirichlet_rows(5, "test", np.arange(20_000), np.full(10, a))
    assert np.allclose(q.sum(axis=1), 1.0)
    expected = 10 * stats.beta(a, 9 * a).sf(0.8)
    assert abs((q.max(axis=1) > 0.8).mean() - expected) < 4 * math.sqrt(expected * (1 - expected) / 20_000)


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 4.0, 250.0])
def test_keyed_gamma_follows_the_gamma_law(shape):
    x = np.exp(keyed_draws.log_gamma(9, "test", 0, np.arange(20_000), shape))
    assert stats.kstest(x, stats.gamma(shape).cdf).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [1e-300, 1e-100, 1e-12, 1e-3, 1e6, 1e300])
def test_extreme_alpha_still_gives_distributions(alpha):
    with np.errstate(all="raise", under="ignore"):
        q = keyed_draws.dirichlet_rows(0, "test", np.arange(200), np.full(10, alpha))
    assert np.isfinite(q).all()
    assert np.allclose(q.sum(axis=1), 1.0)
    if alpha < 1e-11:  # one class each, and every class somewhere
        assert q.max(axis=1).min() > 0.999
        assert len(np.unique(q.argmax(axis=1))) == 10
    if alpha >= 1e6:
        assert abs(q - 0.1).max() < 1e-3


@pytest.mark.parametrize("a", [5, 10, 15, 20, 25])
def test_beta_noise_has_the_published_moments(a):
    """Beta(a, 100 - a): mean a / 100, sd sqrt(a (100 - a) / (100^2 101)) = 2.2 / 3.0 / 3.6 / 4.0 / 4.3 %."""
    rate = BetaNoise(a=a).rates(50_000, 1)
    sd = math.sqrt(a * (100 - a) / (1e4 * 101))
    assert math.isclose(100 * sd, {5: 2.2, 10: 3.0, 15: 3.6, 20: 4.0, 25: 4.3}[a], abs_tol=0.06)
    assert abs(rate.mean() - a / 100) < 4 * sd / math.sqrt(rate.size)
    assert abs(rate.std() / sd - 1.0) < 0.02


@pytest.mark.parametrize("lam", [1.0, 10.0, 100.0])
def test_slowest_of_a_cohort_follows_the_harmonic_number(lam):
    """E[max of 10 clients with n samples] = n (a + lambda H_10); the variance is (n lambda)^2 sum 1 / k^2."""
    spec = WorldSpec("t", 10, Iid(balanced=True), latency=ShiftedExponential(a=1.0, lam=lam), validation=NO_SPLIT)
    world = build_world(spec, np.arange(500) % 10, seed=2)
    ids, one = np.arange(10), np.ones(10)
    work = Work(world.train.sizes, one, one, one, 1000)
    assert (world.train.sizes == 50).all()
    slowest = [world.seconds(r, ids, work).max() for r in range(2000)]
    harmonic = sum(1 / k for k in range(1, 11))
    sd = 50 * lam * math.sqrt(sum(1 / k**2 for k in range(1, 11)))
    assert abs(np.mean(slowest) - 50 * (1 + lam * harmonic)) < 4 * sd / math.sqrt(2000)


def test_dominance_counts_are_those_of_the_definition():
    """K = 10, M = 100, alpha = 0.5: floor(100 x 0.5 / 10) = 5 of each, and 50 more of the dominant class: 55 / 5."""
    counts = counts_of(own(Dominance(alpha=0.5, samples=100), 100), LEVEL)
    assert (np.sort(counts, axis=1) == [5] * 9 + [55]).all()
    assert (np.bincount(counts.argmax(axis=1)) == 10).all()  # the least used class in turns


def test_dominance_keeps_the_global_mix_level():
    """Naive greedy is within one client's extra; so must be the dealing in turns."""
    counts = counts_of(own(Dominance(law="uniform", samples=200), 200, policy="recycle"), LEVEL)
    assert np.ptp(counts.sum(axis=0)) <= 200


def test_flash_clients_are_exactly_80_20():
    """20 clients of 1,000, 30 %: six clients 800 / 22 or 23, fourteen 100 each; no class dominates twice."""
    counts = counts_of(own(FlashPartition(share=0.3, samples=1000), 20), LEVEL)
    skewed = counts.max(axis=1) > 500
    assert skewed.sum() == 6
    assert (counts[skewed].max(axis=1) == 800).all()
    rest = np.sort(counts[skewed], axis=1)[:, :-1]
    assert rest.min() == 22
    assert rest.max() == 23
    assert (rest.sum(axis=1) == 200).all()
    assert (counts[~skewed] == 100).all()
    assert len(set(counts[skewed].argmax(axis=1))) == 6


def test_flash_with_all_data_is_impossible_strictly_and_scales():
    """A class that dominates two of 15 skewed clients needs 2 x 800 + 13 x 22.2 + 35 x 100 = 5,389 of 5,000."""
    with pytest.raises(BadParameter, match=r"allocation = 'strict'.*the pool holds 5000.*scale"):
        own(FlashPartition(share=0.3), 50)
    counts = counts_of(own(FlashPartition(share=0.3), 50, policy="scale"), LEVEL)
    factor = 5000 / counts_of(own(FlashPartition(share=0.3), 50, policy="recycle"), LEVEL).sum(axis=0).max()
    assert math.isclose(factor, 5000 / 5389, rel_tol=2e-3)
    skewed = counts.max(axis=1) > 500
    assert skewed.sum() == 15
    assert abs(counts[skewed].max(axis=1) - 800 * factor).max() <= 1
    assert abs(counts[~skewed] - 100 * factor).max() <= 1
    assert counts.sum(axis=0).max() <= 5000


def test_layered_dirichlet_has_one_half_below_and_one_half_above():
    owned = own(LayeredDirichlet(samples=100), 400, policy="recycle")
    assert (owned.skew[::2] <= 0.2).all()
    assert (owned.skew[1::2] > 0.2).all()
    assert abs(owned.skew[::2].mean() - 0.1) < 4 * 0.2 / math.sqrt(12 * 200)
    assert abs(owned.skew[1::2].mean() - 1.6) < 4 * 2.8 / math.sqrt(12 * 200)


def test_few_class_clients_hold_one_to_ten_classes_evenly_often():
    counts = counts_of(own(FewClass(samples=500), 1000, policy="recycle"), LEVEL)
    held = np.bincount((counts > 0).sum(axis=1), minlength=11)[1:]
    assert (counts.sum(axis=1) == 500).all()
    assert stats.chisquare(held).pvalue > 1e-3
    top, low = counts.max(axis=1), np.where(counts > 0, counts, 10**9).min(axis=1)
    spread = (counts > 0) & (counts != top[:, None]) & (counts != low[:, None])
    assert not spread.any()  # one dominant class, the others equal


def test_largest_remainder_by_hand():
    """Shares .42 .35 .23 of 7: 2.94 2.45 1.61, floors 2 2 1, two left for .94 and .61."""
    assert largest_remainder(np.array([[0.42, 0.35, 0.23]]), np.array([7])).tolist() == [[3, 2, 2]]
    even = largest_remainder(np.ones((4, 4)), np.array([5, 5, 5, 5]))
    assert (even.sum(axis=0) == 5).all()  # ties rotate over the clients
    assert largest_remainder(np.array([[0.0, 0.0]]), np.array([4])).tolist() == [[2, 2]]
    assert largest_remainder(np.array([[0.0, 1.0, 0.0]]), np.array([9])).tolist() == [[0, 9, 0]]


@pytest.mark.parametrize(
    ("params", "samples", "rounds", "mean", "sd"),
    [(108_098, 500, 300, 382.0, 6.0), (582_026, 600, 100, 677.0, 21.0)],
)
def test_flash_rl_latency_is_the_published_one(params, samples, rounds, mean, sd):
    """Sum over rounds of the slowest of 10 random clients of 100: 382 +- 6 s (CIFAR), 677 +- 21 s (MNIST)."""
    spec = catalogue.get("flashrl-dirichlet0.8-v1", partition="iid", held_out=0.0)
    one, total = np.ones(10), []
    for seed in range(8):
        world = build_world(spec, np.arange(100 * samples) % 10, seed=seed)
        rng, spent = np.random.default_rng(seed), 0.0
        for r in range(rounds):
            cohort = rng.choice(100, 10, replace=False)
            work = Work(world.train.sizes[cohort], 5 * one, 4.0 * params * one, 4.0 * params * one, params)
            spent += world.seconds(r, cohort, work).max()
        total.append(spent)
    assert abs(np.mean(total) - mean) < sd
    assert abs(np.array(total) - mean).max() < 3.5 * sd
