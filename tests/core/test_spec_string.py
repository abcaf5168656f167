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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("oort(a=" + "(" * 3000 + ")" * 900 + ")", "key=literal"),
        ("oort(a=" + "[" * 1900 + "]" * 1900 + ")", "key=literal"),
        ("oort(a=" + "-" * 3900 + "1)", "key=literal"),
        ("o" * 5000, "at most 4000"),
        ("oort(explore=0.5, explore=0.6)", "explore is given 2 times"),
    ],
)
def test_hostile_texts_are_answered_in_one_sentence(text, words):
    with pytest.raises(SpecStringError, match=words):
        parse(text)
    with pytest.raises(BadParameter, match=words):
        lookup.make_selector(text)


@pytest.mark.parametrize("text", ["flash(context=0)", "flash(refresh=1)", "oort(explore='a')", "oort(explore=True)"])
def test_values_of_the_wrong_kind_are_named(text):
    with pytest.raises(BadParameter, match="it must be"):
        lookup.make_selector(text)


def test_what_would_not_fit_into_memory_is_refused():
    with pytest.raises(BadParameter, match="clients = 1000000000000"):
        lookup.make_world_spec("iid-v1(clients=1000000000000)")
    with pytest.raises(BadParameter, match="hidden = 1000000000000"):
        catalogue.get("digits-mlp", hidden=10**12)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "ucb1(explore=1e308)",
            "ledger(pace=1e308)",
            "floor(every=1000000000000)",
            "blocklist(rounds=1000000000000)",
        ),
        *("flash-rl(steps=1000000000000)", "favor(steps=1000000000000)", "neural-bandit(steps=1000000000000)"),
    ],
)
def test_numbers_that_end_in_an_overflow_or_never_are_refused(text):
    with pytest.raises(BadParameter):
        lookup.make_selector(text)


@pytest.mark.parametrize("text", ["fedadam(tau=1e308)", "fedyogi(tau=1e308)", "norm-clip(rate=1000000000000)"])
def test_those_of_methods_too(text):
    with pytest.raises(BadParameter):
        lookup.make_method(text)


def test_a_tiny_share_of_divfl_looks_at_everybody():
    import fedcohort as fc

    assert fc.simulate(selector="divfl(epsilon=1e-320)", task="quadratic", rounds=2, cohort_size=2).rows
