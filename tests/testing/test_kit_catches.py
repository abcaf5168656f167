"""Each clause of the selector contract can fail: broken selectors, and the test that must catch each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from fedcohort.core import draw
from fedcohort.core.table import Table, column
from fedcohort.errors import FedcohortError
from fedcohort.testing import SelectorContract
from fedcohort.types import Cohort


@dataclass
class State(Table):
    value: np.ndarray = column(0.0)
    total: float = 0.0


class Greedy:
    """A sound selector: the highest last utility, the unknown first, a fifth at random."""

    needs = frozenset({"utility"})
    exempt: Mapping[str, str] = {}

    def __init__(self):
        self.state = State()

    def select(self, rnd, rng):
        self.state.grow(rnd.population)
        return Cohort(self.pick(rnd, rng))

    def pick(self, rnd, rng):
        value = self.state.value[rnd.available]
        score = np.where(value > 0, value, np.inf)
        anybody = draw.uniform(rnd.available, rnd.size // 5, rng)
        rest = np.flatnonzero(~np.isin(rnd.available, anybody))
        best = rnd.available[rest[draw.top(score[rest], rnd.size - anybody.size, rng)]]
        return np.concatenate([anybody, best])

    def observe(self, result):
        use = result.replied & np.isfinite(result.signals["utility"])
        self.state.value[result.clients[use]] = result.signals["utility"][use]

    def state_dict(self):
        return self.state.to_arrays()

    def load_state_dict(self, arrays):
        self.state.load_arrays(arrays)


class ByIndex(Greedy):
    def pick(self, rnd, rng):
        score = self.state.value[rnd.available]
        return rnd.available[np.argsort(-np.where(score > 0, score, 1e9), kind="stable")[: rnd.size]]


class PositionsNotSlots(Greedy):
    def pick(self, rnd, rng):
        return rng.choice(rnd.available.size, min(rnd.size, rnd.available.size), replace=False)


class OneTooFew(Greedy):
    def pick(self, rnd, rng):
        return super().pick(rnd, rng)[1:]


class LearnsInSelect(Greedy):
    def pick(self, rnd, rng):
        self.state.total += 1.0
        return super().pick(rnd, rng)


class KeepsAGenerator(Greedy):
    def __init__(self):
        super().__init__()
        self.own = np.random.default_rng()

    def pick(self, rnd, rng):
        return draw.uniform(rnd.available, rnd.size, self.own)


class SeedsTheGlobal(Greedy):
    def __init__(self):
        super().__init__()
        random.seed(1)


class SeedsNumpy(Greedy):
    def __init__(self):
        super().__init__()
        np.random.seed(1)  # noqa: NPY002


class ForgetsAColumn(Greedy):
    def state_dict(self):
        return {"total": np.array(self.state.total)}

    def load_state_dict(self, arrays):
        self.state.total = float(arrays["total"])


class SharesItsState(Greedy):
    def state_dict(self):
        return {"value": self.state.value, "total": np.array(self.state.total)}


class SavesObjects(Greedy):
    def state_dict(self):
        return {**super().state_dict(), "names": np.array(["a", None], object)}


class TakesAnything(Greedy):
    def load_state_dict(self, arrays):
        self.state.value = np.array(arrays.get("value", np.zeros(0, np.float32))).reshape(-1)
        self.state.total = float(np.reshape(arrays.get("total", 0.0), -1)[0])


class BelievesEverything(Greedy):
    def observe(self, result):
        self.state.value[result.clients] = result.signals["utility"]


class DiesOfSilence(Greedy):
    def observe(self, result):
        super().observe(result)
        self.state.total = 1.0 / float(result.ok.sum())


class FixedPopulation(Greedy):
    def select(self, rnd, rng):
        if self.state.rows == 0:
            self.state.grow(rnd.population)
        return Cohort(self.pick(rnd, rng))


class ReadsUndeclared(Greedy):
    def observe(self, result):
        super().observe(result)
        _ = result.signals["train_loss"]


class PeeksAtColumns(Greedy):
    def observe(self, result):
        super().observe(result)
        if "train_loss" in result.signals.columns():
            self.state.value[result.clients] = np.arange(result.clients.size)


class PrefersTheWorse(Greedy):
    def observe(self, result):
        use = result.replied & np.isfinite(result.signals["utility"])
        self.state.value[result.clients[use]] = 1.0 / result.signals["utility"][use]


class LikesLowSlots(Greedy):
    def pick(self, rnd, rng):
        return rnd.available[draw.weighted(1.0 + 4.0 / (1.0 + rnd.available), rnd.size, rng)]


CAUGHT = [
    (PositionsNotSlots, "test_cohorts_are_unique_available_and_of_the_right_size"),
    (OneTooFew, "test_cohorts_are_unique_available_and_of_the_right_size"),
    (LearnsInSelect, "test_select_is_repeatable_and_changes_nothing"),
    (KeepsAGenerator, "test_select_is_repeatable_and_changes_nothing"),
    (KeepsAGenerator, "test_two_objects_make_the_same_run"),
    (ByIndex, "test_other_seeds_choose_differently"),
    (SeedsTheGlobal, "test_global_generators_are_untouched"),
    (SeedsNumpy, "test_global_generators_are_untouched"),
    (ForgetsAColumn, "test_save_and_load_give_the_same_future"),
    (SharesItsState, "test_state_is_plain_arrays"),
    (SavesObjects, "test_state_is_plain_arrays"),
    (TakesAnything, "test_load_refuses_what_does_not_fit"),
    (BelievesEverything, "test_nan_and_infinity_never_enter_state"),
    (DiesOfSilence, "test_everybody_fails_and_comes_back"),
    (FixedPopulation, "test_population_may_grow"),
    (ReadsUndeclared, "test_only_declared_signals_are_used"),
    (PeeksAtColumns, "test_only_declared_signals_are_used"),
    (ByIndex, "test_identical_clients_are_chosen_uniformly"),
    (ByIndex, "test_slots_carry_no_meaning"),
    (LikesLowSlots, "test_identical_clients_are_chosen_uniformly"),
    (PrefersTheWorse, "test_prefers_the_better_half"),
]


def contract(cls):
    return type(f"Test{cls.__name__}", (SelectorContract,), {"make": lambda self: cls(), "runs": 300})()


class TestGreedy(SelectorContract):
    """The sound one passes everything, so that what follows is caught for its fault alone."""

    def make(self):
        return Greedy()


@pytest.mark.parametrize(("cls", "clause"), CAUGHT, ids=[f"{c.__name__}-{t[5:]}" for c, t in CAUGHT])
def test_the_kit_catches(cls, clause):
    caught = (AssertionError, FedcohortError, IndexError, ZeroDivisionError, ValueError)
    state = random.getstate()
    try:
        with pytest.raises(caught):
            getattr(contract(cls), clause)()
    finally:
        random.setstate(state)


def test_exemptions_need_a_known_clause_and_a_reason():
    class Unknown(SelectorContract):
        exempt = {"no_such_clause": "because"}  # noqa: RUF012

        def make(self):
            return Greedy()

    class Silent(Unknown):
        exempt = {"learns": " "}  # noqa: RUF012

    for contract in (Unknown(), Silent()):
        with pytest.raises(AssertionError):
            contract.test_needs_are_in_the_catalogue()


def test_an_exempt_clause_is_skipped_with_its_reason():
    import unittest

    class Lazy(SelectorContract):
        exempt = {"learns": "only for show"}  # noqa: RUF012

        def make(self):
            return Greedy()

    with pytest.raises(unittest.SkipTest, match="only for show"):
        Lazy().test_prefers_the_better_half()
