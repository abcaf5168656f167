"""Real processes: the drill on loopback, with TLS and node keys too, simulation with Ray, and the command line.

`make test` runs these after all others, two at a time. Every step waits for what it needs to see, never for a time: a
busy machine makes them longer, not different. The limits are for a machine on which nothing moves any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedcohort.flower import local
from fedcohort.flower.project import write_project
from fedcohort.types import Outcome

pytest.importorskip("flwr")
ROOT = Path(__file__).parents[2]
deployment_test = pytest.mark.deployment
LIMIT = 540  # seconds


def drill(tmp_path, *arguments):
    out = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "flower_drill.py"), "--json", str(out), *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = child.communicate(timeout=LIMIT - 60)[0]
    finally:
        child.terminate()  # the drill ends what it started
        child.wait(30)
    assert child.returncode == 0, said
    found = json.loads(out.read_text())
    assert found["orphans"] == []
    return found["runs"]


@deployment_test
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--selectors", "uniform"), id="insecure"),
        pytest.param(("--selectors", "oort", "--tls"), id="tls-and-node-keys"),
    ],
)
def test_deployment_that_is_treated_badly_finishes(tmp_path, arguments):
    """NaN, straggler, extra metric key, ServerApp and SuperNode killed with kill -9; no round is lost."""
    (run,) = drill(tmp_path, *arguments)
    asked, outcomes = len(run["outcomes"]), run["outcomes"]
    assert run["rounds"] == asked >= 4
    assert all(1 <= len(row) <= 2 for row in outcomes)  # two of three were asked for, if two were there
    reasons = {why: row for row in run["reasons"] for why in row.values()}
    assert {"update-not-finite", "metric-unknown:surprise"} <= set(reasons)
    rejected = sum(o == Outcome.REJECTED for row in outcomes for o in row.values())
    assert rejected == len([why for row in run["reasons"] for why in row.values()])
    assert Outcome.LATE in outcomes[0].values()  # the straggler
    (again,) = run["asked_again"]
    assert (run["server_kills"], again) == (1, asked - 1)
    assert Outcome.LATE in outcomes[again - 1].values()  # the client whose SuperNode was killed
    assert run["accuracy"][-1] > run["accuracy"][0]
    assert run["accuracy"][-1] > 0.3


@deployment_test
@pytest.mark.timeout(LIMIT)
def test_simulation_with_ray(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="flwr's simulation needs Ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not in a cluster that somebody else has started here
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_worker_niceness", "0")  # at Ray's own 15 a busy machine starves the workers
    write_project(tmp_path / "my-app")
    deployment = local.Deployment(tmp_path / "deployment", local.free_port())
    (deployment.folder / "flwr").mkdir(parents=True)
    marks = []
    try:
        local.start_superlink(deployment, simulation=True)
        size = ["--federation-config", "num-supernodes=5 client-resources-num-cpus=1"]
        settings = ["--run-config", 'num-server-rounds=3 cohort=2 min-available=5 selector="oort"']
        app = str(tmp_path / "my-app")
        command = [local.program("flwr"), "run", app, local.CONNECTION, "--stream", *size, *settings]
        run = deployment.launch("run", command)
        until = time.monotonic() + LIMIT - 60
        while "accuracy by round" not in (text := Path(run.log).read_text()):
            assert time.monotonic() < until, text
            assert local.marked(run.mark), text
            time.sleep(0.5)
        assert "round 3: asked" in text
    finally:
        marks = [p.mark for p in deployment.processes]
        deployment.down(2.0)
    assert [pid for mark in marks for pid in local.marked(mark)] == []


@deployment_test
@pytest.mark.timeout(LIMIT)
def test_up_and_down_leave_nothing(tmp_path):
    def fedcohort(*arguments):
        command = [sys.executable, "-m", "fedcohort.cli.main", "flower", *arguments]
        return subprocess.run(command, cwd=tmp_path, timeout=LIMIT / 3, check=False, capture_output=True, text=True)

    up = fedcohort("up", "--clients", "2")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        deployment = local.Deployment.load(tmp_path / local.FOLDER)
        marks = [p.mark for p in deployment.processes]
        assert [p.name for p in deployment.alive()] == ["superlink", "supernode-0", "supernode-1"]
        again = fedcohort("up")
        assert again.returncode == 2
        assert "is running here" in again.stderr
        for process in deployment.processes:  # as after a crash of the machine: the file is there, they are not
            local.kill(process)
        anew = fedcohort("up", "--clients", "1")
        assert anew.returncode == 0, anew.stdout + anew.stderr
        deployment = local.Deployment.load(tmp_path / local.FOLDER)
        marks += [p.mark for p in deployment.processes]
        assert [p.name for p in deployment.alive()] == ["superlink", "supernode-0"]
    finally:
        down = fedcohort("down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert [pid for mark in marks for pid in local.marked(mark)] == []
    nothing = fedcohort("down")
    assert nothing.returncode == 2
    assert "no deployment was started here" in nothing.stderr


def test_processes_are_found_by_mark_whatever_their_session(tmp_path):
    """A child in a session of its own, whose parent is gone, is still ours and is ended by its id."""
    deployment = local.Deployment(tmp_path, 0)
    child = "import time; time.sleep(100)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    process = deployment.launch("parent", [sys.executable, "-c", parent])
    local._CHILDREN[process.pid].wait(60)
    until = time.monotonic() + 60
    while not (orphans := local.marked(process.mark)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(orphans) == 1
    assert orphans[0] != os.getpid()
    deployment.down(0.2)
    assert local.marked(process.mark) == []
