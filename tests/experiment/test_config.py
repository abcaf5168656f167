"""Configurations: two spellings of one run are one run, everything that can change a result changes the digest."""

from __future__ import annotations

import math
import tomllib
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.errors import BadParameter, RunExists, UnknownName
from fedcohort.experiment import texts
from fedcohort.experiment.config import KEYS, NO_EFFECT, UNLIMITED, RunConfig, assign, from_mapping, keys, markdown
from fedcohort.experiment.store import Store, client_accuracy, find, identity, put_aside
from fedcohort.registry import lookup as registry

DOCS = Path(__file__).parents[2] / "docs" / "experiments.md"


@given(
    selector=st.sampled_from(["uniform", "oort(explore=0.8)", "warm-up(inner='oort', rounds=3)"]),
    rounds=st.integers(1, 10**6),
    seed=st.integers(0, 2**62),
    deadline=st.floats(1e-300, math.inf, exclude_min=True),
    lr_decay=st.floats(1e-12, 1e12),
    world=st.text(max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_toml_and_back(selector, rounds, seed, deadline, lr_decay, world):
    config = RunConfig(selector=selector, rounds=rounds, seed=seed, deadline=deadline, lr_decay=lr_decay, world=world)
    assert from_mapping(tomllib.loads(config.toml())) == config


def test_frozen():
    with pytest.raises(FrozenInstanceError):
        RunConfig().rounds = 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"selector": "oort"}, {"selector": " oort( explore = 0.9 ) "}),  # 0.9 is the default
        ({"selector": "oort(explore=0.5, cutoff=0.9)"}, {"selector": "oort(cutoff=0.9,explore=0.5)"}),
        ({"selector": "oort(explore=1)"}, {"selector": {"name": "oort", "explore": 1.0}}),
        ({"selector": "round-robin"}, {"selector": "round_robin"}),
        ({"selector": "warm-up(inner='oort')"}, {"selector": {"name": "warm-up", "inner": {"name": "oort"}}}),
        ({"selector": "warm-up(inner='oort')"}, {"selector": "warm-up(inner='oort(explore=0.9)')"}),
        ({"world": "mixed-v1(clients=20)"}, {"world": {"clients": 20}}),
        ({"world": "mixed-v1(clients=50)"}, {}),
        ({"world": "mixed-v1(clients=20, noise__a=0.3)"}, {"world": "mixed-v1(noise__a=0.3, clients=20.0)"}),
        ({"task": "digits-mlp(hidden=(32,), lr=0.1)"}, {"task": {"name": "digits-mlp", "lr": 0.1, "hidden": [32]}}),
        ({"workers": 1}, {"workers": 7}),
        ({"deadline": 300}, {"deadline": 300.0}),
    ],
)
def test_spellings_of_one_run(one, other):
    assert from_mapping(one).digest() == from_mapping(other).digest()
    assert identity(from_mapping(one)) == identity(from_mapping(other).canonical())


CHANGES = {
    "selector": "oort",
    "method": "fedprox",
    "world": "iid-v1",
    "task": "digits-softmax",
    "rounds": 51,
    "cohort_size": 11,
    "seed": 1,
    "deadline": 100.0,
    "over_select": 1.5,
    "min_replies": 2,
    "back_off": 1.0,
    "evaluate_every": 2,
    "lr_decay": 0.9,
    "lr_schedule": "20:0.1",
    "max_privacy": "P1",
    "max_norm": 5.0,
    "engine": "numpy",
    "buffer_size": 3,
    "close_after": 4,
    "wait_for_slow": 0.5,
    "use_floor": 0.25,
    "weight_by_use": 1.0,
    "size_schedule": "0:all, 1:10",
    "score": "macro_f1",
    "stop_at": 0.9,
    "patience": 5,
    "device": "cpu",
    "precision": "bfloat16",
}


def test_everything_that_can_change_a_result_changes_the_digest():
    assert set(CHANGES) == set(KEYS) - set(NO_EFFECT)
    digests = [RunConfig(**{k: v}).digest() for k, v in CHANGES.items()]
    digests += [from_mapping({"selector": f"oort(explore={x})"}).digest() for x in (0.5, 0.6)]
    digests += [from_mapping({"task": "digits-mlp(lr=0.2)"}).digest(), RunConfig().digest()]
    assert len(set(digests)) == len(digests)


def test_keys_and_parameters_that_came_later_leave_old_digests_alone():
    """Run folders and the archive of the arena are found by these."""
    assert RunConfig().digest()[:12] == "aef461ce39df"
    assert RunConfig(task="cifar10-cnn").digest()[:12] == "c604fb094c8f"
    assert RunConfig(task="cifar10-cnn(augment='none')").digest()[:12] == "c604fb094c8f"
    assert RunConfig(task="cifar10-cnn(augment='crop-flip')").digest()[:12] != "c604fb094c8f"


def test_a_world_file_counts_by_what_is_in_it(tmp_path):
    text = 'name = "mine"\nclients = 8\n[partition]\nkind = "iid"\n'
    (tmp_path / "a.toml").write_text(text)
    (tmp_path / "b.toml").write_text(text)
    one, same = (RunConfig(world=str(tmp_path / n)) for n in ("a.toml", "b.toml"))
    before = one.digest()
    assert same.digest() == before
    (tmp_path / "a.toml").write_text(text.replace("8", "9"))
    assert one.digest() != before
    with pytest.raises(BadParameter, match="change the file"):
        assign({"world": str(tmp_path / "a.toml")}, "world.clients", 3)


def test_normal_texts_build_the_same_object():
    """The whole catalogue: the normal form is a fixed point and reads back as itself."""
    for kind in registry.KINDS:
        for name in registry.names(kind):
            assert texts.canonical(kind, name) == name
    made = registry.make_selector(texts.canonical("selector", "warm-up(rounds=7, inner='oort(explore=0.25)')"))
    assert (made.rounds, made.inner.explore) == (7, 0.25)
    spec = registry.make_world_spec(texts.canonical("world", "mixed-v1(noise={'kind': 'none'}, clients=30)"))
    assert (spec.clients, spec.noise.kind) == (30, "none")
    ordered = texts.canonical("world", "mixed-v1(noise__kind='given', noise__flip='pair')")
    assert registry.make_world_spec(ordered).noise.flip == "pair"
    assert texts.write("x", {"a": math.inf, "b": (1,), "c": None, "d": True, "e": "it's"}) == (
        'x(a=1e999, b=(1,), c=None, d=True, e="it\'s")'
    )
    assert registry.parse(texts.write("x", {"a": -math.inf, "b": {"k": [1.5]}}))[1] == {
        "a": -math.inf,
        "b": {"k": (1.5,)},
    }


def test_fields_of_a_world_that_fit_only_together():
    """Two factors do not fit the four shares of mixed-v1, nor a field the kind that a later key names."""
    both = "mixed-v1(latency__factors=(1.0, 2.0), latency__shares=(0.5, 0.5))"
    turned = "mixed-v1(clients=50, latency__shares=[0.5, 0.5], latency__factors=[1.0, 2.0])"  # 50 is the default
    for text in (both, turned):
        assert RunConfig(world=text).canonical().world == both
    tables = {"world": {"latency__factors": [1.0, 2.0], "latency__shares": [0.5, 0.5]}}
    assert from_mapping(tables).canonical().world == both
    late = texts.canonical("world", "mixed-v1(latency__sigma=0.7, latency='lognormal')")
    assert late == "mixed-v1(latency='lognormal', latency__sigma=0.7)"
    twice = texts.canonical("world", "mixed-v1(noise='none', noise__kind='none')")
    assert twice == "mixed-v1(noise='none')"
    with pytest.raises(BadParameter, match="as many entries as shares, 4"):
        RunConfig(world="mixed-v1(latency__factors=[1.0, 2.0])").canonical()


@pytest.mark.parametrize(
    ("start", "key", "value", "expected"),
    [
        ({}, "world.clients", 20, {"world": "mixed-v1(clients=20)"}),
        ({"selector": "oort(explore=0.8)"}, "selector.explore", 0.5, {"selector": "oort(explore=0.5)"}),
        ({"selector": {"name": "oort"}}, "selector.cutoff", 0.9, {"selector": "oort(cutoff=0.9)"}),
        (
            {"selector": "warm-up(inner='oort')"},
            "selector.inner.explore",
            0.1,
            {"selector": "warm-up(inner='oort(explore=0.1)')"},
        ),
        ({}, "selector.name", "oort", {"selector": "oort"}),
        ({}, "world.noise.a", 0.2, {"world": "mixed-v1(noise__a=0.2)"}),
        ({}, "rounds", 3, {"rounds": 3}),
    ],
)
def test_dotted_keys(start, key, value, expected):
    assign(start, key, value)
    assert start == expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"selektor": "oort"}, "selector"),
        ({"selector": {"name": "oort", "explor": 1}}, "explore"),
        ({"selector": {"nam": "oort"}}, "nam"),
        ({"task": {"epoch": 1}}, "epochs"),
        ({"rounds": True}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"lr_decay": math.inf}, "finite"),
        ({"selector": {"name": "oort", "explore": math.nan}}, "number"),
        ({"deadline": math.nan}, "deadline"),
    ],
)
def test_mistakes(values, words):
    with pytest.raises((UnknownName, BadParameter), match=words):
        from_mapping(values)


def test_every_key_is_documented():
    for key in keys():
        assert len(key.about) > 10, key.name
    assert markdown() in DOCS.read_text(), (
        "run: python -c 'from fedcohort.experiment.config import *; print(markdown())'"
    )
    assert [k.name for k in keys() if k.default == "no limit"] == list(UNLIMITED)


def test_the_store_reads_what_was_run(tmp_path):
    store, rows = Store(tmp_path), []
    config = from_mapping({"selector": "oort", "task": "digits-softmax", "rounds": 3, "cohort_size": 5}).canonical()
    assert store.state(config) == "absent"
    first = store.obtain(config, on_round=rows.append)
    assert (first.how, len(rows), store.state(config)) == ("run", 3, "finished")
    same = from_mapping({**config.to_dict(), "selector": "oort(explore=0.9)", "workers": 2})
    second = store.obtain(same, on_round=rows.append)
    assert (second.how, len(rows)) == ("read", 3)  # not one round more
    assert second.finished.history.rows == first.finished.history.rows
    assert client_accuracy(store.folder(config)).shape == (50,)

    (store.folder(config) / "metrics.jsonl").unlink()
    assert store.obtain(config).how == "resumed"
    assert store.obtain(config, force=True).how == "run"
    assert [p.name for p in find([tmp_path])] == [identity(config)]  # the old one is aside, not gone
    assert (tmp_path / f"{identity(config)}.old1" / "journal.db").exists()
    with pytest.raises(RunExists, match="another seed"):
        store.obtain(replace(config, seed=9), folder=store.folder(config))
    assert put_aside(store.folder(config)).name.endswith(".old2")
