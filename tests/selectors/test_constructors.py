"""Whatever a constructor is given, it is built or answered with value, rule and remedy: never a Python error."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

from fedcohort.core.constraints import declared
from fedcohort.errors import BadParameter
from fedcohort.registry import lookup as registry
from fedcohort.selectors.base import StatefulSelector

VALUES = ("a", "", 0, 1, -1, 64, 0.5, math.nan, math.inf, True, None, (1, 2), {"a": 1}, np.float32(0.5), object())
CASES = [
    (name, key)
    for name in registry.names("selector")
    for key in registry.parameters(registry.load("selector", name))
    if key != "inner"
]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_a_bad_argument_is_answered_in_three_parts(name, key):
    made, refusals = registry.load("selector", name), []
    for value in VALUES:
        try:
            made(**{key: value})
        except BadParameter as error:
            refusals.append(error)
    assert len(refusals) >= 4, f"{name}({key}=...) accepts nearly anything"
    assert all(key in error.value and error.rule and error.remedy for error in refusals)


@pytest.mark.parametrize("name", registry.names("selector"))
def test_defaults_fit_their_own_declaration(name):
    made = registry.load("selector", name)
    known = declared(inspect.unwrap(made.__init__))
    for key, parameter in registry.parameters(made).items():
        assert known[key].problem(key, parameter.default) is None


@pytest.mark.parametrize("name", registry.names("selector"))
def test_the_class_says_what_its_arguments_are(name):
    made = registry.load("selector", name)
    assert issubclass(made, StatefulSelector)
    text = inspect.getdoc(made) or ""
    assert ">>> " in text
    for key in registry.parameters(made):
        assert f"    {key}: " in text, f"{name}: the docstring does not mention {key}"
    assert text.count("\n    ") >= len(registry.parameters(made))
