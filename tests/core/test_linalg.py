"""Ridge sums, sampling and widths against closed forms and naive loops."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.core import linalg
from fedcohort.core.rng import generator


def test_ridge_estimate_equals_the_normal_equations():
    rng = generator(0, "ridge")
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    V, b = 2.0 * np.eye(3), np.zeros(3)
    for part in range(0, 30, 7):
        V, b = linalg.accumulate(V, b, x[part : part + 7], y[part : part + 7], ridge=2.0)
    naive = np.linalg.inv(x.T @ x + 2.0 * np.eye(3)) @ x.T @ y
    assert linalg.solve(V, b) == pytest.approx(naive, abs=1e-12)


def test_forgetting_keeps_the_prior():
    V, b = linalg.accumulate(5.0 * np.eye(2), np.ones(2), np.empty((0, 2)), np.empty(0), ridge=1.0, keep=0.5)
    assert pytest.approx(3.0 * np.eye(2)) == V  # 0.5 * 5 + 0.5 * 1
    assert b == pytest.approx([0.5, 0.5])


def test_samples_have_the_posterior_mean_and_covariance():
    gram, rng = np.array([[4.0, 1.0], [1.0, 2.0]]), generator(1, "sample")
    draws = np.array([linalg.sample(np.array([1.0, -1.0]), gram, 0.5, rng) for _ in range(8000)])
    assert draws.mean(axis=0) == pytest.approx([1.0, -1.0], abs=0.02)
    assert np.cov(draws.T) == pytest.approx(0.25 * np.linalg.inv(gram), abs=0.006)


def test_norms_are_widths():
    gram = np.array([[4.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])
    x = generator(2, "widths").normal(size=(5, 3))
    naive = [np.sqrt(row @ np.linalg.inv(gram) @ row) for row in x]
    assert linalg.norms(x, linalg.whitener(gram)) == pytest.approx(naive, rel=1e-9)


def test_root_survives_a_singular_matrix():
    gram = np.ones((3, 3))
    low = linalg.root(gram)
    assert low @ low.T == pytest.approx(gram, abs=1e-5)
