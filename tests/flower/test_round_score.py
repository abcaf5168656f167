"""The score that selectors learn from in a deployment: higher is better there too."""

import math

import pytest

pytest.importorskip("flwr")

from fedcohort.flower.server.evaluation import RoundScore


@pytest.mark.parametrize(
    ("name", "found", "score"),
    [
        ("accuracy", {"server.accuracy": 0.8, "evaluate.accuracy": 0.1}, 0.8),
        ("loss", {"server.loss": 0.5}, -0.5),
        ("rmse", {"evaluate.rmse": 2}, -2.0),
        ("f1", {"evaluate.f1": 0.25}, 0.25),
    ],
)
def test_losses_are_told_with_their_sign_turned(name, found, score):
    assert RoundScore(name)(found) == score


def test_without_the_metric_there_is_no_score():
    assert math.isnan(RoundScore("loss")({"server.accuracy": 0.8}))
