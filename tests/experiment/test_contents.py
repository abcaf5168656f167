"""Digests of what the texts of a run only name, and runs that are continued with other objects than they began with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

import fedcohort as fc
from fedcohort.errors import RunExists
from fedcohort.experiment.contents import digest_of
from fedcohort.experiment.runs import Objects, read, resume
from fedcohort.worlds.partition import Iid
from fedcohort.worlds.world_spec import WorldSpec

FEW = {"rounds": 3, "cohort_size": 2, "world": "iid-v1(clients=6)"}


def data(shift=0.0):
    x = np.random.default_rng(0).normal(size=(80, 3)) + shift
    return fc.Dataset.from_arrays(x, np.arange(80) % 2)


def interrupted(task, folder, **more):
    """A run of this task that ended with round 0."""

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fc.simulate(task=task, out=folder, on_round=stop, **{**FEW, **more})


@pytest.mark.parametrize("other", [{"lr": 0.5}, {"epochs": 3}, {"hidden": 5}, {"shift": 1.0}, {"validation": 0.2}])
def test_a_run_is_not_continued_with_another_task(other, tmp_path):
    interrupted(fc.task_from(data(), hidden=4), tmp_path / "r")
    changed = fc.task_from(data(other.pop("shift", 0.0)), **{"hidden": 4, **other})
    with pytest.raises(RunExists, match=r"it was started with another task .* give the same one again"):
        fc.simulate(task=changed, out=tmp_path / "r", resume=True, **FEW)
    with pytest.raises(RunExists, match="it was started with another task"):
        resume(tmp_path / "r", own=Objects(task=changed))
    assert len(read(tmp_path / "r").history.rows) == 1
    same = fc.task_from(data(), hidden=4)
    again = fc.simulate(task=same, out=tmp_path / "r", resume=True, **FEW)
    assert again.rows == fc.simulate(task=same, **FEW).rows


@dataclass(frozen=True)
class Spread(Iid):
    """A partition that no text makes again."""

    extra: float = 1.0


def test_nor_in_another_world(tmp_path):
    task, keys = fc.task_from(data(), hidden=4), {"out": tmp_path / "r", "rounds": 2, "cohort_size": 2}
    whole = fc.simulate(task=task, world=WorldSpec("w", 6, Spread()), **keys)
    with pytest.raises(RunExists, match="it was started with another world; give the same one again"):
        fc.simulate(task=task, world=WorldSpec("w", 6, Spread(extra=2.0)), **keys, resume=True)
    assert fc.simulate(task=task, world=WorldSpec("w", 6, Spread()), **keys, resume=True).rows == whole.rows


def test_the_remedy_for_a_folder_that_holds_a_run_is_one_that_works(tmp_path):
    task = fc.task_from(data(), hidden=4)
    interrupted(task, tmp_path / "r")
    with pytest.raises(RunExists, match="add resume=True to continue it with the same objects, or use another folder"):
        fc.simulate(task=task, out=tmp_path / "r", **FEW)
    assert len(fc.simulate(task=task, out=tmp_path / "r", resume=True, **FEW).rows) == 3
    with pytest.raises(RunExists, match=r"another rounds.* add resume=True to continue it with the same objects for"):
        fc.simulate(task=task, out=tmp_path / "r", resume=True, **{**FEW, "rounds": 9})
    fc.simulate(task="quadratic", out=tmp_path / "q", **FEW)
    with pytest.raises(RunExists, match=r"`fedcohort resume .*q`, or use another folder"):
        fc.simulate(task="quadratic", out=tmp_path / "q", **FEW)


def test_an_object_that_was_used_since_is_the_same(tmp_path):
    """The task that the interrupted run has used, with what it has computed since, and a fresh one like it."""
    used = fc.task_from(data(), hidden=4)
    before = digest_of(used)
    interrupted(used, tmp_path / "r")
    assert digest_of(used) == before == digest_of(fc.task_from(data(), hidden=4))
    assert len(fc.simulate(task=used, out=tmp_path / "r", resume=True, **FEW).rows) == 3


def test_torch_tasks_count_by_layers_data_and_plan_and_not_by_first_weights(tmp_path):
    torch = pytest.importorskip("torch")
    x, y = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32), np.arange(80) % 2

    def task(width=4, x=x, lr=0.1):
        return fc.TorchTask(
            lambda: torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 2)), (x, y), lr=lr
        )

    interrupted(task(), tmp_path / "r")
    for other in (task(width=5), task(x=x + 1), task(lr=0.2)):
        with pytest.raises(RunExists, match="another task"):
            fc.simulate(task=other, out=tmp_path / "r", resume=True, **FEW)
    assert len(fc.simulate(task=task(), out=tmp_path / "r", resume=True, **FEW).rows) == 3
    one, other = (fc.TorchTask(torch.nn.Linear(3, 2), (x, y)) for _ in range(2))
    assert digest_of(one) == digest_of(other)


def test_digests_by_hand():
    alike = [
        (np.arange(4), np.arange(8)[:4]),
        (np.asfortranarray(np.eye(3)), np.eye(3)),
        ({"b", "a"}, {"a", "b"}),
        (np.array(3.0), np.array(3.0)),
        (np.array(["ann", "bo"]), np.array(["ann", "bo"])),
        (partial(print, 1), partial(print, 1)),
        (np.array(["a", None], object), np.array(["a", None], object)),
    ]
    for one, other in alike:
        assert digest_of(one) == digest_of(other)
    apart = [
        (np.arange(4), np.arange(4.0)),
        (np.arange(4), np.arange(4).reshape(2, 2)),
        (["a", "bc"], ["ab", "c"]),
        (1, True),
        (np.empty((0, 3)), np.empty((0, 4))),
        (np.array(["ann"]), np.array(["bob"])),
        (partial(print, 1), partial(print, 2)),
        (print, repr),
        ({"a": 1}, {"a": 2}),
        (None, "None"),
    ]
    for one, other in apart:
        assert digest_of(one) != digest_of(other)
