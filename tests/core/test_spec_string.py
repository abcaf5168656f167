"""Texts of the form name(key=literal, ...)."""

import pytest

from fedcohort.core.spec_string import SpecStringError, parse
from fedcohort.errors import BadParameter
from fedcohort.registry import lookup
from fedcohort.tasks import catalogue


def test_a_name_alone_has_no_arguments():
    assert parse(" flash-rl ") == ("flash-rl", {})
    assert parse("oort()") == ("oort", {})


def test_arguments_are_literals():
    assert parse("x(a=1, b=(2, 3), c='d(e)', f=None)") == ("x", {"a": 1, "b": (2, 3), "c": "d(e)", "f": None})


@pytest.mark.parametrize(
    "text", ["", "two words", "oort(", "oort)(", "oort(0.8)", "oort(**{})", "oort(a=b)", "x(a=f())"]
)
def test_anything_else_is_refused_with_value_rule_and_remedy(text):
    with pytest.raises(SpecStringError) as caught:
        parse(text)
    error = caught.value
    assert str(error) == f"{error.value}: {error.rule}; {error.remedy}."
    assert repr(text) in error.value


def test_users_meet_a_bad_parameter():
    with pytest.raises(BadParameter, match="key=literal"):
        lookup.make_selector("oort(0.8)")
    with pytest.raises(BadParameter, match="key=literal"):
        catalogue.get("digits-mlp", objective="flash-robust(1.0)")
