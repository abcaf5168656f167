"""Keyed random draws: moments, independence of keys, independence of companions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from fedcohort.core import rng

MANY = np.arange(200_000)


def test_generator_depends_on_every_key_and_on_nothing_else():
    keys = [(0, "a"), (0, "a", 0), (0, "a", 0, 0), (0, "a", 1), (0, "b"), (1, "a"), (1, "a", 0), (0, "a", 2**40)]
    first = [float(rng.generator(*key).random()) for key in keys]
    assert len(set(first)) == len(keys)
    assert first == [float(rng.generator(*key).random()) for key in keys]


@pytest.mark.parametrize(
    ("drawn", "law"),
    [
        (rng.uniform_at(1, "u", 3, MANY), scipy_stats.uniform()),
        (rng.exponential_at(1, "e", 3, MANY), scipy_stats.expon()),
        (rng.normal_at(1, "n", 3, MANY), scipy_stats.norm()),
    ],
    ids=["uniform", "exponential", "normal"],
)
def test_laws(drawn, law):
    """Kolmogorov-Smirnov over 200 000 neighbouring clients, and no correlation between neighbours."""
    assert scipy_stats.kstest(drawn, law.cdf).pvalue > 1e-4
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4.5 / np.sqrt(drawn.size)


def test_uniform_is_open():
    u = rng.uniform_at(0, "u", 0, MANY)
    assert u.min() > 0
    assert u.max() < 1


@pytest.mark.parametrize("other", [(2, "s", 3, 0), (1, "t", 3, 0), (1, "s", 4, 0), (1, "s", 3, 1)])
def test_other_keys_are_independent(other):
    seed, stream, index, draw = other
    a, b = rng.uniform_at(1, "s", 3, MANY), rng.uniform_at(seed, stream, index, MANY, draw)
    assert abs(np.corrcoef(a, b)[0, 1]) < 4.5 / np.sqrt(MANY.size)


def test_draws_do_not_depend_on_companions():
    together = rng.normal_at(7, "x", 2, np.array([5, 9, 100]))
    assert rng.normal_at(7, "x", 2, np.array([9]))[0] == together[1]
    assert rng.normal_at(7, "x", 2, np.array([100, 5])).tolist() == together[[2, 0]].tolist()


def test_bits_are_distinct_and_balanced():
    bits = rng.bits_at(0, "b", 0, MANY)
    assert np.unique(bits).size == MANY.size
    share = np.unpackbits(bits.view(np.uint8)).reshape(MANY.size, 64).mean(axis=0)
    assert np.abs(share - 0.5).max() < 4.5 * 0.5 / np.sqrt(MANY.size)
