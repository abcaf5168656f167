"""What a person must know of how data of their own became clients: a world that nobody asked for, owners left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcohort.data.dataset import Dataset
from fedcohort.tasks.classification import ClassificationSpec
from fedcohort.tasks.spec import TaskSpec
from fedcohort.worlds.built_world import BuiltWorld
from fedcohort.worlds.catalogue import WORLDS
from fedcohort.worlds.natural import Natural


def data_notes(task: TaskSpec, world: BuiltWorld, *, by_default: bool) -> list[str]:
    """Each a sentence with its remedy; `by_default` says that the world is the one of runs that name none."""
    found = [_made_up(task, world) if by_default and _own(task) and task.owners() is None else ""]
    if isinstance(task, ClassificationSpec) and isinstance(world.spec.partition, Natural):
        found.append(_left_out(task))
    return [text for text in found if text]


def _own(task: TaskSpec) -> bool:
    """Whether the data are not those of our catalogue, which are named by a text, or made up altogether."""
    ours = type(task).__module__.startswith("fedcohort.")
    return isinstance(getattr(task, "dataset", None), Dataset) or not ours


def _made_up(task: TaskSpec, world: BuiltWorld) -> str:
    """The clients are made up, and so is all else that the world has of its own and nobody changed."""
    name = world.name.partition("(")[0]  # without what was changed
    usual = WORLDS.get(name, world.spec)
    flipped = float(np.mean(world.train.label != world.train.clean)) if _learns_labels(task) else 0.0
    parts = {
        "noise": f"label noise ({100 * flipped:.0f} % of the labels)" if flipped else "",
        "latency": "slow clients",
        "faults": "drop-out",
    }
    said = [text for key, text in parts.items() if text and getattr(world.spec, key) == getattr(usual, key)]
    made = f", with {' and '.join(filter(None, (', '.join(said[:-1]), said[-1])))}" if said else ""
    who = f"the data name no owners, so {name} divides them among made-up clients{made}"
    return f"{who}; name the owners (client=...) or another world"


def _learns_labels(task: Any) -> bool:
    """Whether the labels of a world are what is learned: label noise reaches no other target."""
    return not hasattr(task, "targets") or task.targets("pool") is None


def _left_out(task: ClassificationSpec) -> str:
    """How many owners have samples and none to train on, where whole owners are not what is cut away."""
    data, given = task.data, task.dataset
    if data.client is None or task.split == "owner":
        return ""
    known = data.client
    if isinstance(given, Dataset) and data.client_test is not None and (task.recut or not len(given.y_test)):
        known = np.concatenate([known, data.client_test])  # the test set was cut here
    lost = np.setdiff1d(known, data.client[task.parts.pool]).size
    if not lost:
        return ""
    all_of_them = np.unique(known).size
    why = "all their samples went to the test set or to the server"
    return f"{lost} of {all_of_them} owners are no clients: {why}; lower test and validation, or give a test set"
