"""How many are asked so that enough come back, and how long a server waits after a round that failed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from fedcohort.errors import BadParameter
from fedcohort.rounds.over_selection import BackOff, OverSelection, enough_for


@pytest.mark.parametrize(("lost", "asked"), [(0.0, 100), (0.1, 124), (0.3, 170), (0.5, 248)])
def test_the_published_factors(lost, asked):
    assert enough_for(100, lost) == asked


@pytest.mark.parametrize("size", [1, 2, 7, 40, 2000])
@pytest.mark.parametrize("lost", [0.01, 0.2, 0.6, 0.85])
def test_the_optimum_is_the_smallest_that_does(size, lost):
    """Against SciPy's binomial: m suffices and m - 1 does not."""
    m = enough_for(size, lost)
    assert binom.sf(size - 1, m, 1 - lost) >= 0.999 - 1e-9
    assert m == size or binom.sf(size - 1, m - 1, 1 - lost) < 0.999


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_measured_drop_out_is_enough_and_not_too_much(rate):
    """From knowing nothing: 99.9 % of 4000 rounds, within three standard errors, at most 1.05 times the optimum."""
    rng, asking, reached, asked = np.random.default_rng(int(100 * rate)), OverSelection(), 0, 0
    for _ in range(4000):
        many = asking.ask_for(100)
        came = int(rng.binomial(many, 1 - rate))
        asking.learn(came, many - came)
        reached, asked = reached + (came >= 100), asked + many
    assert reached / 4000 >= 0.999 - 3 * np.sqrt(0.999 * 0.001 / 4000)
    assert asked / 4000 <= 1.05 * enough_for(100, rate)


def test_a_jump_is_made_good_and_forgotten_again():
    rng, asking = np.random.default_rng(0), OverSelection()
    missed = []
    for rate in (0.1, 0.5, 0.1):
        misses = 0
        for _ in range(100):
            many = asking.ask_for(100)
            came = int(rng.binomial(many, 1 - rate))
            asking.learn(came, many - came)
            misses += came < 100
        missed.append(misses)
    assert missed[1] <= 5
    assert asking.ask_for(100) <= 130


def test_rules_are_checked():
    with pytest.raises(BadParameter, match="often"):
        OverSelection("often")
    with pytest.raises(BadParameter, match=r"0\.5"):
        OverSelection(0.5)
    assert OverSelection(1.3).ask_for(10) == 13


def test_pauses_double_up_to_a_limit_and_end_with_success():
    back = BackOff(2.0, 10.0)
    assert [back.pause(True) for _ in range(4)] == [2.0, 4.0, 8.0, 10.0]
    assert back.pause(False) == 0.0
    assert back.pause(True) == 2.0
