"""Schedules by round as texts, ROUND:VALUE with commas between: cohort sizes, and factors on the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Annotated, TypeVar

from fedcohort.core.constraints import Text
from fedcohort.errors import check, shown

EVERYBODY = "all"  # in a schedule of sizes
SIZES, FACTORS = "'0:all, 1:10'", "'50:0.1, 75:0.01'"
Sizes = Annotated[str, Text(SIZES)]
Factors = Annotated[str, Text(FACTORS)]
LONGEST = 20  # characters of a number
T = TypeVar("T")


@cache
def sizes(schedule: str) -> tuple[tuple[int, int | None], ...]:
    """A schedule of cohort sizes as (first round, size) in order; a size of None is everybody.

    >>> sizes("0:All, 1:10, 50:20")
    ((0, None), (1, 10), (50, 20))
    """
    rule = "ROUND:SIZE with a round from 0 and a size of at least 1, or all"
    entries = _entries("size_schedule", schedule.lower(), lambda s: s == EVERYBODY or _positive(s, int), rule, SIZES)
    return tuple((first, None if size == EVERYBODY else int(size)) for first, size in entries)


@cache
def factors(schedule: str) -> tuple[tuple[int, float], ...]:
    """A schedule of factors as (first round, factor) in order.

    >>> factors("50:0.1, 75:0.01")
    ((50, 0.1), (75, 0.01))
    """
    rule = "ROUND:FACTOR with a round from 0 and a factor above 0"
    entries = _entries("lr_schedule", schedule, lambda s: _positive(s, float), rule, FACTORS)
    return tuple((first, float(factor)) for first, factor in entries)


def written(entries: tuple[tuple[int, object], ...]) -> str:
    """One way to write a schedule.

    >>> written(sizes("0:all,1:  10")), written(factors("50:0.10"))
    ('0:all, 1:10', '50:0.1')
    """
    return ", ".join(f"{first}:{EVERYBODY if value is None else value}" for first, value in entries)


def in_force(entries: tuple[tuple[int, T], ...], index: int, before: T) -> T:
    """What a schedule says for round `index`; `before` holds until its first round.

    >>> [in_force(factors("50:0.1, 75:0.01"), index, 1.0) for index in (49, 50, 80)]
    [1.0, 0.1, 0.01]
    """
    return next((value for first, value in reversed(entries) if first <= index), before)


def _entries(key: str, schedule: str, fine: Callable[[str], bool], rule: str, example: str) -> list[tuple[int, str]]:
    """The entries of a schedule in rising order, with values that are `fine`; a bad one is named with the rule."""
    found: list[tuple[int, str]] = []
    name, remedy = shown(key, schedule), f"write e.g. {example}"
    for entry in filter(None, (part.strip() for part in schedule.split(","))):
        first, _, value = (part.strip() for part in entry.partition(":"))
        fits = first.isdecimal() and len(first) < LONGEST and len(value) < LONGEST and fine(value)
        check(fits, name, f"{entry[:40]!r} is not {rule}", remedy)
        found.append((int(first), value))
    rising = all(a < b for (a, _), (b, _) in pairwise(found))
    check(rising, name, "its rounds must rise", remedy)
    return found


def _positive(text: str, kind: Callable[[str], float]) -> bool:
    try:
        return 0 < kind(text) < math.inf
    except ValueError:
        return False
