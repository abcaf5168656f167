"""The kit's statistical clauses over some sixty variants: a third of its own number of runs is enough to see a slip."""

from fedcohort.testing import SelectorContract

SelectorContract.runs = 40
