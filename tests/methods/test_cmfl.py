"""CMFL: relevance by hand, both references, schedules, memory."""

from __future__ import annotations

import numpy as np
import pytest
from linear_world import check_invariants, check_resume, context_of, model_of, updates_of

from fedcohort.errors import BadParameter, StateMismatch
from fedcohort.methods.cmfl import CMFL, relevance
from fedcohort.methods.fedavg import FedAvg

U = np.array([1.0, -1.0, 2.0, 0.0, 0.5])


def test_relevance_by_hand():
    """Reference signs (+ - + 0 +).

    row 0 (+ - + 0 +): all five agree                              drop: 4/4,  agree: 5/5
    row 1 (+ + - 0 -): one of the four agrees, and the zero        drop: 1/4,  agree: 2/5
    row 2 (+ - 0 1 +): three agree; a zero against + is a no, and so is + against 0: 3/5 both ways
    row 3 (0 0 0 0 0): only the zero agrees                        drop: 0/4,  agree: 1/5
    """
    delta = np.array([[3, -2, 1, 0, 1], [1, 1, -1, 0, -1], [1, -1, 0, 1, 1], [0, 0, 0, 0, 0]], np.float32)
    np.testing.assert_allclose(relevance(delta, U, drop_zeros=True), [1, 0.25, 0.6, 0])
    np.testing.assert_allclose(relevance(delta, U, drop_zeros=False), [1, 0.4, 0.6, 0.2])
    assert relevance(np.zeros((1, 2)), np.zeros(2), drop_zeros=True).tolist() == [1.0]


def test_first_round_accepts_all_and_the_second_compares_with_its_movement():
    """Round 0: everybody, the mean moves by (+1, +1, -1, -1). Round 1: v = 0.8 / sqrt 2 = 0.5657.

    Clients agree in 4, 3, 2 and 0 of 4 signs: 1, 0.75, 0.5, 0. The first two stay.
    """
    method, model = CMFL(), model_of(np.zeros(4))
    first = method.aggregate(model, updates_of([[1, 1, -1, -1], [1, 1, -1, -1], [1, 1, -1, -1]]), context_of())
    assert first.accepted.all()
    np.testing.assert_allclose(first.model.params, [1, 1, -1, -1])
    delta = np.array([[2, 2, -2, -2], [2, 2, -2, 2], [2, 2, 2, 2], [-2, -2, 2, 2]], np.float32)
    second = method.aggregate(first.model, updates_of(delta), context_of(index=1))
    assert second.accepted.tolist() == [True, True, False, False]
    np.testing.assert_allclose(second.model.params, first.model.params + delta[:2].mean(axis=0))
    assert second.info["cmfl_threshold"] == pytest.approx(0.8 / np.sqrt(2))
    np.testing.assert_allclose(method.state.previous, [2, 2, -2, 0])


def test_threshold_falls_with_the_square_root_of_the_round():
    method = CMFL(v0=0.6)
    method.state.previous = np.ones(10, np.float32)
    delta = np.where(np.arange(10) < 3, 1.0, -1.0)[None].repeat(2, axis=0)  # relevance 0.3
    both = np.concatenate([delta, np.ones((1, 10))])
    for index, kept in ((0, 1), (1, 1), (3, 3), (8, 3)):  # 0.6, 0.424, 0.3, 0.2
        mask, info = method.choose(model_of(np.zeros(10)), updates_of(both), context_of(index=index))
        assert mask.sum() == kept
        assert info["cmfl_kept"] == kept
    constant = CMFL(v0=0.6, schedule="constant")
    constant.state.previous = np.ones(10, np.float32)
    assert constant.choose(model_of(np.zeros(10)), updates_of(both), context_of(index=99))[0].sum() == 1


def test_fedacs_preset():
    """Mean of this round: (1, 0.2, -0.4) -> signs + + -; agreements 3/3, 2/3, 1/3; v = 0.7 keeps the first alone."""
    delta = np.array([[1, 1, -1], [1, 1, 1], [1, -1.4, -1.2]], np.float32)
    method = CMFL(preset="fedacs")
    assert (method.reference, method.schedule, method.v0, method.zeros) == ("current_mean", "constant", 0.7, "agree")
    assert isinstance(method.inner, FedAvg)
    assert method.inner.form == "uniform"
    done = method.aggregate(model_of(np.zeros(3)), updates_of(delta), context_of())
    assert done.accepted.tolist() == [True, False, False]
    assert CMFL(preset="fedacs", v0=0.5).v0 == 0.5
    assert method.state_dict()["previous"].size == 0


def test_nobody_relevant_keeps_the_best():
    method = CMFL(v0=1.0, schedule="constant")
    method.state.previous = np.ones(4, np.float32)
    delta = np.array([[-1, -1, -1, -1], [1, 1, 1, -1], [1, 1, -1, 1]], np.float32)
    done = method.aggregate(model_of(np.zeros(4)), updates_of(delta), context_of(index=4))
    assert done.accepted.tolist() == [False, True, False]


def test_a_round_without_updates_keeps_the_memory():
    method = CMFL()
    method.state.previous = np.ones(4, np.float32)
    method.aggregate(model_of(np.zeros(4)), updates_of(np.zeros((0, 4))), context_of())
    np.testing.assert_array_equal(method.state.previous, np.ones(4))


@pytest.mark.parametrize("preset", [None, "fedacs"])
def test_invariants_and_resume(preset):
    params = np.random.default_rng(0).normal(0, 1, 9)
    check_invariants(lambda: CMFL(preset=preset), None, params)
    check_resume(lambda: CMFL(preset=preset), None, params)


def test_nested_state_and_refusals():
    method = CMFL(inner=CMFL())
    assert set(method.state_dict()) == {"previous", "inner.previous"}
    method.load_state_dict({"previous": np.ones(2, np.float32), "inner.previous": np.zeros(2, np.float32)})
    assert method.state.previous.tolist() == [1, 1]
    for bad in ({}, {"previous": np.ones(2)}, {"previous": np.ones(2, np.float32), "other": np.ones(1)}):
        with pytest.raises(StateMismatch):
            CMFL().load_state_dict(bad)
    for bad in ({"preset": "x"}, {"reference": "x"}, {"schedule": "x"}, {"zeros": "x"}, {"v0": 1.5}):
        with pytest.raises(BadParameter):
            CMFL(**bad)
