"""FedCA: the search against brute force, the ensemble identity of linear models, weights, and wrapping."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from linear_world import LinearEvaluator, check_invariants, context_of, model_of, planted, updates_of

from fedcohort.errors import BadParameter, StateMismatch
from fedcohort.methods._parts.subset_search import best_subset
from fedcohort.methods.fedavg import FedAvg
from fedcohort.methods.fedca import FedCA


def brute_force(logits, labels, score):
    """Every subset, in double precision, by definition: (key, members)."""
    n = len(logits)
    best = None
    for size in range(1, n + 1):
        for members in combinations(range(n), size):
            mean = logits[list(members)].astype(np.float64).mean(axis=0)
            top = mean.max(axis=1, keepdims=True)
            logp = mean - top - np.log(np.exp(mean - top).sum(axis=1, keepdims=True))
            fit = round(float(logp[np.arange(len(labels)), labels].mean()), 10)
            right = int((mean.argmax(axis=1) == labels).sum())
            lowest = tuple(-m for m in members)
            key = (right, size, fit, lowest) if score == "accuracy" else (fit, size, lowest)
            if best is None or key > best[0]:
                best = key, members
    return best


def some_logits(seed, n, samples=60, classes=4):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, samples)
    logits = rng.normal(0, 1, (n, samples, classes)).astype(np.float32)
    logits[:, np.arange(samples), labels] += rng.uniform(-0.5, 1.5, n)[:, None].astype(np.float32)
    return logits, labels


@pytest.mark.parametrize("score", ["accuracy", "log_likelihood"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8])
def test_exhaustive_search_is_brute_force(n, score):
    for seed in range(12 if n < 8 else 2):
        logits, labels = some_logits(100 * n + seed, n)
        found = best_subset(logits, labels, score=score)
        key, members = brute_force(logits, labels, score)
        assert tuple(np.flatnonzero(found.members)) == members
        assert found.exhaustive
        assert found.evaluated == 2**n - 1
        if score == "accuracy":
            assert found.accuracy == pytest.approx(key[0] / len(labels))
        else:
            assert found.log_likelihood == pytest.approx(key[0], abs=1e-9)


def test_large_logits_do_not_overflow():
    """Margins of several hundred: exp overflows float32 unless the largest exponent is taken out."""
    logits, labels = some_logits(3, 7)
    logits *= 300
    found = best_subset(logits, labels, score="log_likelihood")
    assert tuple(np.flatnonzero(found.members)) == brute_force(logits, labels, "log_likelihood")[1]
    assert np.isfinite(found.log_likelihood)


def test_more_samples_than_a_chunk_and_more_models_than_the_table():
    """7 models and 700 samples: three chunks, one model in the Gray code."""
    logits, labels = some_logits(8, 7, samples=700)
    for score in ("accuracy", "log_likelihood"):
        found = best_subset(logits, labels, score=score)
        assert tuple(np.flatnonzero(found.members)) == brute_force(logits, labels, score)[1]


def test_equal_models_tie_to_the_largest_subset():
    logits, labels = some_logits(1, 1)
    same = np.repeat(logits, 7, axis=0)
    for score in ("accuracy", "log_likelihood"):
        assert best_subset(same, labels, score=score).members.all()


def test_ties_go_to_log_likelihood_and_then_to_the_lowest_ids():
    """Model 0 is right on both samples with margin 1, models 1 and 2 with margin 3, model 3 is wrong by 100.

    No subset with model 3 is right on anything; all subsets of {0, 1, 2} have accuracy 1: the largest wins.
    By log-likelihood {1}, {2} and {1, 2} tie at margin 3: the larger.
    """
    labels = np.array([0, 1])
    right = np.array([[1.0, 0.0], [0.0, 1.0]])
    logits = np.stack([right, 3 * right, 3 * right, -100 * right]).astype(np.float32)
    assert np.flatnonzero(best_subset(logits, labels).members).tolist() == [0, 1, 2]
    found = best_subset(logits, labels, score="log_likelihood")
    assert np.flatnonzero(found.members).tolist() == [1, 2]
    # two half-right models that cancel: {0} and {1} tie in everything but the id
    half = np.array([[[9.0, 0.0], [9.0, 0.0]], [[0.0, 9.0], [0.0, 9.0]]], np.float32)
    assert np.flatnonzero(best_subset(half, labels).members).tolist() == [0]


def test_level_logits_are_no_decision():
    """A zero model draws on every sample: accuracy 0, whatever the order of the classes."""
    found = best_subset(np.zeros((1, 5, 3), np.float32), np.array([0, 1, 2, 0, 1]))
    assert found.accuracy == 0.0
    assert found.log_likelihood == pytest.approx(-np.log(3))


@pytest.mark.parametrize("score", ["accuracy", "log_likelihood"])
@pytest.mark.parametrize("n", [6, 14])
def test_perfect_in_and_constant_out(n, score):
    """Spec 21.6: a perfect model is always in, a confident constant-class model never. Also for the greedy search."""
    logits, labels = some_logits(4, n, samples=200)
    logits[0] = 0
    logits[0, np.arange(200), labels] = 60.0
    logits[1] = 0
    logits[1, :, 2] = 200.0
    members = best_subset(logits, labels, score=score).members
    assert members[0]
    assert not members[1]


@pytest.mark.parametrize("score", ["accuracy", "log_likelihood"])
def test_greedy_never_loses_to_all_and_is_close_to_the_optimum(score):
    hits = 0
    for seed in range(8):
        logits, labels = some_logits(seed, 8, samples=300)
        greedy = best_subset(logits, labels, score=score, exhaustive_up_to=0)
        full = best_subset(logits, labels, score=score)
        everybody = best_subset(logits.mean(axis=0, keepdims=True), labels, score=score)
        assert not greedy.exhaustive
        assert greedy.evaluated < 100
        value = "accuracy" if score == "accuracy" else "log_likelihood"
        assert getattr(everybody, value) <= getattr(greedy, value) + 1e-9
        assert getattr(greedy, value) <= getattr(full, value) + 1e-12
        hits += bool((greedy.members == full.members).all())
    assert hits >= 4


def test_the_swap_pass_matters():
    """A case, found by search, where elimination alone stops short and one swap reaches the optimum."""
    logits, labels = some_logits(217, 8, samples=30)
    logits *= np.random.default_rng(217).uniform(0.2, 5, (8, 1, 1)).astype(np.float32)
    found = best_subset(logits, labels, exhaustive_up_to=0)
    assert tuple(np.flatnonzero(found.members)) == brute_force(logits, labels, "accuracy")[1]


@pytest.fixture
def evaluator():
    rng = np.random.default_rng(0)
    x, y, _ = planted(rng, 120, 5, 3)
    return LinearEvaluator(5, 3, validation=(x, y))


def test_linear_ensemble_is_the_average_model(evaluator):
    """D7: for a linear model mean logits are the logits of the mean model; so the reported accuracy of S_opt under
    equal weights is the accuracy of the model that FedCA returns."""
    rng = np.random.default_rng(1)
    model = model_of(rng.normal(0, 1, 15))
    u = updates_of(rng.normal(0, 1, (6, 15)))
    done = FedCA().aggregate(model, u, context_of(evaluator))
    logits = evaluator.logits(done.model.params[None], "validation")[0]
    assert done.info["fedca_accuracy"] == pytest.approx(
        float((logits.argmax(1) == evaluator.labels("validation")).mean())
    )
    assert done.info["fedca_size"] == done.accepted.sum() < 6


def test_weights_are_normalised_over_the_best_subset(evaluator):
    rng = np.random.default_rng(2)
    model, delta = model_of(rng.normal(0, 1, 15)), rng.normal(0, 1, (5, 15)).astype(np.float32)
    weight = np.array([1.0, 2, 3, 4, 5])
    done = FedCA(score="log_likelihood").aggregate(model, updates_of(delta, weight=weight), context_of(evaluator))
    kept = done.accepted
    expected = model.params + (weight[kept] / weight[kept].sum()) @ delta[kept]
    np.testing.assert_allclose(done.model.params, expected, atol=1e-6)


def test_paper_weights_rescale_the_model(evaluator):
    """Eq. 5 by hand: N = 4 clients with n = 10, 10, 10, 70; S = {3} alone: weight 0.7 * 4 / 1 = 2.8 times w_3."""
    model = model_of(np.full(15, 0.5))
    u = updates_of(np.ones((1, 15)), clients=[3], weight=[70.0])
    done = FedCA(weights="paper").aggregate(model, u, context_of(evaluator, population=4, samples=[10, 10, 10, 70]))
    np.testing.assert_allclose(done.model.params, 2.8 * 1.5 * np.ones(15), rtol=1e-6)
    assert done.info["fedca_weight_sum"] == pytest.approx(2.8)


class Spy(FedAvg):
    """Remembers what it was given."""

    name = "spy"

    def prepare(self, plan, model, clients):
        return plan.__class__(prox=0.25)

    def aggregate(self, model, updates, context):
        self.seen = updates.clients.tolist(), context.dispatched.tolist(), dict(context.inclusion)
        return super().aggregate(model, updates, context)


def test_inner_method_gets_only_the_best_subset(evaluator):
    rng = np.random.default_rng(3)
    model, spy = model_of(rng.normal(0, 1, 15)), Spy()
    method = FedCA(inner=spy)
    assert method.prepare(context_of().plan, model, np.arange(3)).prox == 0.25
    u = updates_of(rng.normal(0, 1, (6, 15)), clients=[1, 3, 5, 7, 9, 11])
    done = method.aggregate(model, u, context_of(evaluator))
    chosen = u.clients[done.accepted].tolist()
    assert spy.seen == (chosen, chosen, {})
    assert 0 < len(chosen) < 6


def test_non_finite_logits_are_left_out(evaluator):
    """A finite update of 3e38 has infinite logits."""
    model = model_of(np.zeros(15))
    delta = np.stack([np.full(15, 3e38), np.ones(15)]).astype(np.float32)
    with np.errstate(all="ignore"):
        done = FedCA().aggregate(model, updates_of(delta), context_of(evaluator))
        nobody = FedCA().aggregate(model, updates_of(delta[:1]), context_of(evaluator))
    assert done.accepted.tolist() == [False, True]
    assert not nobody.accepted.any()
    np.testing.assert_array_equal(nobody.model.params, model.params)


@pytest.mark.parametrize("score", ["accuracy", "log_likelihood"])
def test_invariants(evaluator, score):
    rng = np.random.default_rng(6)
    check_invariants(lambda: FedCA(score=score), evaluator, rng.normal(0, 1, 15))


def test_refuses(evaluator):
    with pytest.raises(BadParameter, match="a loss of one's own or targets that are not classes rule out"):
        FedCA().aggregate(model_of(np.zeros(3)), updates_of(np.ones((2, 3))), context_of())
    with pytest.raises(BadParameter, match=r"without a server validation split.*hold out a validation split"):
        FedCA().aggregate(model_of(np.zeros(3)), updates_of(np.ones((2, 3))), context_of(LinearEvaluator(3, 1)))
    with pytest.raises(BadParameter, match="its own weights"):
        FedCA(inner=FedAvg(), weights="paper")
    with pytest.raises(BadParameter):
        FedCA(score="loss")
    with pytest.raises(BadParameter):
        FedCA(exhaustive_up_to=30)
    with pytest.raises(StateMismatch):
        FedCA().load_state_dict({"x": np.zeros(1)})
