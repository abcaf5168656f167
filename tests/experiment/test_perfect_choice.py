"""The choice by the truth: by hand on a small world, saved and loaded, refused where nobody knows the truth."""

from __future__ import annotations

import numpy as np
import pytest

import fedcohort as fc
from fedcohort.core.rng import generator
from fedcohort.errors import ContractError
from fedcohort.experiment.perfect_choice import PERFECT, Informed, PerfectChoice
from fedcohort.selectors import Uniform
from fedcohort.types import Outcome, Round, RoundResult, Signals
from fedcohort.worlds.built_world import build_world
from fedcohort.worlds.catalogue import get

LABELS = np.arange(4000) * 7 % 10


def informed(rule="even", pool=0.7, name="flash-noniid30-v2"):
    world = build_world(get(name), LABELS, seed=3)
    selector = PerfectChoice(rule=rule, pool=pool)
    selector.inform(world)
    return selector, world


def a_round(size=10, index=0):
    return Round(index, size, np.arange(50), 50, 0.0, Signals({}), None)


def test_nobody_skewed_is_asked_where_seven_of_ten_are_even():
    """30 % of FLASH's clients have 80 % of one class: misfit 0.7; the others have every class alike: about 0."""
    selector, _ = informed()
    skewed = selector.misfit() > 0.35
    assert skewed.sum() == 15
    assert np.allclose(selector.misfit()[skewed], 0.7, atol=0.05)
    for t in range(20):
        chosen = selector.select(a_round(index=t), generator(0, "t", t)).clients
        assert np.unique(chosen).size == 10
        assert not skewed[chosen].any()


def test_wrong_labels_count():
    selector, _ = informed(pool=0.2, name="flash-noise15-v2")
    chosen = selector.select(a_round(), generator(0, "t", 0)).clients
    assert selector.wrong[chosen].max() <= np.sort(selector.wrong)[10]


def test_complete_cohorts_have_everybodys_mix():
    """Clients of two labels each: a random ten lacks labels, the complete ten has nearly everybody's mix."""
    world = build_world(get("flashrl-noniid-label-v1", clients=50), LABELS, seed=3)
    selector = PerfectChoice(rule="complete")
    selector.inform(world)

    def gap(clients):
        mix = selector.mix[clients].T @ selector.samples[clients]
        return np.abs(mix / mix.sum() - selector.whole).sum()

    mine = gap(selector.select(a_round(), generator(0, "t", 0)).clients)
    random = np.mean([gap(Uniform().select(a_round(), generator(0, "t", t)).clients) for t in range(50)])
    assert mine < 0.5 * random


def test_state_is_saved_and_the_selector_is_told_the_world_by_a_run():
    text = f"{PERFECT}(rule='complete')"
    keys = {"task": "digits-mlp(epochs=1)", "world": "flash-noise15-v2(clients=20)", "cohort_size": 4}
    whole = fc.simulate(text, rounds=4, **keys)
    first, _ = informed("complete")
    first.observe(_result())
    other, _ = informed("complete")
    other.load_state_dict(first.state_dict())
    rng = generator(0, "t", 1)
    assert np.array_equal(
        first.select(a_round(index=1), rng).clients, other.select(a_round(index=1), generator(0, "t", 1)).clients
    )
    assert [c.size for c in whole.cohorts] == [4] * 4
    assert isinstance(first, Informed)
    assert not isinstance(Uniform(), Informed)


def _result():
    who = np.arange(10)
    return RoundResult(0, who, np.full(10, Outcome.OK, np.int8), np.ones(10), Signals({}))


def test_without_the_truth_it_says_so():
    with pytest.raises(ContractError, match="only a simulated run can tell"):
        PerfectChoice().select(a_round(), generator(0, "t", 0))
