"""`simulate` with objects of one's own, and one's own arrays."""

from __future__ import annotations

import numpy as np
import pytest

import fedcohort as fc
from fedcohort.errors import BadParameter, ConfigError, FedcohortError
from fedcohort.experiment import runs as running
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import resume
from fedcohort.registry.lookup import make_world_spec


def blobs(n=400, classes=3, features=5):
    """Well separated classes, owned by eight people."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, n)
    x = rng.normal(size=(n, features)).astype(np.float32) + 4 * np.eye(classes, features)[y]
    return fc.Dataset.from_arrays(x, y, client=rng.integers(0, 8, n))


def test_own_arrays_learn_in_a_natural_world():
    history = fc.simulate("uniform", task=fc.task_from(blobs()), world="volunteers-v1", rounds=8, cohort_size=4)
    assert history.population == 8
    assert history.accuracy[-1] > 0.9


def test_own_arrays_of_pictures():
    rng = np.random.default_rng(0)
    data = fc.Dataset.from_arrays(rng.normal(size=(120, 1, 6, 6)).astype(np.float32), np.arange(120) % 3)
    history = fc.simulate(
        "uniform", task=fc.task_from(data, hidden=()), world="iid-v1(clients=6)", rounds=2, cohort_size=3
    )
    assert len(history.rows) == 2


def test_objects_and_names_mix():
    selector = fc.make_selector("oort")
    world = make_world_spec("iid-v1(clients=15)")
    history = fc.simulate(
        selector, method=fc.make_method("fedprox"), world=world, task="digits-softmax", rounds=2, cohort_size=5
    )
    assert history.population == 15
    by_name = fc.simulate(
        "oort", method="fedprox", world="iid-v1(clients=15)", task="digits-softmax", rounds=2, cohort_size=5
    )
    assert history.rows == by_name.rows


def test_objects_that_a_text_makes_again_can_be_resumed_from_the_folder(tmp_path):
    made = fc.simulate(fc.make_selector("uniform"), task="quadratic", rounds=2, cohort_size=2, out=tmp_path / "r")
    assert resume(tmp_path / "r").history.rows == made.rows


def test_mistakes_are_sentences():
    with pytest.raises(FedcohortError, match="deadlin"):
        fc.simulate(rounds=1, deadlin=3)
    with pytest.raises(FedcohortError, match="rounds"):
        fc.simulate(rounds=0)


@pytest.mark.parametrize("engine", ["fused", "numpy"])
def test_a_server_without_validation_or_test_data(engine):
    """Shares of zero are allowed: what cannot be measured is NaN, and the run goes on."""
    history = fc.simulate(task="digits-softmax(validation=0)", rounds=2, cohort_size=3, engine=engine)
    assert np.isfinite(history.accuracy).all()
    history = fc.simulate(task="digits-softmax(test=0, validation=0)", rounds=2, cohort_size=3, engine=engine)
    assert np.isnan(history.accuracy).all()


def test_three_samples_and_one_client():
    data = fc.Dataset.from_arrays(np.eye(3, dtype=np.float32), np.arange(3))
    assert len(fc.simulate(task=fc.task_from(data), world="iid-v1(clients=1)", rounds=2, cohort_size=1).rows) == 2


@pytest.mark.parametrize("kind", ["selector", "method", "world", "task"])
def test_what_is_neither_a_name_nor_such_an_object_is_refused(kind):
    for value in (5, np.arange(3)) if kind == "world" else (5, None, np.arange(3)):
        with pytest.raises(BadParameter, match=rf"{kind} = .* neither the name of a {kind}"):
            fc.simulate(**{kind: value}, rounds=1)


def test_task_from_checks_what_it_is_given():
    assert fc.task_from(blobs(), hidden=5) is not None
    for wrong, words in (
        ({"lr": -1}, "lr"),
        ({"foo": 1}, "foo"),
        ({"hidden": (-5,)}, "hidden"),
        ({"epochs": 1.5}, "ep"),
    ):
        with pytest.raises(ConfigError, match=words):
            fc.task_from(blobs(), **wrong)
    with pytest.raises(BadParameter, match="not a Dataset"):
        fc.task_from(np.zeros((3, 2)))
    x, y = np.zeros((4, 2), np.float32), np.arange(4) % 2
    for wrong, words in (({"classes": "a"}, "classes"), ({"classes": 2.5}, "classes"), ({"scale": "a"}, "scale")):
        with pytest.raises(FedcohortError, match=words):
            fc.Dataset.from_arrays(x, y, **wrong)


def test_a_run_builds_its_world_and_task_once(tmp_path, monkeypatch):
    built, original = [], running.build_world_for
    monkeypatch.setattr(running, "build_world_for", lambda *given: built.append(1) or original(*given))
    running.run(RunConfig(task="digits-softmax", rounds=1, cohort_size=3), tmp_path / "r")
    running.resume(tmp_path / "r")
    assert len(built) == 2  # one each


def test_a_sweep_takes_objects_that_a_text_makes_again(tmp_path):
    keys = {"task": "quadratic", "rounds": 2, "cohort_size": 2, "seeds": np.arange(2), "workers": 1}
    outcome = fc.sweep(store=tmp_path, selectors=[fc.make_selector("oort"), "uniform"], **keys)
    assert sorted(c.selector for c in outcome.runs.values()) == ["oort", "oort", "uniform", "uniform"]
    assert not outcome.errors

    class Here(type(fc.make_selector("uniform"))):
        """One that only this function knows."""

    with pytest.raises(FedcohortError, match="nothing says how to make this object there; put it into a module"):
        fc.sweep(store=tmp_path, selectors=[Here()], **keys)


def test_folders_may_be_texts_and_numbers_numpy_s(tmp_path):
    place = str(tmp_path / "run")
    made = fc.simulate("oort", task="quadratic", rounds=np.int64(2), cohort_size=2, seed=np.uint8(3), out=place)
    assert resume(place).history.rows == running.read(place).history.rows == made.rows
    assert running.read_model(place).flat.params.shape == made.model.flat.params.shape
    assert repr(made).startswith("<History: 2 rounds, 50 clients")
    with pytest.raises(FedcohortError, match="this is a file, and a run is kept in a folder"):
        fc.simulate("oort", task="quadratic", rounds=2, cohort_size=2, out=__file__)


def test_a_changed_fleet_is_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("client,seconds\na,1\nb,2\n")
    config = RunConfig(world="mixed-v1(latency='given(fleet.csv)')")
    first = config.digest()
    assert RunConfig(world="mixed-v1(latency={'kind': 'given', 'path': 'fleet.csv'})").digest() == first
    (tmp_path / "copy.csv").write_bytes(fleet.read_bytes())
    assert RunConfig(world="mixed-v1(latency='given(path=copy.csv)')").digest() == first
    fleet.write_text("client,seconds\na,1\nb,3\n")
    assert config.digest() != first
