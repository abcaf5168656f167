"""One policy: the same names, meanings and defaults in files, on the command line, in `simulate` and on Flower."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from flwr.serverapp.strategy import FedAvg
from typer.testing import CliRunner

import fedcohort as fc
from fedcohort.cli.main import app
from fedcohort.errors import BadParameter
from fedcohort.experiment.config import KEYS, RunConfig, from_mapping
from fedcohort.flower import CohortStrategy
from fedcohort.flower.server.strategy_settings import LONGEST, StrategySettings
from fedcohort.rounds.policy import RoundPolicy
from fedcohort.sim.run_settings import RunSettings

CHANGED = {
    "cohort_size": 6,
    "deadline": 25.0,
    "close_after": 3,
    "min_replies": 2,
    "over_select": 1.5,
    "back_off": 9.0,
    "buffer_size": 2,
    "wait_for_slow": 0.5,
    "use_floor": 0.25,
    "weight_by_use": 1.0,
}


def test_every_place_has_every_key_with_the_same_default():
    assert set(CHANGED) == {f.name for f in fields(RoundPolicy)}
    for known in fields(RoundPolicy):
        assert known.name in KEYS
        for place in (RunSettings, RunConfig, StrategySettings):
            assert getattr(place, known.name) == known.default, (place, known.name)


@pytest.mark.parametrize("name", sorted(CHANGED))
def test_every_place_takes_every_key(name, tmp_path):
    value = CHANGED[name]
    assert getattr(from_mapping({name: value}), name) == value
    assert getattr(CohortStrategy(FedAvg(), selector="uniform", **{name: value}).settings, name) == value
    keys = {"task": "quadratic", "rounds": 2, "cohort_size": 4, name: value}
    history = fc.simulate("uniform", **keys)
    assert len(history.rows) == 2
    arguments = [
        "run",
        "--task",
        "quadratic",
        "--rounds",
        "2",
        "--set",
        f"{name}={value}",
        "--out",
        str(tmp_path / "r"),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    text = (tmp_path / "r" / "config.toml").read_text()
    assert f"{name} = {value}" in text


def test_a_real_round_always_ends():
    """No deadline was given: in the simulator everybody's fate is known, on a real clock a round ends anyway."""
    assert RunConfig().deadline == math.inf
    assert CohortStrategy(FedAvg(), selector="uniform").settings.deadline == LONGEST


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"cohort_size": 0}, "cohort_size = 0: it must be at least 1"),
        ({"cohort_size": 2.5}, "cohort_size = 2.5: it must be a whole number"),
        ({"cohort_size": True}, "it must be a whole number"),
        ({"deadline": -1}, "deadline = -1: it must be positive"),
        ({"close_after": 11}, "close_after = 11: it must be at most cohort_size = 10"),
        ({"min_replies": 11}, "min_replies = 11: it must be at most cohort_size = 10"),
        ({"over_select": 0.5}, "over_select = 0.5: it must be at least 1"),
        ({"over_select": "often"}, "or 'adaptive'"),
        ({"back_off": math.inf}, "back_off = inf"),
        ({"buffer_size": 3, "min_replies": 2}, "min_replies = 2 with buffer_size"),
        ({"buffer_size": 3, "over_select": 2}, "over_select = 2.0 with buffer_size"),
    ],
)
def test_mistakes_are_answered_alike_everywhere(keys, words):
    for make in (RoundPolicy, RunConfig, from_mapping_of, strategy):
        with pytest.raises(BadParameter) as caught:
            make(**keys)
        assert words in str(caught.value)


def from_mapping_of(**keys):
    return from_mapping(keys)


def strategy(**keys):
    return CohortStrategy(FedAvg(), selector="uniform", **keys)
