"""The transformations of `tiles.py`: each against the matrix of its equation, worked out in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from numba import njit

from fedcohort.engines.fused import tiles
from fedcohort.engines.fused.vectors import SLACK

SAMPLES = 21  # one whole vector or two, and a remainder


def points_of(taps):
    return [Fraction(0), *(Fraction(sign * a) for a in tiles.PAIRS[taps] for sign in (1, -1))]


def powers(points, count):
    """A: powers of the points; of a polynomial's value at infinity only its highest coefficient is left."""
    return [[p**i for i in range(count)] for p in points] + [[Fraction(i == count - 1) for i in range(count)]]


def polynomial(roots):
    """Coefficients, lowest first, of the product of (x - root)."""
    found = [Fraction(1)]
    for root in roots:
        found = [a - root * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def matrices(taps):
    """A, B^T (row p is zero at all other points) and G (powers over the distances from the other points)."""
    points = points_of(taps)
    others = [[q for q in points if q != p] for p in points]
    b = [*([*polynomial(rest), Fraction(0)] for rest in others), polynomial(points)]
    g = powers(points, taps)
    g[:-1] = [[c / prod(p - q for q in rest) for c in row] for p, rest, row in zip(points, others, g[:-1], strict=True)]
    return tuple(np.array(m, dtype=object) for m in (powers(points, tiles.TILE), b, g))


def equation(name, taps):
    a, b, g = matrices(taps)
    return {"at_points": b, "from_points": b.T, "powers": a, "collected": a.T, "filtered": g, "unfiltered": g.T}[name]


@pytest.mark.parametrize("taps", tiles.PAIRS)
@pytest.mark.parametrize("name", ["at_points", "from_points", "powers", "collected", "filtered", "unfiltered"])
def test_matrix_of_a_transformation(name, taps):
    """Unit vectors in, columns out; behind the last sample nothing is changed."""
    matrix, before = equation(name, taps), 2.0 if name == "from_points" else 0.0  # which adds to what is there
    kernel = getattr(tiles, f"{name}{taps}")

    @njit
    def run(a, b):
        kernel(a, 0, SAMPLES, b, 0, SAMPLES, SAMPLES)

    outputs, inputs = matrix.shape
    for i in range(inputs):
        a = np.zeros(inputs * SAMPLES + SLACK, np.float32)
        a[i * SAMPLES : (i + 1) * SAMPLES] = np.arange(1, SAMPLES + 1)
        b = np.full(outputs * SAMPLES + SLACK, before, np.float32)
        run(a, b)
        true = np.outer(matrix[:, i].astype(float), np.arange(1, SAMPLES + 1)) + before
        np.testing.assert_allclose(b[: true.size].reshape(true.shape), true, rtol=1e-6)
        assert (b[true.size :] == before).all()


@pytest.mark.parametrize("taps", tiles.PAIRS)
def test_equations(taps):
    """y, dw and dd of the three equations are a correlation and its gradients, exactly."""
    a, b, g = matrices(taps)
    rng = np.random.default_rng(1)
    d, w, dy = (np.array([Fraction(int(v)) for v in rng.integers(-9, 9, n)], object) for n in (taps + 3, taps, 4))
    window = np.array([d[i : i + taps] for i in range(4)], object)
    assert (a.T @ ((g @ w) * (b @ d)) == window @ w).all()
    assert (g.T @ ((a @ dy) * (b @ d)) == dy @ window).all()
    spread = [sum(dy[i] * w[j - i] for i in range(4) if 0 <= j - i < taps) for j in range(taps + 3)]
    assert (b.T @ ((g @ w) * (a @ dy)) == np.array(spread, object)).all()
