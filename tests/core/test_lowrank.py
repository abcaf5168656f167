"""Low-rank Gaussians against dense linear algebra and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.core import lowrank


def setting(seed=0, d=4, n=9, e=5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((d, n)), rng.standard_normal((e, n)), rng.random((e, n)) < 0.7, rng.uniform(0.2, 1, e)


@pytest.mark.parametrize("noise", [0.01, 0.3, 2.0])
def test_woodbury_is_the_dense_inverse(noise):
    x, y, _, _ = setting()
    dense = x.T @ x + noise**2 * np.eye(9)
    np.testing.assert_allclose(lowrank.solve(x, noise, y.T), np.linalg.solve(dense, y.T), rtol=1e-6)
    assert lowrank.logdet(x, noise) == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-9)


def test_more_directions_than_clients():
    x = np.random.default_rng(1).standard_normal((6, 3))
    assert lowrank.logdet(x, 0.5) == pytest.approx(np.linalg.slogdet(x.T @ x + 0.25 * np.eye(3))[1])


def test_log_likelihood_is_the_dense_one_on_what_was_observed():
    x, y, mask, weight = setting()
    value, _ = lowrank.log_likelihood(x, 0.3, y, mask, weight)
    want = 0.0
    for row, seen, w in zip(y, mask, weight, strict=True):
        s = (x[:, seen].T @ x[:, seen]) + 0.09 * np.eye(seen.sum())
        z = row[seen]
        want -= 0.5 * w * (z @ np.linalg.solve(s, z) + np.linalg.slogdet(2 * np.pi * s)[1])
    assert value == pytest.approx(want, rel=1e-9)


def test_gradient_by_finite_differences():
    x, y, mask, weight = setting(3)
    _, gradient = lowrank.log_likelihood(x, 0.3, y, mask, weight)
    for i, j in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i, j] += 1e-5
        down[i, j] -= 1e-5
        slope = (
            lowrank.log_likelihood(up, 0.3, y, mask, weight)[0] - lowrank.log_likelihood(down, 0.3, y, mask, weight)[0]
        )
        assert gradient[i, j] == pytest.approx(slope / 2e-5, rel=1e-4, abs=1e-4)
