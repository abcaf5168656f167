"""What is answered to a name that is not in the catalogue."""

import pytest

from fedcohort.errors import UnknownName
from fedcohort.registry import lookup


@pytest.mark.parametrize(
    ("kind", "name", "answer"),
    [
        ("selector", "random", "there is no selector of this name; did you mean uniform."),
        ("selector", "Pow_D", "did you mean power-of-choice."),
        ("method", "RFA", "did you mean geometric-median."),
        ("selector", "fedavg", "this is a method; give it as the method; see `fedcohort list selectors`."),
        ("method", "oort", "this is a selector"),
        ("world", "digits-mlp", "this is a task"),
        ("selector", "oorts", "did you mean oort"),
        ("selector", "zzz", "see `fedcohort list selectors`, or name your own as module:NAME"),
    ],
)
def test_the_answer(kind, name, answer):
    with pytest.raises(UnknownName) as raised:
        raise lookup.unknown(kind, name, lookup.names(kind))
    assert answer in str(raised.value)


def test_other_names_lead_to_what_there_is():
    known = {n for kind in lookup.KINDS for n in lookup.names(kind)}
    assert set(lookup.OTHER_NAMES.values()) <= known
    assert not set(lookup.OTHER_NAMES) & known
