"""FedPdp: what its weights sum to, and over which draws its update is unbiased (spec part D, item 5)."""

from itertools import combinations

import numpy as np
import pytest

from fedcohort.errors import MissingSignal
from fedcohort.methods import CMFL, FedAvg, FedCA, FedPdp, Scaffold
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Plan, Updates

N, D = 6, 4
RNG = np.random.default_rng(11)
SAMPLES = np.array([1, 2, 4, 8, 16, 29])
P = SAMPLES / SAMPLES.sum()
DELTA = RNG.normal(size=(N, D)).astype(np.float32)
MODEL = Model(RNG.normal(size=D).astype(np.float32))
TRUE = P @ DELTA


def change(method: FedPdp, subset: tuple[int, ...], pi: np.ndarray | None = None, asked: int = 0) -> np.ndarray:
    at = np.array(subset)
    updates = Updates(at, DELTA[at], SAMPLES[at].astype(float), np.ones(at.size, np.int64))
    inclusion = {} if pi is None else {k: float(pi[k]) for k in subset}
    dispatched = np.arange(asked) if asked else at
    context = Aggregation(0, Plan(), N, SAMPLES, dispatched, inclusion=inclusion)
    return method.aggregate(MODEL, updates, context).model.params - MODEL.params


def test_delta_form_is_unbiased_over_all_uniform_draws():
    """The mean over all 20 subsets of size 3 is exactly sum p_k delta_k."""
    subsets = list(combinations(range(N), 3))
    uniform = np.full(N, 0.5)
    for method, pi in ((FedPdp(unknown="uniform"), None), (FedPdp(), uniform)):
        mean = np.mean([change(method, s, pi) for s in subsets], axis=0)
        assert np.allclose(mean, TRUE, atol=1e-6)
    biased = np.mean([change(FedPdp(form="normalised"), s) for s in subsets], axis=0)
    assert not np.allclose(biased, TRUE, atol=1e-2)


def test_delta_form_is_unbiased_under_a_known_unequal_design():
    """A design that gives every pair its own probability; pi_k is the mass of the pairs that hold k."""
    pairs = list(combinations(range(N), 2))
    mass = RNG.dirichlet(np.ones(len(pairs)))
    pi = np.array([sum(m for m, s in zip(mass, pairs, strict=True) if k in s) for k in range(N)])
    mean = sum(m * change(FedPdp(), s, pi) for m, s in zip(mass, pairs, strict=True))
    assert np.allclose(mean, TRUE, atol=1e-6)
    wrong = sum(m * change(FedPdp(unknown="uniform"), s) for m, s in zip(mass, pairs, strict=True))
    assert not np.allclose(wrong, TRUE, atol=1e-2)


def test_delta_form_is_unbiased_by_monte_carlo():
    rng = np.random.default_rng(5)
    draws = [change(FedPdp(unknown="uniform"), tuple(np.sort(rng.permutation(N)[:3]))) for _ in range(1200)]
    error = np.std(draws, axis=0) / np.sqrt(1200)
    assert (np.abs(np.mean(draws, axis=0) - TRUE) < 4.5 * error).all()


@pytest.mark.parametrize("method", [FedPdp(unknown="uniform"), FedAvg(form="original"), FedCA(weights="paper").inner])
def test_without_the_samples_of_all_there_are_no_shares_of_them(method):
    updates = Updates(np.arange(2), DELTA[:2], SAMPLES[:2].astype(float), np.ones(2, np.int64))
    context = Aggregation(0, Plan(), N, np.zeros(N, np.int64), np.arange(2))
    with pytest.raises(MissingSignal, match="samples of all 6 clients = 0: shares of all data need their sum"):
        method.aggregate(MODEL, updates, context)


def test_methods_say_what_they_read_of_all_clients():
    reading = [
        FedPdp(),
        FedAvg(form="original"),
        Scaffold(weighting="data"),
        CMFL(inner=FedPdp()),
        FedCA(weights="paper"),
    ]
    assert all(method.needs == {"samples"} for method in reading)
    assert not any(m.needs for m in (FedPdp(form="normalised"), FedAvg(), Scaffold(), CMFL(), FedCA()))


def test_silence_at_random_stays_unbiased():
    """Of four asked, two return: |S| / |R| = 2 makes up for it. Mean over who was asked and who returned."""
    total, count = np.zeros(D), 0
    for asked in combinations(range(N), 4):
        for returned in combinations(asked, 2):
            total += change(FedPdp(), returned, np.full(N, 4 / 6), asked=4)
            count += 1
    assert np.allclose(total / count, TRUE, atol=1e-6)


def test_model_form_is_the_paper():
    """w+ = sum_S p_k (N / |S|) w_k, written out; idle clients rescale the model."""
    subset = (0, 3, 4)
    want = sum(P[k] * N / 3 * (MODEL.params + DELTA[k]) for k in subset)
    assert np.allclose(change(FedPdp(form="model"), subset) + MODEL.params, want, atol=1e-6)


def test_scale_has_mean_one_and_is_not_constant():
    """FedCM's client heterogeneity: 20 clients, 8 chosen, sizes from class-wise Dir(0.1) over 10 classes.

    The spec reports mean 1.00, sd 0.22 and a 5-95 % range of [0.64, 1.36] over such draws.
    """
    rng = np.random.default_rng(8)
    scale = []
    for _ in range(150):
        size = rng.dirichlet(np.full(20, 0.1), 10).sum(axis=0)
        samples = np.maximum((size * 1000).astype(int), 1)
        for _ in range(10):
            at = np.sort(rng.permutation(20)[:8])
            updates = Updates(at, np.zeros((8, 1), np.float32), samples[at].astype(float), np.ones(8, np.int64))
            context = Aggregation(0, Plan(), 20, samples, at)
            made = FedPdp(form="model").aggregate(Model(np.ones(1, np.float32)), updates, context)
            scale.append(float(made.model.params[0]))
    assert abs(np.mean(scale) - 1) < 0.02
    assert 0.17 < np.std(scale) < 0.27
    low, high = np.quantile(scale, [0.05, 0.95])
    assert 0.57 < low < 0.71
    assert 1.28 < high < 1.44


@pytest.mark.parametrize("form", ["delta", "normalised"])
def test_unknown_design_is_normalised(form: str):
    subset = (1, 2, 5)
    at = list(subset)
    want = SAMPLES[at] @ DELTA[at] / SAMPLES[at].sum()
    assert np.allclose(change(FedPdp(form=form), subset), want, atol=1e-6)


def test_drawn_with_replacement():
    """Uniformly with replacement, K = 4 draws: 0 three times, 2 once: p_0 N 3/4 delta_0 + p_2 N 1/4 delta_2."""
    at = np.array([0, 2])
    updates = Updates(at, DELTA[at], SAMPLES[at].astype(float), np.ones(2, np.int64))
    context = Aggregation(0, Plan(), N, SAMPLES, at, multiplicity={0: 3, 2: 1})
    got = FedPdp(unknown="uniform").aggregate(MODEL, updates, context).model.params - MODEL.params
    assert np.allclose(got, P[0] * N * 0.75 * DELTA[0] + P[2] * N * 0.25 * DELTA[2], atol=1e-6)
