"""Which runs belong together: what a text only names counts by its content, and of two like runs the newer one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import fedcohort as fc
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.metrics.comparison import compare
from fedcohort.experiment.metrics.settings import counted, setting_names
from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.experiment.runs import run
from fedcohort.report.build import make_report
from fedcohort.report.collected import gather
from fedcohort.rounds.history import History

SELECTOR = """import fedcohort as fc

class A(fc.StatefulSelector):
    needs = frozenset()
    def select(self, rnd, rng):
        return fc.Cohort(rnd.available[{cut}][: rnd.size])
    def observe(self, result): ...
"""
FEW = {"rounds": 2, "cohort_size": 2, "world": "iid-v1(clients=6)"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def table(path: Path, shift: float) -> None:
    """A table of two classes whose one feature is shifted."""
    rows = [f"{k % 2 + shift * (k % 7)},{'yes' if k % 2 else 'no'}" for k in range(60)]
    path.write_text("\n".join(["dose,ill", *rows]) + "\n")


def selector(path: Path, cut: str) -> None:
    """The same class with other code, as a new process would import it."""
    path.write_text(SELECTOR.format(cut=cut))
    sys.modules.pop(path.stem, None)


def stored(name: str, **keys) -> Path:
    """A run in runs/NAME; each is newer than the one before."""
    place = Path("runs") / name
    run(RunConfig(**{**FEW, **keys}), place)
    made = 1_000_000 + len(list(Path("runs").iterdir()))
    os.utime(place / "versions.json", (made, made))
    return place


def shown():
    """Settings with the entries of each, as a comparison and as a report have them: name -> entry -> end by seed."""
    found = compare("runs", name="final")
    compared = {s.name: {r.entry: r.values for r in s.rows} for s in found.settings}
    read = gather([Path("runs")])
    reported = {
        name: {e: {r.config.seed: r.history.accuracy[-1] for r in runs} for e, runs in read.entries(name).items()}
        for name in read.settings
    }
    return compared, reported, [n for n in found.notes if "left out" in n], [n for n in read.notes if "left out" in n]


def test_runs_on_changed_data_are_another_setting(here):
    task = "csv:clinic.csv(target=ill)"
    table(Path("clinic.csv"), 0.0)
    stored("a", task=task)
    table(Path("clinic.csv"), 3.0)
    stored("b", task=task, selector="round-robin")
    compared, reported, said, told = shown()
    assert sorted(list(rows) for rows in compared.values()) == [["round-robin"], ["uniform"]]
    assert compared == reported
    assert said == told == []
    assert all(name.startswith(f"iid-v1(clients=6), {task}, task content ") for name in compared)
    stored("c", task=task)  # both selectors on the new file: one setting of two, and the old run on its own
    compared, reported, said, _ = shown()
    assert sorted(len(rows) for rows in compared.values()) == [1, 2]
    assert compared == reported
    assert said == []


def test_of_changed_code_only_the_newest_runs_count(here):
    """Seeds 0 and 1 with the old code, then seed 0 with the new one: seed 1 is not mixed with it."""
    selector(Path("settings_mine.py"), "::1")
    keys = {"task": "digits-softmax", "selector": "settings_mine:A"}
    stored("z", **keys)
    stored("y", **keys, seed=1)
    selector(Path("settings_mine.py"), "::-1")
    new = stored("a", **keys)
    stored("b", task="digits-softmax")
    compared, reported, said, told = shown()
    (rows,) = compared.values()
    end = gather([new]).runs[0].history.accuracy[-1]
    assert rows["settings_mine:A"] == {0: end}
    assert compared == reported
    note = "2 runs are left out: the code of settings_mine:A was changed, and only its newest runs count"
    assert said == told == [note]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_of_like_runs_the_newer_one_counts(here, names):
    """Whatever the folders are called."""
    for name in names:
        stored(name, task="quadratic")
    found, left = counted(r.record for n in names for r in gather([Path("runs") / n]).runs)
    assert [r.folder.name for r in found] == [names[1]]
    assert left == ["1 run is left out: a newer run has the same setting, selector and seed"]
    assert [r.folder.name for r in gather([Path("runs")]).runs] == [names[1]]
    assert left[0] in compare("runs").notes
    assert left[0] in make_report([Path("runs")], Path("r.md")).gathered.notes


def made(name, started, finished=True, **contents):
    keys = {"seed": contents.pop("seed", 0), "task": "given:mine"}
    kept = {"task": "t", **contents}
    return RunRecord(
        RunConfig(**keys), History(4), folder=Path(name), contents=kept, started=started, finished=finished
    )


def test_finished_runs_count_before_newer_ones_that_are_not():
    done, going = made("a", 1.0), made("b", 2.0, finished=False)
    assert counted([going, done])[0] == [done]
    other = made("c", 2.0, finished=False, seed=1)
    assert counted([done, other])[0] == [done, other]


def test_contents_are_in_a_name_only_where_it_needs_them():
    one, other, old = made("a", 1.0), made("b", 1.0, task="0123456789"), made("c", 1.0)
    old.contents = {}
    assert setting_names([one, one]) == ["mixed-v1, given:mine"] * 2
    assert setting_names([one, other, old]) == [
        f"mixed-v1, given:mine, task content {what}" for what in ("t", "01234567", "not kept")
    ]
    assert setting_names([made("a", 1.0, selector="x"), made("b", 1.0, selector="y")]) == ["mixed-v1, given:mine"] * 2


def test_given_tasks_are_told_apart_by_their_data(here):
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    for name, selector in (("a", "uniform"), ("b", "round-robin")):
        data = fc.Dataset.from_arrays(rng.normal(size=(80, 3)), y)
        fc.simulate(selector, task=fc.task_from(data, hidden=4), **FEW, out=f"runs/{name}")
    assert [len(s.rows) for s in compare("runs").settings] == [1, 1]
    fc.simulate("oort", task=fc.task_from(data, hidden=4), **FEW, out="runs/c")
    assert sorted(len(s.rows) for s in compare("runs").settings) == [1, 2]


def test_a_changed_world_file_is_another_setting(here):
    for name, clients in (("a", 6), ("b", 7)):
        Path("w.toml").write_text(f'name = "w"\nclients = {clients}\n[partition]\nkind = "iid"\n')
        stored(name, world="w.toml", task="quadratic", seed=clients)
    names = [s.name for s in compare("runs").settings]
    assert len(names) == 2
    assert all(name.startswith("w.toml, quadratic, world content ") for name in names)
