"""FedProx whose pull follows the validation loss: eq. 4 by hand, and what it needs."""

import numpy as np
import pytest
from linear_world import LinearEvaluator

from fedcohort.errors import BadParameter
from fedcohort.methods.fedprox import FedProx
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Plan, Updates

ONE = LinearEvaluator(1, 2, validation=(np.ones((1, 1), np.float32), np.array([0])))  # loss = ln(1 + e^(w1 - w0))


def pulls(method: FedProx, moves: list[float], evaluator=ONE) -> list[float]:
    """The pull of each round while w0 moves by these; a positive move lowers the loss."""
    model, seen = Model(np.zeros(2, np.float32)), []
    for t, move in enumerate(moves):
        plan = method.prepare(Plan(), model, np.arange(1))
        seen.append(round(plan.prox, 6))
        updates = Updates(np.arange(1), np.array([[move, 0.0]], np.float32), np.ones(1), np.ones(1, np.int64))
        context = Aggregation(t, plan, 1, np.ones(1, np.int64), np.arange(1), server_evaluator=evaluator)
        model = method.aggregate(model, updates, context).model
    return [*seen, round(method.prepare(Plan(), model, np.arange(1)).prox, 6)]


def test_a_rise_adds_and_five_falls_take_away():
    """Round 0 only measures; a rise, a rise, five falls, five more, then nothing below zero; no change, no step."""
    moves = [0.0, -1.0, -1.0, *[0.5] * 5, *[0.5] * 5, *[0.5] * 5, 0.0, 0.5]
    found = pulls(FedProx(mu=0.1, adapt=0.1), moves)
    assert found == [0.1, 0.1, 0.2, *[0.3] * 5, *[0.2] * 5, *[0.1] * 5, 0.0, 0.0, 0.0]


def test_a_rise_begins_the_count_of_falls_anew():
    found = pulls(FedProx(mu=0.2, adapt=0.05), [0.0, 0.5, 0.5, 0.5, 0.5, -0.5, 0.5, 0.5, 0.5, 0.5])
    assert found[-1] == 0.25


def test_a_fixed_pull_stays_and_has_no_state():
    method = FedProx(mu=0.3)
    assert set(pulls(method, [0.0, -1.0, -1.0], evaluator=None)) == {0.3}
    assert method.state_dict() == {}


def test_the_pull_is_saved_and_goes_on():
    one, other = FedProx(mu=0.1, adapt=0.1), FedProx(mu=0.1, adapt=0.1)
    pulls(one, [0.0, -1.0, -1.0, 0.5, 0.5])
    other.load_state_dict(one.state_dict())
    assert pulls(one, [0.0, 0.5, -2.0]) == pulls(other, [0.0, 0.5, -2.0])


def test_a_model_without_a_finite_loss_counts_as_a_rise():
    assert pulls(FedProx(mu=0.0, adapt=0.5), [0.0, float(np.float32(-3e38)), 1.0])[2] == 0.5


def test_without_validation_data_it_says_what_to_do():
    with pytest.raises(BadParameter, match=r"fedprox\(adapt=\.\.\.\).*validation"):
        pulls(FedProx(adapt=0.1), [0.0], evaluator=None)
