"""Texts that name one's own: modules, files, plug-ins; what they make, and what is said when they cannot."""

import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from fedcohort import Dataset, simulate, task_from
from fedcohort.errors import ConfigError, DataError, FedcohortError, RunWarning
from fedcohort.experiment import texts
from fedcohort.experiment.config import RunConfig, from_mapping
from fedcohort.experiment.metrics.stored_metrics import measure, record
from fedcohort.experiment.object_texts import text_of
from fedcohort.experiment.runs import Objects, read, read_model, resume
from fedcohort.experiment.store import Store, identity
from fedcohort.experiment.sweep import from_mapping as sweep_of
from fedcohort.experiment.verification import verify
from fedcohort.registry import lookup
from fedcohort.registry.own_objects import names_module
from fedcohort.selectors import Oort, RoundRobin, WarmUp
from fedcohort.worlds import Iid, Natural, WorldSpec

MODULE = '''
import numpy as np
from fedcohort import Cohort, Dataset, task_from
from fedcohort.methods import FedAvg
from fedcohort.worlds import Iid, WorldSpec

class First:
    """Always the first comers."""
    needs = frozenset()
    def __init__(self, a=1, share=0.5):
        if a < 0:
            raise ValueError("a must not be negative")
        self.a, self.share = a, share
    def select(self, rnd, rng):
        return Cohort(rnd.available[: rnd.size])
    def observe(self, result): ...
    def state_dict(self):
        return {}
    def load_state_dict(self, arrays): ...

class Average(FedAvg): ...

def data():
    y = np.arange(120) % 3
    x = np.random.default_rng(0).normal(size=(120, 4)) + y[:, None]
    return Dataset.from_arrays(x, y, client=[f"site{i % 5}" for i in range(120)])

def make_task(hidden=4):
    return task_from(data(), hidden=hidden)

DATA, WORLD = data(), WorldSpec("w", 6, Iid())

def make_world(clients=4):
    return WorldSpec("w", clients, Iid())

def nothing():
    return 3
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of one's own and a table in the working directory."""
    (tmp_path / "own_things.py").write_text(MODULE)
    (tmp_path / "broken_things.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "odd_things.py").write_text("x = 1 / 0\n")
    rows = "".join(f"{i % 7},{(i * 3) % 11},s{i % 4},{'no' if i % 3 else 'yes'}\n" for i in range(80))
    (tmp_path / "clinic.csv").write_text("a,b,site,ill\n" + rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("own_things", "broken_things", "odd_things"):
        sys.modules.pop(name, None)


CSV = "csv:clinic.csv(target=ill, client=site)"


def test_each_kind_can_be_named_by_module_or_file(own):
    assert lookup.make_selector("own_things:First(a=3)").a == 3
    assert type(lookup.make_method("own_things:Average")).__name__ == "Average"
    assert lookup.make_world_spec("own_things:make_world(clients=9)").clients == 9
    assert lookup.make_world_spec("own_things:WORLD(clients=7)").clients == 7
    assert lookup.make_task_spec("own_things:make_task(hidden=(3, 2))").model.layers[0].out == 3
    assert lookup.make_task_spec("own_things:DATA").classes == lookup.make_task_spec("own_things:data").classes == 3
    task = lookup.make_task_spec("CSV:clinic.csv(target=ill, client='site', hidden=(), lr=0.5, test=0.25)")
    assert (task.default.lr, len(task.model.layers), set(task.owners())) == (0.5, 1, {"s0", "s1", "s2", "s3"})
    inner = lookup.make_selector("warm-up(inner='own_things:First(a=2)')")
    assert inner.inner.a == 2
    assert lookup.make_selector("OORT").explore == Oort().explore


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("selector", "no_module_of_mine:First", "there is no module no_module_of_mine; run the command in the folder"),
        ("selector", "own_things:Frist", "did you mean First"),
        ("selector", "own_things:First(b=1)", "parameter of own_things:First 'b'"),
        ("selector", "own_things:First(a=-1)", "a must not be negative, own_things.py line"),
        ("selector", "own_things:First(a=b)", "arguments must be key=literal pairs"),
        ("selector", "own_things:make_world", "it makes a WorldSpec, which is not a selector: it lacks"),
        ("selector", "broken_things:First", "imports no_such_package_at_all, which is not installed"),
        ("selector", "odd_things:First", "ZeroDivisionError: division by zero, odd_things.py line 1"),
        ("method", "own_things:First", "which is not a method"),
        ("world", "own_things:nothing", "it makes a int, which is not a world"),
        ("world", "own_things:DATA", "which cannot be called"),
        ("task", "own_things:nothing", "which is not a task; return fedcohort.task_from"),
        ("task", "own_things:make_task(width=3)", "parameter of own_things:make_task 'width'"),
        ("task", "csv:nowhere.csv(target=ill)", "there is no such file"),
        ("task", "csv:clinic.csv(target=ill, client=site, hiden=3)", "did you mean hidden"),
        ("task", "npz:clinic.csv", "text file, not an .npz; name it as csv:clinic.csv"),
        ("task", "parquet:clinic.csv", "not a parquet file"),
        ("selector", "given:First", "a run folder cannot make that again; give it again in Python"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(own, kind, text, says):
    make = {"task": lookup.make_task_spec, "world": lookup.make_world_spec, "method": lookup.make_method}
    with pytest.raises(FedcohortError) as caught:
        make.get(kind, lookup.make_selector)(text)
    assert says in str(caught.value)


def test_texts_have_one_form_and_a_digest_of_what_is_behind_them(own):
    assert texts.canonical("selector", "own_things:First(share=0.5, a=2)") == "own_things:First(a=2)"
    assert texts.canonical("task", CSV) == "csv:clinic.csv(client='site', target='ill')"
    assert texts.changed("task", CSV, ["hidden"], 8).endswith("hidden=8)")
    config = from_mapping({"selector": "own_things:First", "task": CSV})
    assert config.world == "owners-v1"
    assert identity(config).startswith("First-")
    before = config.digest()
    (own / "other.csv").write_text((own / "clinic.csv").read_text())
    moved = from_mapping({"selector": "own_things:First", "task": CSV.replace("clinic", "other")})
    assert moved.digest() == before  # the same data elsewhere
    (own / "other.csv").write_text((own / "clinic.csv").read_text() + "1,1,s0,no\n")
    assert moved.digest() != before
    (own / "own_things.py").write_text(MODULE + "# changed\n")
    assert config.digest() != before


def test_the_default_world_goes_by_the_owners_of_the_data(own):
    assert from_mapping({"task": "csv:clinic.csv(target=ill, drop=[site])"}).world == "mixed-v1"
    assert from_mapping({"task": "har-mlp"}).world == "owners-v1"
    assert from_mapping({"task": "digits-mlp"}).world == RunConfig().world == "mixed-v1"
    assert from_mapping({"task": CSV, "world": {"min_size": 2}}).world == "owners-v1(min_size=2)"
    assert sweep_of({"tasks": [CSV]}).worlds == ("owners-v1",)
    with pytest.raises(ConfigError, match="name worlds"):
        sweep_of({"tasks": [CSV, "digits-mlp"]})


def test_a_run_of_ones_own_is_kept_read_resumed_and_verified(own):
    how = {"method": "own_things:Average", "task": CSV, "cohort_size": 2}
    first = simulate("own_things:First(a=2)", rounds=3, out="run", **how)
    assert first.names == read(own / "run").history.names == ("s0", "s1", "s2", "s3")
    assert verify(own / "run").rounds == 3
    assert resume(own / "run").history.rows == first.rows
    np.testing.assert_array_equal(read_model(own / "run").tensors()["0.weight"], first.model.tensors()["0.weight"])


def test_changed_data_or_modules_are_not_taken_for_the_same_run(own):
    config = from_mapping({"selector": "own_things:First", "task": CSV, "cohort_size": 2, "rounds": 2})
    assert Store(own).obtain(config, folder=own / "run").how == "run"
    assert Store(own).obtain(config, folder=own / "run").how == "read"
    (own / "own_things.py").write_text(MODULE + "# changed\n")
    with pytest.raises(FedcohortError, match="has changed since it was started; use another --out"):
        Store(own).obtain(config, folder=own / "run")
    with pytest.warns(RunWarning, match="has changed since"):
        resume(own / "run")


def test_made_up_clients_are_not_invented_in_silence(own):
    with pytest.warns(RunWarning, match="the data name no owners, so mixed-v1 divides them among made-up clients"):
        history = simulate(task="csv:clinic.csv(target=ill, drop=site)", rounds=1, cohort_size=2)
    assert history.names == ()


def test_viewers_import_nothing_that_a_run_folder_names(own):
    simulate("own_things:First", task="own_things:make_task", rounds=2, cohort_size=2, out="run")
    sys.modules.pop("own_things")
    (own / "own_things.py").write_text("raise SystemExit('imported')\n")
    found = record(own / "run")
    assert measure(found, ("final", "regret_noise"))["regret_noise"] is None
    assert measure(found, ("final",))["final"] is not None
    assert read_model(own / "run").tensors()["0.weight"].shape == (4, 4)
    assert "own_things" not in sys.modules
    assert names_module("own_things:First(a=1)")
    assert not names_module(CSV)
    assert not names_module("oort(explore=0.8)")


@pytest.mark.parametrize(
    ("kind", "made", "text"),
    [
        ("selector", Oort(explore=0.5), "oort(explore=0.5)"),
        ("selector", RoundRobin(), "round-robin"),
        ("selector", WarmUp(inner=Oort(explore=0.5)), "warm-up(inner='oort(explore=0.5)')"),
        ("world", WorldSpec("mine", 0, Natural(min_size=3)), None),
        ("world", lookup.make_world_spec("mixed-v1"), "mixed-v1"),
        ("task", task_from(Dataset.from_arrays(np.zeros((9, 2)), np.arange(9) % 3)), "given:mine"),
    ],
)
def test_the_text_of_an_object(kind, made, text):
    found = text_of(kind, made)
    if text is not None:
        assert found == text
    else:
        again = lookup.make_world_spec(found)
        assert (again.clients, again.partition, again.latency) == (made.clients, made.partition, made.latency)


def test_objects_with_a_folder_are_resumed_with_the_objects(own):
    import own_things

    task = own_things.make_task()
    made = {"task": task, "world": WorldSpec("w", 6, Iid()), "rounds": 3, "cohort_size": 2, "out": "run"}
    whole = simulate(own_things.First(a=5), **made)
    held = read(own / "run").config
    assert (held.selector, held.task) == ("own_things:First(a=5)", "given:mine")
    with pytest.raises(ConfigError, match="give it again in Python"):
        resume(own / "run")
    with pytest.raises(ConfigError, match="give it again in Python"):
        verify(own / "run")
    assert verify(own / "run", Objects(task=task)).rounds == 3
    assert simulate(own_things.First(a=5), **made, resume=True).rows == whole.rows
    with pytest.raises(FedcohortError, match="another run already"):
        simulate(own_things.First(a=6), **made, resume=True)
    with pytest.raises(FedcohortError, match="holds a run already"):
        simulate(own_things.First(a=5), **made)


def test_a_dataset_is_not_a_task_and_the_remedy_says_what_to_give(own):
    import own_things

    with pytest.raises(ConfigError, match=r"give task=fedcohort\.task_from\(data\)"):
        simulate(task=own_things.DATA)
    with pytest.raises(DataError, match="2, 3 or 4 axes"):
        Dataset.from_arrays(np.zeros(3), [0, 1, 2])


def test_plug_ins_of_every_kind_and_a_broken_one_is_named_and_skipped(own, monkeypatch):
    found = {
        "selector": {"firstly": "own_things:First", "wrecked": "broken_things:First"},
        "method": {"mean": "own_things:Average"},
        "world": {"Small_World": "own_things:make_world"},
        "task": {"sites": "own_things:make_task", "gone": "own_things:no_task"},
    }

    def points(group):
        kind = group.removeprefix("fedcohort.").removesuffix("s")
        return [EntryPoint(name, value, group) for name, value in found[kind].items()]

    monkeypatch.setattr(lookup, "entry_points", points)
    lookup.entries.cache_clear()
    try:
        assert lookup.make_selector("firstly(a=4)").a == 4
        assert lookup.make_world_spec("small-world(clients=3)").clients == 3
        assert lookup.make_task_spec("sites").classes == 3
        assert texts.resolved("task", "sites")["hidden"] == 4
        assert {"sites", "gone"} <= set(lookup.names("task"))
        with pytest.warns(RunWarning, match="skipped: selector 'wrecked', broken_things:First: the package that"):
            names = [entry.name for entry, _ in lookup.loaded("selector")]
        assert "firstly" in names
        assert "wrecked" not in names
        with pytest.raises(ConfigError, match="the package that brings it is broken"):
            lookup.make_task_spec("gone")
    finally:
        lookup.entries.cache_clear()
