"""What is said of data of one's own that a world divides which nobody named, and of owners who are left out."""

import warnings

import numpy as np
import pytest

from fedcohort import Dataset, make_world_spec, simulate, task_from
from fedcohort.engines import mlp
from fedcohort.errors import RunWarning
from fedcohort.tasks import ClassificationSpec

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
DATA = Dataset.from_arrays(X, Y)
MADE_UP = "the data name no owners, so mixed-v1 divides them among made-up clients"


def notes(task, **more):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RunWarning)
        found = simulate(task=task, rounds=1, cohort_size=2, **more).notes
    said = [str(w.message) for w in caught]
    return [text for text in found if "owners" in text and text in said]


def test_data_without_owners_in_a_world_that_nobody_named():
    (said,) = notes(task_from(DATA))
    assert said.startswith(f"{MADE_UP}, with label noise (")
    assert "% of the labels), slow clients and drop-out; name the owners (client=...) or another world" in said


def test_a_torch_task_too_and_label_noise_only_where_labels_are_learned():
    nn = pytest.importorskip("torch.nn")
    from fedcohort import TorchTask

    (labels,) = notes(TorchTask(lambda: nn.Linear(4, 2), (X, Y)))
    assert f"{MADE_UP}, with label noise" in labels
    (numbers,) = notes(TorchTask(lambda: nn.Linear(4, 1), (X, X[:, :1])))
    assert f"{MADE_UP}, with slow clients and drop-out; name" in numbers


def test_one_part_of_the_world_changed_is_no_choice_of_the_world(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    for task in (f"npz:{tmp_path}/own.npz", task_from(DATA)):
        (said,) = notes(task, world="mixed-v1(latency='constant')")
        assert f"{MADE_UP}, with label noise" in said
        assert "the labels) and drop-out; name" in said


def test_nothing_is_said_where_the_world_is_named_or_the_data_are_ours_or_owned():
    assert notes(task_from(DATA), world="iid-v1(clients=5)") == []
    assert notes(task_from(DATA), world=make_world_spec("mixed-v1(clients=10)")) == []
    assert notes("digits-mlp") == notes("quadratic") == []
    assert notes(ClassificationSpec("ours", "digits", mlp(64, classes=10))) == []
    assert notes(task_from(Dataset.from_arrays(X, Y, np.arange(300) % 5))) == []


def test_every_owner_is_a_client_also_those_with_one_sample():
    owner = np.array(["big"] * 150 + ["mid"] * 140 + [f"tiny{i}" for i in range(10)])
    history = simulate(task=task_from(Dataset.from_arrays(X, Y, owner)), rounds=1, cohort_size=2)
    assert len(history.names) == 12
    assert history.notes == []


def test_owners_who_cannot_all_be_clients_are_counted():
    data = Dataset.from_arrays(X, Y, np.arange(300))
    (said,) = notes(task_from(data))
    assert said.startswith("84 of 300 owners are no clients: all their samples went to the test set or to the server")
    assert notes(task_from(data, split="owner")) == []  # whole owners are what is cut away
    assert notes(task_from(data), world="iid-v1(clients=5)") == []
    apart = Dataset.from_arrays(X[:200], Y[:200], np.arange(200) % 9, x_test=X, y_test=Y, client_test=np.arange(300))
    assert notes(task_from(apart)) == []
