"""RHFL: confidence weights by hand with their traps, the symmetric loss, mutual distillation, the construction."""

from __future__ import annotations

import math

import numpy as np
import pytest
from linear_world import (
    LinearEvaluator,
    MLPEvaluator,
    check_invariants,
    check_resume,
    context_of,
    model_of,
    planted,
    updates_of,
)

from fedcohort.errors import BadParameter, StateMismatch
from fedcohort.methods.rhfl import RHFL, confidence_weights
from fedcohort.types import Plan

NAN = np.nan


def weights(before, now, form="stable", gain=0.5):
    return confidence_weights(np.array(before, float), np.array(now, float), form=form, gain=gain)


def make_evaluator(kind=MLPEvaluator, seed=0):
    rng = np.random.default_rng(seed)
    x, y, _ = planted(rng, 300, 5, 3)
    return kind(5, 3, unlabelled=(x[:200], None), validation=(x[200:], y[200:]))


def test_confidence_by_hand():
    """Losses 2, 3, 1.5 -> 1, 2, 1. q = (1, 1/2, 1/2), sum 2, shares (1/2, 1/4, 1/4).

    v = 1/2 + 0.5 * shares; the equal 1/2 cancels in the softmax: W ~ exp(1/4, 1/8, 1/8).
    No loss rises, so both forms agree.
    """
    e = np.exp([0.25, 0.125, 0.125])
    for form in ("stable", "code"):
        np.testing.assert_allclose(weights([2, 3, 1.5], [1, 2, 1], form), e / e.sum(), rtol=1e-12)


def test_trap_negative_sum():
    """Losses 1, 1 -> 0.8, 4: q = (1/4, -3/4), sum -1/2, shares (-1/2, 3/2): the code's form favours the client that
    got WORSE. The stable form has q = (1/4, 0), shares (1, 0).
    """
    stable = weights([1, 1], [0.8, 4])
    np.testing.assert_allclose(stable, np.exp([0.5, 0]) / np.exp([0.5, 0]).sum())
    code = weights([1, 1], [0.8, 4], "code")
    np.testing.assert_allclose(code, np.exp([-0.25, 0.75]) / np.exp([-0.25, 0.75]).sum())
    assert code[1] > code[0]
    assert stable[0] > stable[1]


def test_trap_sum_near_zero():
    """2 -> 1 is q = 1, and 1 -> 2 is q = -1/2, twice: they cancel."""
    now, before = [1, 2, 2], [2, 1, 1]
    np.testing.assert_allclose(weights(before, now, "code"), np.full(3, 1 / 3))
    assert weights(before, now)[0] == pytest.approx(np.exp(0.5) / (np.exp(0.5) + 2))
    assert np.isfinite(weights(before, [1, 2, 2 + 1e-9], "code")).all()


def test_nobody_improves_nobody_known_and_newcomers():
    np.testing.assert_allclose(weights([1, 1, 1], [2, 2, 2]), np.full(3, 1 / 3))
    np.testing.assert_allclose(weights([NAN, NAN, NAN], [1, 2, 3]), np.full(3, 1 / 2))  # round 0: 1 / (K - 1)
    # the newcomer has the median q of (1, 1/2, 0): 1/2; sum 2
    e = np.exp([0.25, 0.125, 0, 0.125])
    np.testing.assert_allclose(weights([2, 3, 1, NAN], [1, 2, 1, 7]), e / e.sum())
    np.testing.assert_allclose(weights([5.0], [1.0]), [1.0])
    assert np.isfinite(weights([1, 1], [0, 1])).all()  # a loss of zero


def test_stable_weights_are_bounded():
    """W_max / W_min <= exp(0.5) since the shares lie in [0, 1]."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        w = weights(rng.exponential(1, 6), rng.exponential(1, 6))
        assert w.sum() == pytest.approx(1)
        assert w.max() / w.min() <= math.exp(0.5) + 1e-12


def test_client_half_is_the_symmetric_loss():
    plan = RHFL().prepare(Plan(measure=frozenset({"utility"})), model_of(np.zeros(2)), np.arange(2))
    assert (plan.objective.ce, plan.objective.rce, plan.objective.pseudo) == (0.1, 1.0, 0.0)
    assert plan.objective.floor == pytest.approx(-9.2103, abs=1e-4)
    assert plan.measure == {"utility", "train_loss"}


def test_global_model_is_the_confidence_weighted_mean():
    """No public data: eq. 4 alone. Round 1 weights as in the hand-worked case."""
    method, model, delta = RHFL(source="none"), model_of(np.zeros(4)), np.eye(4)[:3].astype(np.float32)
    first = method.aggregate(model, updates_of(delta, train_loss=[2.0, 3.0, 1.5]), context_of())
    np.testing.assert_allclose(first.model.params, [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)
    assert first.info["rhfl_loss_reports"] == 3
    second = method.aggregate(model, updates_of(delta, train_loss=[1.0, 2.0, 1.0]), context_of(index=1))
    e = np.exp([0.25, 0.125, 0.125])
    np.testing.assert_allclose(second.model.params[:3], e / e.sum(), rtol=1e-6)
    assert second.info["rhfl_distilled"] == 0
    silent = RHFL(source="none").aggregate(model, updates_of(delta), context_of())
    assert silent.info["rhfl_loss_reports"] == 0


@pytest.mark.parametrize("confidence", ["stable", "code"])
def test_copies_move_towards_the_others(confidence):
    evaluator, rng = make_evaluator(), np.random.default_rng(1)
    local = rng.normal(0, 1, (3, evaluator.n_params)).astype(np.float32)
    method = RHFL(lr=0.02, batch_size=50, passes=6, confidence=confidence)
    moved, named = method._teach(evaluator, "unlabelled", local, np.full(3, 0.5), np.random.default_rng(0))
    assert 1 <= named <= 3

    def disagreement(params):
        z = evaluator.logits(params.astype(np.float32), "unlabelled").astype(float)
        p = np.exp(z) / np.exp(z).sum(axis=2, keepdims=True)
        return np.abs(p - p.mean(axis=0)).mean()

    assert disagreement(local + moved) < 0.6 * disagreement(local)


class Recorder(LinearEvaluator):
    """Keeps the targets it is asked to follow."""

    def gradient(self, params, split, rows, target, buffers=None):
        self.asked = [*getattr(self, "asked", []), (rows, target)]
        return super().gradient(params, split, rows, target, buffers)


def test_targets_are_the_others_in_the_ratio_of_their_weights():
    """One batch for each of three clients: sum_{i != k} W_i p_i / sum_{i != k} W_i, itself left out."""
    x, _, _ = planted(np.random.default_rng(0), 40, 5, 3)
    evaluator, rng = Recorder(5, 3, unlabelled=(x, None)), np.random.default_rng(1)
    local = rng.normal(0, 1, (3, 15)).astype(np.float32)
    w = np.array([0.5, 0.3, 0.2])
    RHFL(batch_size=40)._teach(evaluator, "unlabelled", local, w, np.random.default_rng(0))
    z = evaluator.logits(local, "unlabelled").astype(float)
    p = np.exp(z) / np.exp(z).sum(axis=2, keepdims=True)
    expected = [(0.3 * p[1] + 0.2 * p[2]) / 0.5, (0.5 * p[0] + 0.2 * p[2]) / 0.7, (0.5 * p[0] + 0.3 * p[1]) / 0.8]
    assert len(evaluator.asked) == 3
    for (rows, target), whole in zip(evaluator.asked, expected, strict=True):
        np.testing.assert_array_equal(rows, evaluator.asked[0][0])  # the same batch order for all
        np.testing.assert_allclose(target, whole[rows], rtol=1e-6)


def test_the_global_model_averages_the_distilled_copies():
    evaluator, rng = make_evaluator(), np.random.default_rng(6)
    model, u = model_of(rng.normal(0, 1, evaluator.n_params)), updates_of(rng.normal(0, 1, (3, evaluator.n_params)))
    plain = RHFL(source="none").aggregate(model, u, context_of(evaluator)).model.params
    done = RHFL(lr=0.01).aggregate(model, u, context_of(evaluator))
    weight = np.full(3, 0.5)
    local = (model.params + u.delta).astype(np.float32)
    moved, _ = RHFL(lr=0.01)._teach(evaluator, "unlabelled", local, weight, context_of().rng)
    assert np.abs(moved).max() > 1e-3
    np.testing.assert_allclose(done.model.params - plain, moved.mean(axis=0), atol=1e-6)
    assert done.info["rhfl_distilled"] == 1


def test_weights_steer_the_distillation():
    """Client 2 listens to 0 and 1; with all the weight on 0 it ends nearer to 0 than with all on 1."""
    evaluator, rng = make_evaluator(LinearEvaluator), np.random.default_rng(2)
    local = rng.normal(0, 1, (3, 15)).astype(np.float32)

    def said(params):
        z = evaluator.logits(params.astype(np.float32), "unlabelled").astype(float)
        return np.exp(z) / np.exp(z).sum(axis=2, keepdims=True)

    def distance(weight):
        method = RHFL(lr=0.05, batch_size=50, passes=25)
        moved, _ = method._teach(evaluator, "unlabelled", local, np.array(weight), np.random.default_rng(0))
        return np.abs(said(local + moved)[2] - said(local)[0]).mean()

    assert distance([1.0, 0.0, 0.0]) < 0.3 * distance([0.0, 1.0, 0.0])


def test_native_mode_reports_personal_models_under_its_own_name():
    """Linear, no distillation: mean of the clients' accuracies, by hand; the global model is another number."""
    evaluator, rng = make_evaluator(LinearEvaluator), np.random.default_rng(3)
    model, delta = model_of(np.zeros(15)), rng.normal(0, 1, (4, 15)).astype(np.float32)
    done = RHFL(mode="native", source="none").aggregate(model, updates_of(delta), context_of(evaluator))
    single = [
        (evaluator.logits(d[None], "validation")[0].argmax(axis=1) == evaluator.labels("validation")).mean()
        for d in delta
    ]
    assert done.info["rhfl_personal_accuracy"] == pytest.approx(np.mean(single))
    plain = RHFL(source="none").aggregate(model, updates_of(delta), context_of(evaluator))
    assert "rhfl_personal_accuracy" not in plain.info
    np.testing.assert_array_equal(plain.model.params, done.model.params)
    with pytest.raises(BadParameter, match="no labelled validation data"):
        RHFL(mode="native").aggregate(model, updates_of(delta), context_of())


def test_invariants_and_resume():
    evaluator = make_evaluator()
    params = np.random.default_rng(4).normal(0, 0.5, evaluator.n_params)
    losses = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    check_invariants(RHFL, evaluator, params, extras={"train_loss": losses})
    saved = check_resume(
        RHFL, evaluator, params, extras={"train_loss": np.random.default_rng(5).exponential(1, (3, 4))}
    )
    assert saved["loss"].shape == (20,)
    assert np.isfinite(saved["loss"]).sum() == 4


def test_missing_data_and_refusals():
    u = updates_of(np.ones((2, 15)))
    done = RHFL().aggregate(model_of(np.zeros(15)), u, context_of())
    assert done.info["rhfl_distilled"] == 0
    with pytest.raises(BadParameter):
        RHFL(missing="raise").aggregate(model_of(np.zeros(15)), u, context_of())
    for bad in ({"mode": "x"}, {"confidence": "x"}, {"floor": 0.0}, {"passes": -1}, {"source": "test"}):
        with pytest.raises(BadParameter):
            RHFL(**bad)
    with pytest.raises(StateMismatch):
        RHFL().load_state_dict({"x": np.zeros(2)})
