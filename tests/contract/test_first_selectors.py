"""The shipped kit on the first three selectors, and proof that each clause can fail."""

from fedcohort.selectors.proportional import Proportional
from fedcohort.selectors.round_robin import RoundRobin
from fedcohort.selectors.uniform import Uniform
from fedcohort.testing import SelectorContract


class TestUniform(SelectorContract):
    def make(self):
        return Uniform()


class TestProportional(SelectorContract):
    def make(self):
        return Proportional()


class TestProportionalWithReplacement(SelectorContract):
    exempt = {"exact_size": "a client drawn twice trains once"}  # noqa: RUF012

    def make(self):
        return Proportional(replacement=True)


class TestRoundRobin(SelectorContract):
    def make(self):
        return RoundRobin()
