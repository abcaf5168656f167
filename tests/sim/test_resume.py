"""kill -9 in the middle of `fedcohort run`, then `fedcohort resume`: byte-identical to the uninterrupted run."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedcohort.errors import RunExists, RunLocked, StoreError, VersionMismatch
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import read, resume, run
from fedcohort.sim.simulation import Simulation
from fedcohort.storage.journal import Journal

CONFIG = RunConfig(selector="oort", task="digits-softmax", rounds=12, cohort_size=6, seed=4)


def fingerprint(folder):
    """Everything that must not differ: the journal's records and the metrics file."""
    journal = Journal.read(folder / "journal.db")
    digest = hashlib.sha256(b"".join(r.hash for r in journal.records() if r.kind != "open")).hexdigest()
    journal.close()
    return digest, (folder / "metrics.jsonl").read_bytes()


def test_kill_minus_nine_and_resume(tmp_path):
    run(CONFIG, tmp_path / "whole")
    folder = tmp_path / "killed"
    keys = ["--selector", "oort", "--task", "digits-softmax", "--rounds", "12", "--cohort-size", "6", "--seed", "4"]
    command = [sys.executable, "-m", "fedcohort.cli.main", "run", *keys, "--out", str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 120
    while time.monotonic() < limit and not list(folder.glob("snapshots/round-*3.snapshot")):
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(timeout=30)
    done = len(read(folder).history.rows)
    assert done >= 2  # the snapshot of a round is there before its record
    again = subprocess.run(
        [sys.executable, "-m", "fedcohort.cli.main", "resume", str(folder)], timeout=120, check=False
    )
    assert again.returncode == 0
    assert fingerprint(folder) == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize("stage", ["ask", "tell", "snapshot"])
def test_a_crash_at_any_stage_is_made_good(tmp_path, monkeypatch, stage):
    """The process dies right after the ask, the tell or before the snapshot of round 5."""
    run(CONFIG, tmp_path / "whole")

    class Crash(BaseException):
        pass

    def crash_on(name, owner, when):
        original = getattr(owner, name)

        def wrapped(self, *args, **kwargs):
            out = original(self, *args, **kwargs) if stage != "snapshot" else None
            if when(self):
                raise Crash
            return out if stage != "snapshot" else original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    from fedcohort.rounds.session import Session
    from fedcohort.storage.snapshots import Snapshots

    if stage == "ask":
        crash_on("ask", Session, lambda s: s.index == 5)
    elif stage == "tell":
        crash_on("tell", Session, lambda s: s.index == 6)
    else:
        crash_on("save", Snapshots, lambda s: len(s._rounds()) == 2)
    folder = tmp_path / "crashed"
    with pytest.raises(Crash):
        run(CONFIG, folder)
    monkeypatch.undo()
    resume(folder)
    assert fingerprint(folder) == fingerprint(tmp_path / "whole")


def test_resume_of_a_finished_run_changes_nothing(tmp_path):
    run(CONFIG, tmp_path / "r")
    before = fingerprint(tmp_path / "r")
    resume(tmp_path / "r")
    assert fingerprint(tmp_path / "r") == before


def test_all_snapshots_lost_means_from_the_start(tmp_path):
    run(CONFIG, tmp_path / "r")
    before = fingerprint(tmp_path / "r")
    for file in (tmp_path / "r" / "snapshots").iterdir():
        file.write_bytes(b"rubbish")
    resume(tmp_path / "r")
    assert fingerprint(tmp_path / "r") == before


def test_folders_are_guarded(tmp_path, monkeypatch):
    run(CONFIG, tmp_path / "r")
    with pytest.raises(RunExists, match="resume"):
        run(CONFIG, tmp_path / "r")
    with pytest.raises(StoreError, match="no such folder"):
        resume(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="no journal"):
        resume(tmp_path / "empty")
    owner = Journal.open(tmp_path / "r" / "journal.db")
    with pytest.raises(RunLocked):
        resume(tmp_path / "r")
    owner.close()
    monkeypatch.setattr("fedcohort.storage.journal_reader.__version__", "9.9.0")
    with pytest.raises(VersionMismatch, match=r"written by fedcohort .* this is 9\.9\.0"):
        resume(tmp_path / "r")


def test_a_mistake_leaves_no_folder_behind(tmp_path):
    with pytest.raises(Exception, match="size = 999"):
        run(RunConfig(**{**CONFIG.to_dict(), "cohort_size": 999}), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_the_folder_tells_everything(tmp_path):
    finished = run(CONFIG, tmp_path / "r")
    versions = json.loads((tmp_path / "r" / "versions.json").read_text())
    assert {"fedcohort", "python", "numpy"} <= set(versions)
    assert 'selector = "oort"' in (tmp_path / "r" / "config.toml").read_text()
    lines = [json.loads(x) for x in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert lines == finished.history.rows
    assert read(tmp_path / "r").history.rows == lines


def test_snapshots_every_few_rounds_resume_the_same(tmp_path, monkeypatch):
    run(CONFIG, tmp_path / "whole")
    original = Simulation.__init__

    def rare(self, selector, method, world, task, settings, **kwargs):
        from dataclasses import replace

        original(self, selector, method, world, task, replace(settings, snapshot_every=5), **kwargs)

    monkeypatch.setattr(Simulation, "__init__", rare)
    run(CONFIG, tmp_path / "rare")
    resume(tmp_path / "rare")
    assert fingerprint(tmp_path / "rare") == fingerprint(tmp_path / "whole")
