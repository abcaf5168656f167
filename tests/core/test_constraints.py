"""What constructors accept: every kind of interval end, choices, kinds, None, and the sentence that refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated

import numpy as np
import pytest

from fedcohort.core.constraints import (
    Choice,
    Count,
    CountOrZero,
    Declared,
    Either,
    Factor,
    Finite,
    Interval,
    NotNegative,
    Positive,
    Share,
    Text,
    counted,
)
from fedcohort.errors import BadParameter, check_fields, checked

OverSelect = Annotated[float | str, Either(Interval(1, ends="[)", example=1.3), Choice("adaptive"))]


@checked
def made(
    *,
    share: Share = 0.1,
    factor: Factor = 0.5,
    rate: Positive = 0.2,
    width: NotNegative = 0.0,
    offset: Finite = 0.0,
    rounds: Count = 5,
    window: CountOrZero = 0,
    limit: Count | None = None,
    mode: Annotated[str, Choice("a", "b")] = "a",
    refresh: Annotated[str, Choice("all", "none", counted="sample")] = "all",
    over: OverSelect = 1.0,
    flag: bool = False,
    name: str = "x",
    plain: float = 1.0,
    anything: object = None,
    bare=None,
) -> dict[str, object]:
    """Every kind of declaration."""
    return dict(locals())


def refusal(**values: object) -> str:
    with pytest.raises(BadParameter) as caught:
        made(**values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("ends", "inside", "outside"),
    [
        ("[]", (0, 0.5, 1), (-1e-9, 1 + 1e-9)),
        ("(]", (1e-9, 1), (0, 1.1)),
        ("[)", (0, 1 - 1e-9), (-1, 1)),
        ("()", (1e-9, 0.5), (0, 1)),
    ],
)
def test_each_kind_of_end(ends, inside, outside):
    interval = Interval(0, 1, ends=ends)
    assert all(interval.holds(v) for v in inside)
    assert not any(interval.holds(v) for v in (*outside, math.nan, math.inf, -math.inf))


@pytest.mark.parametrize(
    ("interval", "rule"),
    [
        (Interval(0, 1), "it must be between 0 and 1"),
        (Interval(0, 0.5, ends="[)"), "it must be between 0 and 0.5 (0.5 is not allowed)"),
        (Interval(0, 1, ends="(]"), "it must be between 0 and 1 (0 is not allowed)"),
        (Interval(0, 1, ends="()"), "it must be between 0 and 1 (0 is not allowed and 1 is not allowed)"),
        (Interval(2), "it must be at least 2"),
        (Interval(1, ends="(]"), "it must be more than 1"),
        (Interval(0, ends="(]"), "it must be positive"),
        (Interval(0, ends="()"), "it must be positive and finite"),
        (Interval(0, ends="[)"), "it must be at least 0 and finite"),
        (Interval(high=3), "it must be at most 3"),
        (Interval(high=3, ends="[)"), "it must be less than 3"),
        (Interval(ends="()"), "it must be finite"),
        (Interval(), "it must be a number"),
    ],
)
def test_the_rule_says_what_the_interval_is(interval, rule):
    assert interval.rule() == rule


def test_infinity_belongs_to_an_interval_that_is_closed_there():
    assert Interval(1).holds(math.inf)
    assert not Interval(1, ends="[)").holds(math.inf)
    assert not Interval(ends="()").holds(-math.inf)


@pytest.mark.parametrize(
    "good",
    [
        {"share": 0},
        {"share": 1.0},
        {"share": np.float32(0.5)},
        {"rounds": np.int64(3)},
        {"flag": np.bool_(True)},
        {"factor": 1},
        {"limit": None},
        {"limit": 2},
        {"mode": "b"},
        {"refresh": "none"},
        {"refresh": "sample:12"},
        {"over": "adaptive"},
        {"over": 2},
        {"plain": -7},
        {"anything": [1, 2]},
        {"bare": {"not": "annotated"}},
    ],
)
def test_what_fits_is_let_through(good):
    assert made(**good)[next(iter(good))] == next(iter(good.values()))


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"share": 1.5}, "share = 1.5: it must be between 0 and 1; use e.g. 0.1."),
        ({"share": "a"}, "share = 'a': it must be a number; use e.g. 0.1."),
        ({"share": True}, "share = True: it must be a number; use e.g. 0.1."),
        ({"share": np.bool_(True)}, "it must be a number; use e.g. 0.1."),
        ({"share": None}, "share = None: it must be a number; use e.g. 0.1."),
        ({"factor": 0}, "factor = 0: it must be between 0 and 1 (0 is not allowed); use e.g. 0.5."),
        ({"rate": math.inf}, "rate = inf: it must be positive and finite; use e.g. 0.2."),
        ({"rate": math.nan}, "rate = nan: it must be positive and finite; use e.g. 0.2."),
        ({"offset": -math.inf}, "offset = -inf: it must be finite; use e.g. 0.0."),
        ({"width": -1}, "width = -1: it must be at least 0 and finite; use e.g. 0.0."),
        ({"rounds": 0}, "rounds = 0: it must be at least 1; use e.g. 5."),
        ({"rounds": 2.0}, "rounds = 2.0: it must be a whole number; use e.g. 5."),
        ({"window": -1}, "window = -1: it must be at least 0; use e.g. 0."),
        ({"limit": 0}, "limit = 0: it must be at least 1; use e.g. 1."),
        ({"mode": "c"}, "mode = 'c': it must be one of a, b; use e.g. a."),
        ({"mode": 1}, "mode = 1: it must be a text; use e.g. a."),
        ({"refresh": "sample:0"}, "it must be one of all, none or sample:k with k at least 1; use e.g. all."),
        ({"refresh": "sample:x"}, "refresh = 'sample:x': "),
        ({"refresh": "other:3"}, "refresh = 'other:3': "),
        ({"over": 0.5}, "it must be at least 1 and finite, or 'adaptive'; use e.g. 1.3."),
        ({"over": "often"}, "over = 'often': "),
        ({"over": True}, "over = True: "),
        ({"flag": 1}, "flag = 1: it must be true or false; use e.g. False."),
        ({"name": 3}, "name = 3: it must be a text; use e.g. x."),
        ({"plain": "1"}, "plain = '1': it must be a number; use e.g. 1.0."),
    ],
)
def test_what_does_not_fit_is_answered_with_value_rule_and_remedy(bad, sentence):
    assert sentence in refusal(**bad)


def test_a_word_with_a_count():
    assert (counted("sample:12", "sample"), counted("sample", "sample"), counted("all", "sample")) == (12, 0, 0)
    assert counted("sample:-3", "sample") == counted("sample:", "sample") == counted("sample:²", "sample") == 0


@pytest.mark.parametrize(
    ("constraint", "remedy"),
    [
        (Interval(2), "use e.g. 2"),
        (Interval(0, ends="(]"), "use e.g. 1"),
        (Interval(high=3), "leave it out"),
        (Interval(2, example=7), "use e.g. 7"),
        (Choice("a", "b"), "use e.g. a"),
    ],
)
def test_without_a_default_the_remedy_comes_from_the_rule(constraint, remedy):
    assert Declared(None, False, constraint, Parameter.empty).remedy() == remedy


def test_an_empty_text_is_not_given_as_an_example():
    assert Declared(str, False, None, "").problem("about", 3) == ("about = 3", "it must be a text", "leave it out")
    assert Declared(str, False, Text("0:all"), "").problem("sizes", [0])[1:] == ("it must be a text", "use e.g. 0:all")
    assert Declared(str, False, Text("0:all"), "").problem("sizes", "") is None


def test_a_long_value_is_cut():
    assert len(refusal(share="a" * 5000)) < 300


def test_the_signature_is_kept_and_missing_arguments_are_python_errors():
    @checked
    def two(first: int, second: Share) -> float:
        """Something."""
        return first * second

    assert two.__name__ == "two"
    assert two(2, second=0.5) == 1.0
    with pytest.raises(TypeError):
        two(1)
    with pytest.raises(BadParameter, match="second"):
        two(1, 2)


def test_a_constructor_refuses_before_it_starts():
    seen = []

    class Thing:
        @checked
        def __init__(self, *, share: Share = 0.5) -> None:
            seen.append(share)

    Thing(share=1)
    with pytest.raises(BadParameter, match="share = 2"):
        Thing(share=2)
    assert seen == [1]


@dataclass(frozen=True)
class Settings:
    """Fields are declared in the same way."""

    share: Share = 0.1
    limit: Count | None = None
    mode: Annotated[str, Choice("a", "b")] = "a"

    def __post_init__(self) -> None:
        check_fields(self)


def test_fields_of_a_dataclass():
    assert Settings(share=1, limit=None).mode == "a"
    for bad in ({"share": 2}, {"limit": 0}, {"mode": "z"}, {"mode": None}):
        with pytest.raises(BadParameter, match=next(iter(bad))):
            Settings(**bad)


@checked
def listed(*, shares: tuple[Share, ...] = (1.0,), scale: tuple[Finite, Positive] = (0.0, 1.0)) -> None:
    """Tuples of declared entries."""


def test_entries_of_tuples_are_checked_one_by_one():
    listed(shares=(), scale=[-3, 2])
    listed(shares=(0, 0.5, 1))
    with pytest.raises(
        BadParameter, match=r"shares = \(0.5, 2\): every entry must be between 0 and 1; use e.g. \(1.0,\)"
    ):
        listed(shares=(0.5, 2))
    for scale in ((1.0, 0.0), (1.0,), (1.0, 1.0, 1.0), 1.0, (math.inf, 1.0)):
        with pytest.raises(BadParameter, match=r"it must have 2 entries: entry 1 must be .*, entry 2 must be positive"):
            listed(scale=scale)
    with pytest.raises(BadParameter, match="every entry must be"):
        listed(shares="half")
