"""What the server computes from uploads."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.methods._parts.server_validation import LARGEST_LOSS
from fedcohort.rounds.aggregation import model_gains


class TwoClasses:
    """Logits (p0, p1) for every sample; labels 0, 0, 1."""

    classes = 2

    def __init__(self, size=3):
        self._size = size

    def size(self, split):
        return self._size if split == "validation" else 0

    def labels(self, split):
        return np.array([0, 0, 1])[: self._size]

    def logits(self, params, split):
        return np.repeat(params[:, None, :], self._size, axis=1)


def loss(p):
    """Cross-entropy of (0, 0, 1) at logits p, by its definition."""
    share = np.exp(p) / np.exp(p).sum()
    return -(2 * np.log(share[0]) + np.log(share[1])) / 3


def test_gains_are_falls_of_the_validation_loss():
    base, delta = np.array([0.0, 0.0]), np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    expected = [loss(base) - loss(base + row) for row in delta]
    assert expected[0] > 0 > expected[1]
    assert model_gains(delta, base, TwoClasses()) == pytest.approx(expected, abs=1e-9)


def test_updates_of_several_models_are_set_against_their_own():
    """Asynchronous rounds: one row of base parameters per update."""
    base, delta = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    expected = [loss(b) - loss(b + d) for b, d in zip(base, delta, strict=True)]
    assert model_gains(delta, base, TwoClasses()) == pytest.approx(expected, abs=1e-9)


def test_a_broken_model_loses_all_and_no_data_means_no_number():
    base, delta = np.zeros(2), np.array([[np.inf, 0.0], [0.0, 0.0]])
    found = model_gains(delta, base, TwoClasses())
    assert found[0] < -0.9 * LARGEST_LOSS
    assert found[1] == 0
    assert np.isnan(model_gains(delta, base, None)).all()
    assert np.isnan(model_gains(delta, base, TwoClasses(size=0))).all()
    assert model_gains(np.empty((0, 2)), base, TwoClasses()).size == 0
