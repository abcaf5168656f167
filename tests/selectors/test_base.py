"""The base of selectors: what a third party has to write, how state is saved, and that a refusal changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fedcohort.core import draw
from fedcohort.core.table import Table, TableError, column
from fedcohort.protocols import Exempting, Prober, Selector
from fedcohort.selectors.base import NoState, StatefulSelector
from fedcohort.selectors.oort import Oort
from fedcohort.selectors.uniform import Uniform
from fedcohort.testing import SelectorContract, SyntheticFederation
from fedcohort.types import Cohort


@dataclass
class Turns(Table):
    times: np.ndarray = column(0, np.int64)
    rounds: int = 0


class LeastAsked(StatefulSelector[Turns]):
    """What a third party writes: `select` and `observe`, nothing else."""

    exempt = {"learns": "asks everybody equally often"}  # noqa: RUF012

    def select(self, rnd, rng):
        self.state.grow(rnd.population)
        return Cohort(rnd.available[draw.top(-self.state.times[rnd.available].astype(np.float64), rnd.size, rng)])

    def observe(self, result):
        self.state.grow_for(result.clients)
        self.state.times[result.clients] += 1
        self.state.rounds += 1


class Committee(LeastAsked):
    """Holds two selectors; inherits the state of its base."""

    nested = ("first", "second")

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Oort(), Committee.Inner()
        self.needs = self.first.needs

    class Inner(LeastAsked):
        pass

    def observe(self, result):
        for one in (self.first, self.second):
            one.observe(result)
        super().observe(result)


class PlainSelector:
    """No base, no `exempt`: the protocol is enough."""

    needs = frozenset()

    def select(self, rnd, rng):
        return Cohort(draw.uniform(rnd.available, rnd.size, rng))

    def observe(self, result):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, arrays):
        if arrays:
            raise TableError(f"unknown keys {sorted(arrays)}")


class TestLeastAsked(SelectorContract):
    def make(self):
        return LeastAsked()


class TestCommittee(SelectorContract):
    def make(self):
        return Committee()


class TestPlainSelector(SelectorContract):
    exempt = {"learns": "draws uniformly at random"}  # noqa: RUF012

    def make(self):
        return PlainSelector()


def test_every_kind_counts_as_a_selector():
    assert all(isinstance(made, Selector) for made in (LeastAsked(), Committee(), PlainSelector(), Uniform()))
    assert not isinstance(LeastAsked(), Prober)
    assert isinstance(LeastAsked(), Exempting)
    assert not isinstance(PlainSelector(), Exempting)


def test_the_state_is_made_from_the_brackets():
    assert isinstance(LeastAsked().state, Turns)
    assert isinstance(Committee.Inner().state, Turns)  # inherited
    assert isinstance(Uniform().state, NoState)
    assert LeastAsked().state is not LeastAsked().state


def test_what_is_missing_is_named():
    class Half(StatefulSelector[Turns]):
        def select(self, rnd, rng):
            return Cohort(rnd.available[: rnd.size])

    with pytest.raises(TypeError, match="observe"):
        Half()


def test_nested_state_comes_after_its_own_under_the_attribute_name():
    keys = list(Committee().state_dict())
    assert keys[:2] == ["times", "rounds"]
    assert keys[2:-2] == [f"first.{key}" for key in Oort().state_dict()]
    assert keys[-2:] == ["second.times", "second.rounds"]


@pytest.mark.parametrize("broken", ["times", "first.utility", "second.times"])
def test_a_refusal_by_any_part_changes_none(broken):
    one, other = Committee(), Committee()
    SyntheticFederation(12).play(one, 4, 3)
    SyntheticFederation(12).play(other, 7, 3)
    before = other.state_dict()
    with pytest.raises(TableError):
        other.load_state_dict({**one.state_dict(), broken: np.zeros((2, 2, 2))})
    assert all(np.array_equal(before[key], value) for key, value in other.state_dict().items())
    other.load_state_dict(one.state_dict())
    assert other.state.rounds == other.second.state.rounds == 4


def test_a_constructor_of_ones_own_need_not_call_the_base():
    class Mine(StatefulSelector):
        def __init__(self, a=1):
            self.a = a

        def select(self, rnd, rng):
            return Cohort(rnd.available[: rnd.size])

        def observe(self, result): ...

    mine = Mine(a=2)
    assert mine.a == 2
    assert mine.state_dict() == {}
    mine.load_state_dict({})
