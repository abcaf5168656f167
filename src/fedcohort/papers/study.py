"""A table or figure of a paper as data: which runs make each cell, what was published, what it is said to show.

A `Study` has cells (a run's keys, what is measured of it, the published number) and claims (this beats that). Nothing
here runs anything; `papers.reproduce` does. `fedcm_table3.py` is a good example to start a new one from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import UnknownName
from fedcohort.experiment.metrics.run_metrics import best
from fedcohort.experiment.metrics.stored_metrics import RunRecord, metric
from fedcohort.experiment.perfect_choice import PERFECT

SCALES = ("smoke", "laptop", "desk", "paper")
SEEDS = {"smoke": 1, "laptop": 6, "desk": 6, "paper": 6}  # by scale: as many as a verdict on the main claim needs
OTHERS = {"laptop": 3, "desk": 3, "paper": 3}  # by scale: seeds of other cells; see `StudyWork.wanted`
PERFECT_ROW = "perfect choice"  # the row of a selector that knows the truth
PERFECT_COHORTS = "perfect choice, even cohorts"  # beside it, where that one asks some clients only: "complete" for all
OURS = "not in the paper: "  # how the words of a claim begin that is our own question
Place = tuple[str, str]  # row, column
Value = float | None
BySeed = NDArray[np.float64]  # one number for each seed
Derivation = Callable[..., BySeed | None]  # from the numbers of each source


class Lookup(Protocol):
    """Other cells, same seed."""

    def __call__(self, place: Place) -> RunRecord:
        """The run of a cell."""
        ...

    def terminal(self, place: Place) -> Value:
        """The terminal accuracy of its run, which results know for longer than runs are kept."""
        ...


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is read off a run: its name, how, whether more is better, and how it is printed.

    One that is `derived` has other cells as its `sources` instead of a run.
    """

    name: str
    compute: Callable[[RunRecord, Lookup], Value]
    better: int = 1
    factor: float = 1.0  # 100 for shares that are printed in percent
    digits: int = 1
    missing: str = "-"
    alone: bool = False  # whether it is read off this run only, and of no other cell's
    sources: tuple[Place, ...] = ()
    derive: Derivation | None = None


def quantity(name: str, *, digits: int = 1) -> Quantity:
    """A metric of `fedcohort compare` that needs no target; accuracies are printed in percent."""
    known = metric(name)
    shares = ("terminal", "best", "early_stop", "final", "drop", "macro_f1", "f1", "coverage")
    factor = 100.0 if name in shares else 1.0
    return Quantity(name, lambda s, _: known.compute(s), known.better, factor, digits, known.missing, alone=True)


def derived(name: str, sources: Iterable[Place], derive: Derivation, **how: Any) -> Quantity:
    """A number from those of other cells, which have runs, over all the seeds that these have in common.

    `derive` takes an array for each source, with a number for each of these seeds, and returns one, all in printed
    units; None: it cannot be had. The cell itself has no run: `Cell(row, column, {}, derived(...))`.

    >>> gain = derived("gain", [("ours", "x"), ("theirs", "x")], np.subtract)
    >>> gain.derive(np.array([5.0, 4.0]), np.array([3.0, 1.0]))
    array([2., 3.])
    """
    return Quantity(name, lambda *_: None, sources=tuple(sources), derive=derive, **how)


def until(
    target: Callable[[RunRecord, Lookup], float | None], what: str = "rounds_to_target", of: str = "accuracy"
) -> Quantity:
    """Rounds (or virtual seconds) until a target that may depend on another cell's run.

    `of` is what has to reach it: accuracy, f1 or macro_f1.
    """
    known = metric(what)

    def compute(record: RunRecord, others: Lookup) -> Value:
        goal = target(record, others)
        if goal is None:
            return None
        return known.compute(replace(record, target=goal, target_metric=of))

    return Quantity(what, compute, -1, digits=0, missing=known.missing)


def common_target(
    places: Iterable[Place], share: float = 1.0, of: str = "accuracy", within: float = 1.0
) -> Callable[[RunRecord, Lookup], Value]:
    """A target that all of these runs reach: a share of the lowest of their best values, same seed.

    With `within` their best in that part of their rounds counts. The best of one run alone would favour that run: it
    reaches it by definition, and another that is as good reaches the highest point of its noise in half of the cases.
    """
    asked = tuple(places)

    def target(record: RunRecord, others: Lookup) -> Value:
        del record
        curves = [others(place).history.column(of) for place in asked]
        found = [best(curve[: max(int(within * curve.size), 1)]) for curve in curves]
        known = [one.value for one in found if one is not None]
        return share * min(known) if len(known) == len(asked) else None

    return target


def share_of_terminal(place: Place, share: float = 1.0) -> Callable[[RunRecord, Lookup], Value]:
    """A target: a share of the terminal accuracy of another cell's run, same seed."""

    def target(record: RunRecord, others: Lookup) -> Value:
        del record
        end = others.terminal(place)
        return None if end is None else share * end

    return target


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a table: its place, the run (keys of a configuration without the seed), and what was published.

    Where the quantity is `derived` from other cells, `run` is empty.
    """

    row: str
    column: str
    run: Mapping[str, Any]
    quantity: Quantity
    published: Value = None

    @property
    def place(self) -> Place:
        """Row and column."""
        return (self.row, self.column)


@dataclass(frozen=True, slots=True)
class Claim:
    """ "Left beats right", as the paper has it: cells paired place by place and seed by seed.

    `margin` is by how much, in printed units (0: at all); with `within` the claim is that the two differ by at most
    that much. `published` is the paper's own difference, left minus right. Without a right side the left one is held
    against its own published numbers.
    """

    words: str
    left: tuple[Place, ...]
    right: tuple[Place, ...] = ()
    published: Value = None
    margin: float = 0.0
    within: float | None = None

    @property
    def ours(self) -> bool:
        """Whether it is our own question, not the paper's claim."""
        return self.words.startswith(OURS)


@dataclass(frozen=True)
class Study:
    """One table, block of a table or figure."""

    id: str  # "flash:table1-noise"
    title: str
    cells: Callable[[str], Sequence[Cell]]  # of a scale
    claims: Callable[[str], Sequence[Claim]]  # the first is the main one: see `verdicts`
    seeds: Mapping[str, int]  # scale -> how many
    departures: Mapping[str, Sequence[str]] = field(default_factory=dict)  # scale -> how it differs from the paper
    average: str = ""  # the heading of a column with the mean of each row, where the paper has one

    @property
    def paper(self) -> str:
        """The part of the id before the colon."""
        return self.id.partition(":")[0]


def beats(words: str, left: Place, right: Place, published: Value = None, margin: float = 0.0) -> Claim:
    """One cell is better than another."""
    return Claim(words, (left,), (right,), published, margin)


def row_beats(
    words: str, left: str, right: str, columns: Sequence[str], published: Value = None, margin: float = 0.0
) -> Claim:
    """One row is better than another on average over these columns."""
    return Claim(words, tuple((left, c) for c in columns), tuple((right, c) for c in columns), published, margin)


def our_own(claims: Iterable[Claim]) -> list[Claim]:
    """The same claims, as questions that the paper does not ask."""
    return [claim if claim.ours else replace(claim, words=f"{OURS}{claim.words}") for claim in claims]


def perfect(rule: str = "even", pool: float = 0.7) -> str:
    """The text of the selector that knows the truth."""
    given = f"rule={rule!r}" if rule == "complete" else f"pool={pool}"
    return f"{PERFECT}({given})"


def of_scale(scale: str, *, smoke: Any, laptop: Any, desk: Any, paper: Any) -> Any:
    """The one of four that belongs to a scale."""
    choices = {"smoke": smoke, "laptop": laptop, "desk": desk, "paper": paper}
    if scale not in choices:
        raise UnknownName.among("scale", scale, SCALES)
    return choices[scale]


def and_also(told: Mapping[str, Sequence[str]], *more: str) -> dict[str, Sequence[str]]:
    """Departures of every scale, and some more.

    >>> and_also({"smoke": ("small",), "paper": ()}, "one seed")
    {'smoke': ('small', 'one seed'), 'paper': ('one seed',)}
    """
    return {scale: (*departures, *more) for scale, departures in told.items()}


def given(text: str, more: str) -> str:
    """ "name(a=1)" with more arguments.

    >>> given("mixed-v1", "clients=20"), given("mixed-v1(clients=20)", "samples=30")
    ('mixed-v1(clients=20)', 'mixed-v1(clients=20, samples=30)')
    """
    if not more:
        return text
    return f"{text[:-1]}, {more})" if text.endswith(")") else f"{text}({more})"
