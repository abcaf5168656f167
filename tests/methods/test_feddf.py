"""FedDF: a no-op for linear models, a real step for others, explicit fall-backs, early stopping."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from linear_world import (
    LinearEvaluator,
    MLPEvaluator,
    check_invariants,
    context_of,
    model_of,
    planted,
    softmax,
    updates_of,
)

from fedcohort.errors import BadParameter, UnknownName
from fedcohort.methods._parts.distillation import Adam, Batches, Schedule, divergence
from fedcohort.methods.fedavg import FedAvg
from fedcohort.methods.feddf import FedDF


def make_evaluator(kind, *, validation=True, seed=0):
    rng = np.random.default_rng(seed)
    x, y, _ = planted(rng, 400, 5, 3)
    splits = {"unlabelled": (x[:250], None)}
    if validation:
        splits["validation"] = (x[250:], y[250:])
    return kind(5, 3, **splits)


def test_linear_model_and_equal_weights_are_a_no_op():
    """D7: the averaged model's logits are the mean logits, so the gradient of eq. 2 vanishes at the start."""
    evaluator, rng = make_evaluator(LinearEvaluator), np.random.default_rng(1)
    model, u = model_of(rng.normal(0, 1, 15)), updates_of(rng.normal(0, 1, (4, 15)))
    plain = FedAvg().aggregate(model, u, context_of(evaluator)).model
    target = softmax(evaluator.logits(model.params + u.delta, "unlabelled").astype(np.float64).mean(axis=0))
    _, gradient = evaluator.gradient(plain.params, "unlabelled", np.arange(250), target)
    assert np.abs(gradient).max() < 1e-6
    done = FedDF().aggregate(model, u, context_of(evaluator))
    np.testing.assert_array_equal(done.model.params, plain.params)
    assert done.info["feddf_kl_start"] < 1e-10
    assert done.info["feddf_steps"] == 0


def test_unequal_weights_are_distilled_towards_equal_ones():
    """Linear again, but weights 9 : 1. The student starts at the weighted mean; the ensemble is the plain mean."""
    evaluator, rng = make_evaluator(LinearEvaluator, validation=False), np.random.default_rng(2)
    model, u = model_of(rng.normal(0, 1, 15)), updates_of(rng.normal(0, 1, (2, 15)), weight=[90, 10])
    done = FedDF(lr=0.05, steps=400).aggregate(model, u, context_of(evaluator))
    assert done.info["feddf_kl_start"] > 0.03
    assert done.info["feddf_kl_end"] < 0.02 * done.info["feddf_kl_start"]
    plain_mean = softmax(evaluator.logits((model.params + u.delta.mean(axis=0))[None], "unlabelled")[0])
    student = softmax(evaluator.logits(done.model.params[None], "unlabelled")[0])
    assert np.abs(plain_mean - student).max() < 0.05


def test_mlp_student_comes_closer_to_its_teachers():
    evaluator, rng = make_evaluator(MLPEvaluator, validation=False), np.random.default_rng(3)
    model, u = model_of(rng.normal(0, 0.5, evaluator.n_params)), updates_of(rng.normal(0, 0.5, (5, evaluator.n_params)))
    done = FedDF(lr=0.01, steps=200).aggregate(model, u, context_of(evaluator))
    assert done.info["feddf_steps"] == 200
    assert done.info["feddf_distilled"] == 1
    assert done.info["feddf_kl_end"] < 0.3 * done.info["feddf_kl_start"]
    assert 1 <= done.info["feddf_classes"] <= 3
    assert done.accepted.all()


def test_mlp_gradient_of_the_fake_is_right():
    """The evaluator that stands in for an engine, against central differences."""
    evaluator, rng = make_evaluator(MLPEvaluator), np.random.default_rng(4)
    params, rows = rng.normal(0, 0.5, evaluator.n_params), np.arange(20)
    target = softmax(rng.normal(0, 1, (20, 3)))
    _, gradient = evaluator.gradient(params, "unlabelled", rows, target)
    for j in (0, 7, 31, evaluator.n_params - 1):
        e = np.zeros(evaluator.n_params)
        e[j] = 1e-5
        up, down = (evaluator.gradient(params + s * e, "unlabelled", rows, target)[0] for s in (1, -1))
        assert gradient[j] == pytest.approx((up - down) / 2e-5, abs=1e-6)


def test_validation_keeps_the_best_student_and_patience_ends_it():
    """Validation labels that contradict the teachers: the start is best, and 100 steps without gain end it."""
    evaluator, rng = make_evaluator(MLPEvaluator), np.random.default_rng(5)
    model, u = model_of(rng.normal(0, 0.5, evaluator.n_params)), updates_of(rng.normal(0, 0.5, (5, evaluator.n_params)))
    plain = FedAvg().aggregate(model, u, context_of(evaluator)).model
    said = evaluator.logits(plain.params[None], "validation")[0].argmax(axis=1)
    evaluator.splits["validation"] = (evaluator.splits["validation"][0], said)  # nobody is better than the start
    done = FedDF(lr=0.01, steps=1000, check_every=20, patience=100).aggregate(model, u, context_of(evaluator))
    assert done.info["feddf_steps"] == 100
    np.testing.assert_array_equal(done.model.params, plain.params)


def test_a_student_that_is_no_better_does_not_replace_the_start():
    evaluator, rng = make_evaluator(MLPEvaluator), np.random.default_rng(5)
    model, u = model_of(rng.normal(0, 0.5, evaluator.n_params)), updates_of(rng.normal(0, 0.5, (5, evaluator.n_params)))
    plain = FedAvg().aggregate(model, u, context_of(evaluator)).model
    done = FedDF(lr=1e-6, steps=40, check_every=20).aggregate(model, u, context_of(evaluator))  # same answers
    np.testing.assert_array_equal(done.model.params, plain.params)
    free = FedDF(lr=1e-6, steps=40).aggregate(model, u, context_of(make_evaluator(MLPEvaluator, validation=False)))
    assert (free.model.params != plain.params).any()


def test_validation_accuracy_never_falls():
    for seed in range(3):
        evaluator, rng = make_evaluator(MLPEvaluator, seed=seed), np.random.default_rng(seed)
        model, u = (
            model_of(rng.normal(0, 0.5, evaluator.n_params)),
            updates_of(rng.normal(0, 1, (4, evaluator.n_params))),
        )

        def score(m, evaluator=evaluator):
            logits = evaluator.logits(m.params[None], "validation")[0]
            return (logits.argmax(axis=1) == evaluator.labels("validation")).mean()

        done = FedDF(lr=0.01, steps=130, check_every=25).aggregate(model, u, context_of(evaluator))
        assert score(done.model) >= score(FedAvg().aggregate(model, u, context_of(evaluator)).model)


def test_without_public_data_it_says_so(caplog):
    rng = np.random.default_rng(6)
    model, u = model_of(rng.normal(0, 1, 15)), updates_of(rng.normal(0, 1, (3, 15)))
    plain = FedAvg().aggregate(model, u, context_of()).model
    labelled_only = LinearEvaluator(5, 3, validation=(rng.normal(0, 1, (9, 5)), np.zeros(9, int)))
    for source, evaluator in (
        ("unlabelled", None),
        ("unlabelled", labelled_only),
        ("noise", make_evaluator(LinearEvaluator)),
    ):
        caplog.clear()
        method = FedDF(source=source)
        with caplog.at_level(logging.WARNING):
            done = method.aggregate(model, u, context_of(evaluator))
            method.aggregate(model, u, context_of(evaluator))
        np.testing.assert_array_equal(done.model.params, plain.params)
        assert done.info["feddf_distilled"] == 0
        assert [r.message for r in caplog.records] == [
            f"feddf: no {source} data at the server, so there is no distillation"
        ]
    caplog.clear()
    assert FedDF(source="none").aggregate(model, u, context_of()).info["feddf_distilled"] == 0
    assert not caplog.records
    with pytest.raises(BadParameter, match="reserve an unlabelled split"):
        FedDF(missing="raise").aggregate(model, u, context_of())


class Strict(LinearEvaluator):
    """Refuses names it does not know, as the classification tasks' evaluator does."""

    def size(self, split):
        if split not in self.splits:
            raise UnknownName.among("split", split, self.splits)
        return super().size(split)


def test_an_evaluator_that_refuses_the_name_has_no_such_data():
    evaluator = Strict(5, 3, unlabelled=(np.ones((4, 5)), None))
    done = FedDF(source="noise").aggregate(model_of(np.zeros(15)), updates_of(np.ones((2, 15))), context_of(evaluator))
    assert done.info["feddf_distilled"] == 0


def test_noise_split_is_used_where_the_evaluator_has_one():
    evaluator, rng = make_evaluator(MLPEvaluator, validation=False), np.random.default_rng(7)
    evaluator.splits = {"noise": (rng.normal(0, 1, (100, 5)), None)}
    u = updates_of(rng.normal(0, 0.5, (3, evaluator.n_params)))
    done = FedDF(source="noise", steps=5).aggregate(model_of(np.zeros(evaluator.n_params)), u, context_of(evaluator))
    assert done.info["feddf_distilled"] == 1


def test_drop_worst_leaves_out_models_near_chance():
    """3 classes: below 1.2 / 3 = 0.4. The planted rule is good; its negative answers the least likely class: ~0."""
    rng = np.random.default_rng(8)
    x, y, rule = planted(rng, 300, 5, 3)
    evaluator = LinearEvaluator(5, 3, validation=(x, y), unlabelled=(x, None))
    delta = np.stack([rule.reshape(-1), -rule.reshape(-1), rule.reshape(-1)])
    model = model_of(np.zeros(15))
    done = FedDF(drop_worst=True).aggregate(model, updates_of(delta), context_of(evaluator))
    assert done.accepted.tolist() == [True, False, True]
    assert done.info["feddf_dropped"] == 1
    np.testing.assert_allclose(done.model.params, rule.reshape(-1), rtol=1e-6)
    all_bad = FedDF(drop_worst=True).aggregate(model, updates_of(delta[[1, 1]]), context_of(evaluator))
    assert all_bad.accepted.all()
    with pytest.raises(BadParameter, match="validation split"):
        FedDF(drop_worst=True).aggregate(
            model, updates_of(delta), context_of(make_evaluator(LinearEvaluator, validation=False))
        )


def test_adam_and_cosine_by_hand():
    """First step of Adam is -lr g / (|g| + eps) per entry; half-way along the cosine the step size is lr / 2.

    The norm of (30, 40) is 50 and is clipped to 5, which does not change the first step's signs or size.
    """
    adam = Adam(Schedule(lr=0.1, steps=4, clip=5.0), 2)
    np.testing.assert_allclose(adam.step(np.array([30.0, -40.0])), [-0.1, 0.1], rtol=1e-6)
    np.testing.assert_allclose(adam.first, [0.3, -0.4], rtol=1e-12)
    adam.step(np.array([3.0, -4.0]))
    np.testing.assert_allclose(adam.step(np.array([3.0, -4.0])), [-0.05, 0.05], rtol=1e-6)


def test_batches_visit_every_row_once_per_pass():
    batches = Batches(10, 4, np.random.default_rng(0))
    rows = [batches.next() for _ in range(6)]
    assert [len(r) for r in rows] == [4, 4, 2, 4, 4, 2]
    assert sorted(np.concatenate(rows[:3])) == list(range(10)) == sorted(np.concatenate(rows[3:]))


def test_divergence_by_hand():
    """KL((1/2, 1/2) || (1/4, 3/4)) = 0.5 ln 2 + 0.5 ln(2/3)."""
    value = divergence(np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]]))
    assert value == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert divergence(np.array([[1.0, 0.0]]), np.array([[1.0, 0.0]])) == 0


def test_invariants():
    evaluator = make_evaluator(MLPEvaluator)
    check_invariants(
        lambda: FedDF(steps=20, check_every=5), evaluator, np.random.default_rng(9).normal(0, 0.5, evaluator.n_params)
    )


def test_refuses():
    for bad in ({"source": "test"}, {"missing": "x"}, {"preset": "x"}, {"lr": 0.0}, {"steps": -1}):
        with pytest.raises(BadParameter):
            FedDF(**bad)
    assert FedDF(preset="code").schedule.steps == 10_000


def test_what_a_preset_sets_cannot_be_given_beside_it():
    assert FedDF(preset="code").schedule.steps == 10_000
    with pytest.raises(BadParameter, match="the preset sets these three"):
        FedDF(preset="code", steps=100)
