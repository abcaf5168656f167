"""One policy: the same names, meanings and defaults in files, on the command line, in `simulate` and on Flower."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
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
from fedcohort.selectors import Uniform
from fedcohort.sim.run_settings import RunSettings
from fedcohort.types import Cohort

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
    "size_schedule": "0:all, 1:3",
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
    assert f'{name} = "{value}"' in text if isinstance(value, str) else f"{name} = {value}" in text


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
        (
            {"min_replies": 5, "close_after": 3},
            "min_replies = 5: with close_after = 3 a round closes at 3 accepted replies, and would always be abandoned",
        ),
        ({"min_replies": 5, "size_schedule": "0:all, 3:2"}, "with size_schedule = '0:all, 3:2' a round closes at 2"),
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


@pytest.mark.parametrize(
    "keys",
    [
        {"close_after": 3, "min_replies": 3},
        {"close_after": 3, "min_replies": 5, "wait_for_slow": 0.5},  # waits for 3 + 4
        {"size_schedule": "0:all, 1:5", "min_replies": 5},
    ],
)
def test_policies_that_can_succeed_are_taken(keys):
    assert RoundPolicy(**keys).min_replies == keys["min_replies"]


def from_mapping_of(**keys):
    return from_mapping(keys)


def strategy(**keys):
    return CohortStrategy(FedAvg(), selector="uniform", **keys)


def test_a_schedule_of_sizes_by_hand():
    """S_0 is everybody, then 10, from round 5 on 20 of the 12 that there are."""
    policy = RoundPolicy(cohort_size=4, size_schedule="0:all, 1:10, 5:20")
    assert [policy.wanted(t, 12) for t in (0, 1, 4, 5, 9)] == [12, 10, 10, 12, 12]
    assert RoundPolicy(cohort_size=4, size_schedule="3:2").wanted(2, 12) == 4
    assert RoundPolicy(cohort_size=4).wanted(0, 12) == 4


def test_rounds_have_the_sizes_of_their_schedule_and_close_there():
    keys = {"task": "quadratic", "world": "iid-v1(clients=12)", "rounds": 4, "cohort_size": 2}
    history = fc.simulate("flash(preset='model')", size_schedule="0:all, 1:5, 3:1", **keys)
    assert history.column("asked").tolist() == [12, 5, 5, 1]
    asked = fc.simulate("uniform", size_schedule="0:4, 2:2", over_select=1.5, **keys)
    assert asked.column("asked").tolist() == [6, 6, 3, 3]
    assert asked.column("ok").tolist() == [4, 4, 2, 2]


@pytest.mark.parametrize("text", ["10", "0:0", "0:-1", "a:3", "0:some", "2:3, 1:4", "1:3, 1:4", "0:all:1"])
def test_a_schedule_that_is_none_is_refused(text):
    with pytest.raises(BadParameter, match="size_schedule"):
        RoundPolicy(size_schedule=text)


@pytest.mark.parametrize(
    "text", ["0.1", "5:0", "5:-1", "5:inf", "5:nan", "5:half", "5:0.1, 5:0.2", "-1:0.5", "5:0.1:2"]
)
def test_a_schedule_of_factors_that_is_none_is_refused(text):
    with pytest.raises(BadParameter, match=r"lr_schedule = .*write e\.g\. '50:0\.1, 75:0\.01'"):
        RunSettings(lr_schedule=text)


def test_the_learning_rate_follows_schedule_and_decay():
    settings = RunSettings(lr_decay=0.5, lr_schedule="2:0.1, 4:1e-2")
    assert [settings.lr_factor(index) for index in range(5)] == [1.0, 0.5, 0.025, 0.0125, 0.000625]
    keys = {"rounds": 4, "cohort_size": 4, "evaluate_every": 1, "seed": 3}
    plain, falling = (fc.simulate("uniform", lr_schedule=text, **keys) for text in ("", "2:1e-9"))
    assert plain.accuracy[:2].tolist() == falling.accuracy[:2].tolist()
    assert falling.accuracy[3] == falling.accuracy[1] != plain.accuracy[3]  # steps of nearly nothing from round 2 on


def test_a_schedule_and_an_early_close_do_not_go_together():
    with pytest.raises(BadParameter, match="closes at the size it has"):
        RoundPolicy(size_schedule="0:all", close_after=3)


def test_a_schedule_that_is_not_a_text_is_answered_with_one_that_is():
    with pytest.raises(BadParameter, match=r"it must be a text; use e\.g\. '0:all, 1:10'"):
        RoundPolicy(size_schedule=[[0, "all"], [1, 10]])


def test_a_schedule_has_one_way_to_be_written():
    assert RoundPolicy(size_schedule="0:all,1: 10").size_schedule == "0:all, 1:10"
    assert RunSettings(lr_schedule=" 5:0.10,7:1e-2").lr_schedule == "5:0.1, 7:0.01"
    assert RunSettings(lr_schedule=" ").lr_schedule == ""


def test_a_number_of_a_schedule_that_is_far_too_long_is_refused_in_one_sentence():
    with pytest.raises(BadParameter, match="is not ROUND:FACTOR"):
        RunSettings(lr_schedule="1" * 5000 + ":0.1")


def test_probes_train_at_the_rate_of_the_round():
    """One epoch of training and a probe of one local epoch move the weights alike."""
    moved = []

    class Looks(Uniform):
        needs = frozenset({"probe_weights", "weights", "delta"})

        def probe(self, rnd, rng):
            return rnd.available[:4]

        def select(self, rnd, rng):
            self.probed = np.array(rnd.probed.signals["probe_weights"])
            return Cohort(rnd.available[:4])

        def observe(self, result):
            start = result.signals["weights"] - result.signals["delta"]
            moved.append((np.abs(self.probed - start).mean(), np.abs(result.signals["delta"]).mean()))

    keys = {"task": "digits-softmax(epochs=1)", "world": "iid-v1", "cohort_size": 4}
    fc.simulate(Looks(), rounds=2, lr_decay=0.1, lr_schedule="0:0.01", **keys)
    for probed, trained in moved:
        assert probed == pytest.approx(trained, rel=1e-3)


def test_with_a_schedule_from_the_first_round_on_its_sizes_bound_the_replies():
    """Every round has 20, whatever cohort_size says; from round 1 on the first one has cohort_size."""
    assert RoundPolicy(cohort_size=5, size_schedule="0:20", min_replies=15).min_replies == 15
    assert RoundPolicy(cohort_size=5, size_schedule="0:all", min_replies=15).min_replies == 15
    for schedule in ("1:20", "0:20, 9:14"):
        with pytest.raises(BadParameter, match="min_replies = 15"):
            RoundPolicy(cohort_size=5, size_schedule=schedule, min_replies=15)
