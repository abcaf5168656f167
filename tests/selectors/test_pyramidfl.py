"""PyramidFL: the contract with and without directives, and both directives by hand."""

from __future__ import annotations

import numpy as np
import pytest

import fedcohort as fc
from fedcohort.errors import BadParameter
from fedcohort.selectors.oort import Oort
from fedcohort.selectors.pyramidfl import PyramidFL
from fedcohort.testing import SelectorContract, SyntheticFederation
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestPyramidFLSelectionOnly(SelectorContract):
    def make(self):
        return PyramidFL(directives=False)


def told(index, clients, norm, seconds, count=100.0):
    clients = np.asarray(clients, np.int64)
    signals = {"utility": np.ones(clients.size), "delta_norm": np.asarray(norm, float)}
    signals["loss_count"] = np.full(clients.size, count)
    return RoundResult(
        index, clients, np.full(clients.size, Outcome.OK, np.int8), np.asarray(seconds, float), Signals(signals)
    )


def ask(size, n, index=0):
    return Round(index, size, np.arange(n), n, profiles=Signals({"samples": np.full(n, 50.0)}))


def test_directives_by_hand():
    """Four clients, all tried: norms 4 3 2 1 with 100 samples, so G = 4 3 2 1 (eq. 1); durations 8 4 2 2.

    Ranks 0 1 2 3: drop = 0.1 + rank * 0.5 / 4 = 0.1, 0.225, 0.35, 0.475 (eq. 2).
    Half of a duration is compute: C = 4 2 1 1, and T = C + (1 - drop) C = 7.6, 3.55, 1.65, 1.525, so D = 7.6.
    With E = 1: floor((D - T) / C) = 0, floor(4.05 / 2) = 2, floor(5.95) = 5, floor(6.075) = 6;
    work = 1, 3, 6 and 7, of which at most 5 passes remain: 1 3 5 5 (eq. 3).
    """
    selector = PyramidFL()
    selector.select(ask(4, 4), np.random.default_rng(0))
    selector.observe(told(0, range(4), [4, 3, 2, 1], [8, 4, 2, 2]))
    cohort = selector.select(ask(4, 4, 1), np.random.default_rng(1))
    order = np.argsort(cohort.clients)
    np.testing.assert_allclose(cohort.why["gradient"][order], [4, 3, 2, 1])
    np.testing.assert_allclose(cohort.directives["drop"][order], [0.1, 0.225, 0.35, 0.475])
    np.testing.assert_allclose(cohort.directives["work"][order], [1, 3, 5, 5])


def test_the_never_tried_work_as_planned_and_rank_by_samples():
    cohort = PyramidFL().select(ask(5, 20), np.random.default_rng(0))
    np.testing.assert_array_equal(cohort.directives["work"], 1.0)
    np.testing.assert_allclose(cohort.why["gradient"], 50.0)
    assert sorted(cohort.directives["drop"]) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_selection_is_oorts():
    ours, oort = PyramidFL(directives=False), Oort(preset="code")
    for index in range(6):
        a = ours.select(ask(4, 12, index), np.random.default_rng(index))
        b = oort.select(ask(4, 12, index), np.random.default_rng(index))
        np.testing.assert_array_equal(a.clients, b.clients)
        assert not a.directives
        result = told(index, np.sort(a.clients), np.ones(4), np.sort(a.clients) + 1.0)
        ours.observe(result)
        oort.observe(result)


def test_directives_reach_training_and_traffic():
    plain = fc.simulate("pyramidfl(directives=False)", task="digits-softmax", rounds=8, cohort_size=6, seed=1)
    full = fc.simulate("pyramidfl", task="digits-softmax", rounds=8, cohort_size=6, seed=1)
    each = [(h.column("bytes_up") / np.maximum(h.column("ok"), 1)).mean() for h in (plain, full)]
    assert each[1] < 0.9 * each[0]


@pytest.mark.parametrize("bad", [{"low": 0.7}, {"high": 1.0}, {"epochs": 0}, {"compute_share": 0.0}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        PyramidFL(**bad)


def test_it_declares_what_its_oort_reads():
    """Preset "fedacs" of Oort reads the training loss instead of the utility."""
    selector = PyramidFL(preset="fedacs")
    assert selector.needs == {"train_loss", "samples", "loss_count", "delta_norm"}
    assert len(SyntheticFederation(12).play(selector, 4, 3)) == 4


def test_work_that_was_ordered_does_not_make_a_client_look_slow():
    """Two fast clients and a slow one, whose speeds do not change: the orders do not either."""
    selector, speed = PyramidFL(low=0.0, high=0.0), np.array([1.0, 1.0, 9.0])
    orders = []
    for index in range(6):
        rnd = Round(index, 3, np.arange(3), 3, 0.0, Signals({"samples": np.full(3, 10)}))
        cohort = selector.select(rnd, np.random.default_rng(index))
        work = np.empty(3)
        work[cohort.clients] = cohort.directives["work"]
        orders.append(work.tolist())
        seconds = speed * (0.5 * work + 0.5)  # half of a duration is computing
        told = {n: np.full(3, 2.0) for n in selector.needs - {"samples"}} | {"samples": np.full(3, 10)}
        selector.observe(RoundResult(index, np.arange(3), np.full(3, Outcome.OK, np.int8), seconds, Signals(told)))
    assert orders[0] == [1.0] * 3
    assert orders[1:] == [[5.0, 5.0, 1.0]] * 5
