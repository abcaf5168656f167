"""Problems: sixteen, frozen by digest, every heterogeneity once, missing data named."""

from __future__ import annotations

from importlib.resources import files

import pytest

from fedcohort.arena.problem_set import (
    Problem,
    missing_data,
    parse_seeds,
    problem,
    problems,
    published,
    read_problems,
    run_digest,
    tier_problems,
)
from fedcohort.arena.world_traits import TRAITS, distance, measure_world
from fedcohort.errors import BadParameter, ConfigError, UnknownName
from fedcohort.experiment.runs import build_world_for
from fedcohort.registry.lookup import make_task_spec, make_world_spec

PUBLISHED = {  # of version 1; a problem that has been published never changes
    "digits-skew": "135047e337d677c6",
    "digits-noise": "314c8286025153d4",
    "digits-speed": "1ed6df24b69b7c6d",
    "digits-availability": "73c209b36afee0cc",
    "digits-quantity": "b5d938c2fa3dd6dc",
    "digits-liars": "74593b2a3e63e67b",
    "digits-dropout": "7adc58258beeeb91",
    "digits-mixed": "a7d5d53f8637bf41",
    "cifar-skew": "2cb7736efe3668e9",
    "cifar-noise": "15756ad190e240ad",
    "cifar-mixed": "ab084e4eac74a358",
    "cifar-few": "babefe67e974746d",
    "femnist-speed": "76846ca4ef9646f0",
    "femnist-noise": "87bd0947a29aa1a0",
    "femnist-many": "8858c804775c6035",
    "har-devices": "a7d47d179ae8b908",
}


def text() -> str:
    return files("fedcohort.arena").joinpath("problems-v1.toml").read_text()


def test_version_one_is_what_was_published():
    assert {p.name: p.digest for p in problems()} == PUBLISHED


def test_groups_and_kinds():
    count = {g: sum(p.group == g for p in problems()) for g in ("digits", "cifar", "femnist", "sensors")}
    assert count == {"digits": 8, "cifar": 4, "femnist": 3, "sensors": 1}
    kinds = {"skew", "noise", "speed", "availability", "quantity", "liars", "dropout", "mixed"}
    assert {p.kind for p in tier_problems("quick")} == kinds
    assert all(not p.data for p in tier_problems("quick"))
    assert tier_problems("full") == problems()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("horizon = 60.0", "horizon = 61.0"),
        ("target = 0.85", "target = 0.5"),
        ("cohort_size = 5", "cohort_size = 6"),
        ("rounds = 240", "rounds = 250"),
        ('method = "fedavg"', 'method = "fedprox"'),
        ("lr=0.1", "lr=0.2"),
    ],
)
def test_a_changed_problem_is_refused(old, new):
    assert old in text()
    with pytest.raises(ConfigError, match="something in it has changed; restore the file"):
        read_problems(text().replace(old, new, 1), "a file")


def test_the_description_may_change_and_the_digest_stays():
    assert read_problems(text().replace("FedACS: 200 clients", "200 clients"), "a file")[8].name == "cifar-skew"


@pytest.mark.parametrize("broken", ["", "problem = 3", "[[problem]]\nname = 'x'", "[["])
def test_a_file_of_something_else_is_refused(broken):
    with pytest.raises(ConfigError, match="not a file of problems"):
        read_problems(broken, "a file")


def test_an_unknown_key_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="horizon"):
        read_problems(text().replace("horizon =", "horizn =", 1), "a file")


def test_unknown_names():
    with pytest.raises(UnknownName, match="digits-skew"):
        problem("digit-skew")
    with pytest.raises(UnknownName, match="quick"):
        tier_problems("quik")
    with pytest.raises(UnknownName, match="v1"):
        problems("v0")


def test_digests_of_runs_depend_on_selector_seed_and_problem():
    one, other = problem("digits-skew"), problem("digits-noise")
    found = {
        run_digest(one, "oort", 0),
        run_digest(one, "oort", 1),
        run_digest(one, "oort(explore=0.5)", 0),
        run_digest(other, "oort", 0),
    }
    assert len(found) == 4
    assert run_digest(one, "oort", 0) == run_digest(one, "oort()", 0)


def test_problems_without_their_data_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCOHORT_DATA", str(tmp_path))
    said = missing_data(problems())
    assert "cifar-skew" in said
    assert "har-devices" in said
    assert "digits-skew" not in said
    assert missing_data(tier_problems("quick")) == ""
    assert [p.name for p in problems() if p.available] == [p.name for p in tier_problems("quick")]


def test_seeds():
    assert parse_seeds("0-4") == (0, 1, 2, 3, 4)
    assert parse_seeds("3, 1,1-2") == (3, 1, 2)
    for wrong in ("", "a", "1-", "-1", "4-2", "1.5"):
        with pytest.raises(BadParameter, match="seeds"):
            parse_seeds(wrong)


@pytest.mark.parametrize("name", ["digits-noise", "digits-availability", "digits-mixed"])
def test_traits_are_those_of_the_world(name):
    each = problem(name)
    world = build_world_for(make_world_spec(each.world), make_task_spec(each.task), 100)
    assert measure_world(world) == dict(each.traits)
    assert set(each.traits) == set(TRAITS)


def test_distance_counts_steps():
    assert distance({"skew": 0.3, "noise": 0.1}, {"skew": 0.0, "noise": 0.1}) == pytest.approx(2.0)


def test_publishing_fills_in_the_digest():
    draft = Problem("x", "digits", "skew", "", "iid-v1", "digits-mlp", "fedavg", 5, 10.0, 20, 0.5, "")
    assert published(draft).digest == draft.fingerprint()
    assert published(draft, skew=0.5).traits == {"skew": 0.5}
