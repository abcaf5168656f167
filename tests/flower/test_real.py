"""Real processes: the drill on loopback, TLS with node keys, simulation with Ray, and the command line.

A message phase of a real deployment costs six seconds on an idle machine, so there are few rounds here; the drill at
its full length is `benchmarks/flower_drill.py`.
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

pytest.importorskip("flwr")
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]


def drill(tmp_path, *arguments):
    out = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "flower_drill.py"), "--json", str(out), *arguments]
    done = subprocess.run(command, timeout=850, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["orphans"] == []
    return found["runs"]


def test_deployment_that_is_treated_badly_finishes(tmp_path):
    """NaN, straggler, extra metric key, ServerApp and SuperNode killed with kill -9: three rounds, none lost."""
    (run,) = drill(tmp_path, "--selectors", "uniform", "--rounds", "3", "--deadline", "25", "--pause", "1")
    assert (run["rounds"], run["server_kills"], run["resumed"]) == (3, 1, True)
    reasons = [why for row in run["reasons"] for why in row.values()]
    assert "update-not-finite" in reasons
    assert any(1 in row.values() for row in run["outcomes"])  # LATE
    assert run["accuracy"][-1] > 0.3


def test_tls_with_node_keys(tmp_path):
    (run,) = drill(tmp_path, "--tls", "--calm", "--selectors", "oort", "--rounds", "1", "--deadline", "60")
    assert run["rounds"] == 1
    assert run["accuracy"][0] > 0.2


def test_simulation_with_ray(tmp_path):
    write_project(tmp_path / "my-app")
    deployment = local.Deployment(tmp_path / "deployment", local.free_port())
    (deployment.folder / "flwr").mkdir(parents=True)
    marks = []
    try:
        local.start_superlink(deployment, simulation=True)
        size = ["--federation-config", "num-supernodes=4 client-resources-num-cpus=1"]
        settings = ["--run-config", "num-server-rounds=2 cohort=2 min-available=4"]
        app = str(tmp_path / "my-app")
        command = [local.program("flwr"), "run", app, local.CONNECTION, "--stream", *size, *settings]
        run = deployment.launch("run", command)
        until = time.monotonic() + 240
        while "accuracy by round" not in (text := Path(run.log).read_text()):
            assert time.monotonic() < until, text
            time.sleep(0.5)
        assert "round 2: asked" in text
    finally:
        marks = [p.mark for p in deployment.processes]
        deployment.down(5.0)
    assert [pid for mark in marks for pid in local.marked(mark)] == []


def test_up_and_down_leave_nothing(tmp_path):
    def fedcohort(*arguments):
        command = [sys.executable, "-m", "fedcohort.cli.main", "flower", *arguments]
        return subprocess.run(command, cwd=tmp_path, timeout=150, check=False, capture_output=True, text=True)

    up = fedcohort("up", "--clients", "2")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        deployment = local.Deployment.load(tmp_path / local.FOLDER)
        marks = [p.mark for p in deployment.processes]
        assert [p.name for p in deployment.alive()] == ["superlink", "supernode-0", "supernode-1"]
        again = fedcohort("up")
        assert again.returncode == 2
        assert "is running here" in again.stderr
    finally:
        down = fedcohort("down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert [pid for mark in marks for pid in local.marked(mark)] == []
    assert fedcohort("down").returncode == 2


def test_processes_are_found_by_mark_whatever_their_session(tmp_path):
    """A child in a session of its own, whose parent is gone, is still ours and is ended by its id."""
    deployment = local.Deployment(tmp_path, 0)
    child = "import time; time.sleep(100)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    process = deployment.launch("parent", [sys.executable, "-c", parent])
    local._CHILDREN[process.pid].wait(20)
    until = time.monotonic() + 20
    while not (orphans := local.marked(process.mark)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(orphans) == 1
    assert orphans[0] != os.getpid()
    deployment.down(0.2)
    assert local.marked(process.mark) == []
