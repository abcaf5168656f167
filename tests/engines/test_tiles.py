"""The transformations of `tiles.py`: each against the matrix of its equation, worked out in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from numba import njit

from fedcohort.engines.fused import tiles
from fedcohort.engines.fused.vectors import SLACK

POINTS = [Fraction(p) for p in tiles.POINTS]
SAMPLES = 21  # one whole vector or two, and a remainder


def powers(count):
    """A: powers of the points; of a polynomial's value at infinity only its highest coefficient is left."""
    return [[p**i for i in range(count)] for p in POINTS] + [[Fraction(i == count - 1) for i in range(count)]]


def polynomial(roots):
    """Coefficients, lowest first, of the product of (x - root)."""
    found = [Fraction(1)]
    for root in roots:
        found = [a - root * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def by_others():
    """B^T: row p is zero at all other points."""
    rows = [[*polynomial(POINTS[:i] + POINTS[i + 1 :]), Fraction(0)] for i in range(len(POINTS))]
    return [[-c for c in rows[0]], *rows[1:], polynomial(POINTS)]


def filters(taps):
    """G: powers over the distances from the other points."""
    found = powers(taps)
    for i, here in enumerate(POINTS):
        far = prod(here - other for other in POINTS if other != here)
        found[i] = [c / (far if i else -far) for c in found[i]]
    return found


def transposed(matrix):
    return [list(column) for column in zip(*matrix, strict=True)]


KERNELS = {  # name: the equation's matrix, and what is in the place that is written to
    "at_points": (by_others(), 0.0),
    "from_points": (transposed(by_others()), 2.0),  # adds
    "powers": (powers(tiles.TILE), 0.0),
    "collected": (transposed(powers(tiles.TILE)), 0.0),
    "filtered": (filters(tiles.TAPS), 0.0),
    "unfiltered": (transposed(filters(tiles.TAPS)), 0.0),
}


@pytest.mark.parametrize("name", KERNELS)
def test_matrix_of_a_transformation(name):
    """Unit vectors in, columns out; behind the last sample nothing is changed."""
    matrix, before = KERNELS[name]
    kernel = getattr(tiles, name)

    @njit
    def run(a, b):
        kernel(a, 0, SAMPLES, b, 0, SAMPLES, SAMPLES)

    for i in range(len(matrix[0])):
        a = np.zeros(len(matrix[0]) * SAMPLES + SLACK, np.float32)
        a[i * SAMPLES : (i + 1) * SAMPLES] = np.arange(1, SAMPLES + 1)
        b = np.full(len(matrix) * SAMPLES + SLACK, before, np.float32)
        run(a, b)
        true = np.outer([float(row[i]) for row in matrix], np.arange(1, SAMPLES + 1)) + before
        np.testing.assert_allclose(b[: true.size].reshape(true.shape), true, rtol=1e-6)
        assert (b[true.size :] == before).all()


def test_equations():
    """y, dw and dd of the three equations are a correlation and its gradients, exactly."""
    b, a, g = (np.array(m, dtype=object) for m in (by_others(), powers(tiles.TILE), filters(tiles.TAPS)))
    rng = np.random.default_rng(1)
    d, w, dy = (np.array([Fraction(int(v)) for v in rng.integers(-9, 9, n)], object) for n in (8, 5, 4))
    window = np.array([d[i : i + 5] for i in range(4)], object)
    assert (a.T @ ((g @ w) * (b @ d)) == window @ w).all()
    assert (g.T @ ((a @ dy) * (b @ d)) == dy @ window).all()
    spread = [sum(dy[i] * w[j - i] for i in range(4) if 0 <= j - i < 5) for j in range(8)]
    assert (b.T @ ((g @ w) * (a @ dy)) == np.array(spread, object)).all()
