"""Sweeps: stable ids, parallel equals one by one, failures and killed workers stop nothing, Ctrl-C loses nothing."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib

import pytest

from fedcohort.errors import BadParameter, UnknownName
from fedcohort.experiment import runner
from fedcohort.experiment.runner import Job, run_local
from fedcohort.experiment.runs import read
from fedcohort.experiment.store import Store, identity
from fedcohort.experiment.sweep import assign, from_mapping, read_file, run_sweep, seeds_of, split

WORLDS = {"worlds": ["iid-v1"], "world.clients": [12, 20], "deadline": [60, math.inf]}
KEYS = {"task": "digits-softmax", "rounds": 25, "cohort_size": 6}


def metrics(root):
    return {p.parent.name: p.read_bytes() for p in sorted(root.glob("*/metrics.jsonl"))}


def alone(sweep, root):
    """Every run in this process, one after the other: what a sweep must give."""
    store = Store(root)
    for config in sweep.runs():
        store.obtain(config)
    return metrics(root)


def test_the_grid_and_its_ids():
    sweep = from_mapping(
        {
            "selectors": ["uniform", {"name": "oort", "explore": 0.5}],
            "worlds": ["iid-v1", "mixed-v1"],
            "seeds": 3,
            **KEYS,
        }
    )
    runs = sweep.runs()
    assert len(runs) == len({identity(r) for r in runs}) == 12
    assert {(r.selector, r.world, r.seed) for r in runs} == {
        (s, w, k) for s in ("uniform", "oort(explore=0.5)") for w in ("iid-v1", "mixed-v1") for k in range(3)
    }
    assert all(r.rounds == 25 and r.task == "digits-softmax" for r in runs)
    shuffled = from_mapping(
        {"selectors": ["oort(explore=0.5)", "uniform()"], "worlds": ["mixed-v1", "iid-v1"], "seeds": [2, 0, 1], **KEYS}
    )
    assert shuffled.id() == sweep.id()
    assert from_mapping(tomllib.loads(sweep.toml())) == sweep
    assert from_mapping({"selector": "oort", "seed": [4]}).seeds == (4,)
    assert from_mapping({"selectors": ["oort", "oort(explore=0.9)"]}).selectors == ("oort",)  # the same twice


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"selektors": ["oort"]}, "selectors"),
        ({"selectors": ["ort"]}, "oort"),
        ({"selectors": []}, "list"),
        ({"selectors": [3]}, "not a selector"),
        ({"selectors": ["oort"], "selector": "oort"}, "say the same"),
        ({"seeds": [-1]}, "seeds"),
        ({"seeds": True}, "seeds"),
        ({"name": "../x"}, "file"),
        ({"rounds": 0}, "rounds"),
        ({"cohort_size": [5, 0]}, "cohort_size = 0"),
        ({"cohort_size": []}, "nothing to vary"),
        ({"cohort_size": [5, 10], "close_after": 7}, "at most cohort_size"),
        ({"selector.explore": [0.1]}, "no selector of this sweep .uniform. has such a parameter; add one of oort"),
        ({"selector": "oort", "selector.explore": [0.1, 7]}, "explore = 7"),
        ({"selector": "oort", "selector.explor": [0.1]}, "no selector of this sweep .oort. has"),
        ({"selektor.explore": [0.1]}, "did you mean selector"),
        ({"explore": [0.1]}, "selector.explore=VALUE"),
    ],
)
def test_mistakes(values, words):
    with pytest.raises((UnknownName, BadParameter), match=words):
        from_mapping(values)


def test_any_key_can_be_varied():
    """A parameter changes the entries that have it; the others are run once. The file holds the whole grid."""
    sweep = from_mapping(
        {"selectors": ["uniform", "oort"], "seeds": 2, "selector.explore": [0.1, 0.9], "cohort_size": [5, 10], **WORLDS}
    )
    runs = sweep.runs()
    assert len(runs) == len({identity(r) for r in runs}) == 3 * 2 * 2 * 2 * 2
    assert {r.selector for r in runs} == {"uniform", "oort(explore=0.1)", "oort"}
    assert {(r.cohort_size, r.deadline, r.world) for r in runs} == {
        (k, d, w) for k in (5, 10) for d in (60.0, math.inf) for w in ("iid-v1(clients=12)", "iid-v1(clients=20)")
    }
    assert from_mapping(tomllib.loads(sweep.toml())).runs() == runs
    assert from_mapping({"seed": 4}).seeds == (4,)


def test_lists_from_the_command_line():
    assert split("uniform, oort(explore=0.8, cutoff=0.9),x(inner='a(b=1,c=2)')") == [
        "uniform",
        "oort(explore=0.8, cutoff=0.9)",
        "x(inner='a(b=1,c=2)')",
    ]
    assert (seeds_of("5"), seeds_of("0,3,7"), seeds_of("10-12")) == (5, [0, 3, 7], [10, 11, 12])
    with pytest.raises(BadParameter, match="not seeds"):
        seeds_of("many")
    values = {"worlds": ["iid-v1", "mixed-v1"]}
    assign(values, "world.clients", 12)
    assert values == {"worlds": ["iid-v1(clients=12)", "mixed-v1(clients=12)"]}


def test_a_failure_and_killed_workers_stop_nothing(tmp_path):
    """One run cannot be built; the first worker to do a round is killed; the rest equals the runs one by one."""
    good = from_mapping({"selectors": ["uniform", "oort"], "seeds": 2, **KEYS})
    sweep = from_mapping({"selectors": ["uniform", "oort(explore=7)", "oort"], "seeds": 2, **KEYS})
    events, killed, store = [], [], Store(tmp_path / "sweep")

    def on_event(event):
        events.append(event)
        if event.kind == "round" and not killed:
            pid = int((store.root / event.job.id / "lock").read_text())
            os.kill(pid, signal.SIGKILL)
            killed.append(event.job.id)

    outcome = run_sweep(sweep, store, workers=2, on_event=on_event)
    assert [e.job.id for e in events if e.kind == "lost"] == killed
    assert "signal 9" in next(e.text for e in events if e.kind == "lost")
    assert outcome.states[killed[0]] == "resumed"
    assert len(outcome.errors) == 2
    assert all("explore = 7" in text for text in outcome.errors.values())
    assert metrics(store.root) == alone(good, tmp_path / "alone")
    ids, name = read_file(outcome.file)
    assert (len(ids), name) == (6, "sweep")
    told = json.loads(outcome.file.read_text())["runs"]
    assert sum(run["state"] == "failed" and "explore" in run["error"] for run in told) == 2

    events.clear()
    assert sorted(run_sweep(good, store, on_event=events.append).states.values()) == ["read"] * 4
    assert events == []  # nothing was started


def test_a_run_that_kills_its_workers_is_given_up(tmp_path, monkeypatch):
    """A worker that dies on every job: three attempts, then the run has failed, with the worker's last words."""
    dying = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit('out of luck')"]
    original = subprocess.Popen
    monkeypatch.setattr(runner.subprocess, "Popen", lambda _, **more: original(dying, **more))
    events = []
    run_local([Job("a", {}, str(tmp_path / "a"), 1), Job("b", {}, str(tmp_path / "b"), 1)], events.append, workers=1)
    assert [(e.job.id, e.kind) for e in events] == [
        (job, kind) for job in ("a", "b") for kind in ("lost", "lost", "failed")
    ]
    assert "out of luck" in events[-1].text
    assert "code 1" in events[-1].text


def test_workers_have_one_thread(monkeypatch, tmp_path):
    """What the worker's process sees, told by its own standard error."""
    show = (
        "import os, sys; sys.stdin.readline(); sys.exit(','.join(sorted(k for k, v in os.environ.items() if v == '1')))"
    )
    original = subprocess.Popen
    monkeypatch.setattr(runner.subprocess, "Popen", lambda _, **more: original([sys.executable, "-c", show], **more))
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    events = []
    run_local([Job("a", {}, str(tmp_path), 1)], events.append, workers=1)
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        assert name in events[0].text
    assert os.environ["OMP_NUM_THREADS"] == "8"  # this process keeps its own


def test_ctrl_c_and_the_same_command_again(tmp_path):
    """Interrupted in the middle: code 130, workers gone, some rounds kept; the same command finishes, exit code 0."""
    (tmp_path / "s.toml").write_text(
        'selectors = ["uniform"]\ntask = "digits-softmax"\nrounds = 150\ncohort_size = 6\nseeds = 2\n'
    )
    command = [sys.executable, "-m", "fedcohort.cli.main", "sweep", "s.toml", "--workers", "1"]
    child = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job may have it ignored
    )
    owner = ""
    snapshots = "runs/*/snapshots/*.snapshot"  # one is written before its round is in the journal: wait for the second
    while child.poll() is None and not (owner and len(list(tmp_path.glob(snapshots))) > 1):
        owner = "".join(p.read_text().strip() for p in tmp_path.glob("runs/*/lock"))
        time.sleep(0.005)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "nothing is lost" in err
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(owner), 0)
    begun = next(tmp_path.glob("runs/*/journal.db")).parent
    assert 0 < len(read(begun).history.rows) < 150
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 runs: 2 run, 0 read from the store, 0 failed" in done.stdout
    assert len(metrics(tmp_path / "runs")) == 2
