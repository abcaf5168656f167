"""Real processes: the drill on loopback, with TLS and node keys too, simulation with Ray, and the command line.

`make test` runs these after all others, two at a time, beside mypy. Every step waits for what it needs to see, never
for a time: a busy machine makes them longer, not different. The limits are for a machine on which nothing moves.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedcohort.errors import StoreError
from fedcohort.flower.dev import deployment as local
from fedcohort.types import Outcome

pytest.importorskip("flwr")
ROOT = Path(__file__).parents[2]
deployment_test = pytest.mark.deployment
LIMIT = 540  # seconds


def drill(tmp_path, *arguments):
    out = tmp_path / "figures.json"
    program = str(ROOT / "benchmarks" / "flower_drill.py")  # patience: a step that hangs is named
    command = [sys.executable, program, "--json", str(out), "--patience", "240", *arguments]
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


def check_drill(run):
    """NaN, straggler, extra metric, ServerApp (or SuperLink) and SuperNode killed with kill -9; no round is lost."""
    asked, outcomes = len(run["outcomes"]), run["outcomes"]
    assert run["rounds"] == asked >= 4
    assert all(1 <= len(row) <= 2 for row in outcomes)  # two of three were asked for, if two were there
    reasons = [why for row in run["reasons"] for why in row.values() if why != "not-connected"]  # a slow heartbeat
    assert {"update-not-finite", "metric-unknown:surprise"} <= set(reasons)
    assert sum(o == Outcome.REJECTED for row in outcomes for o in row.values()) == len(reasons)
    assert Outcome.LATE in outcomes[0].values()  # the straggler
    (again,) = run["asked_again"]
    assert (run["server_kills"], again) == (1, asked - 1)
    assert {Outcome.LATE, Outcome.FAILED} & set(outcomes[again - 1].values())  # the client whose SuperNode was killed
    assert run["accuracy"][-1] > run["accuracy"][0]
    assert run["accuracy"][-1] > 0.3


@deployment_test
@pytest.mark.timeout(LIMIT)
def test_deployment_that_is_treated_badly_finishes(tmp_path):
    (run,) = drill(tmp_path, "--selectors", "uniform", "--superlink")
    check_drill(run)


@deployment_test
@pytest.mark.timeout(LIMIT)
def test_simulation_as_a_newcomer_runs_it(tmp_path, monkeypatch):
    """`flower new`, `up --simulation`, the lines that `up` prints, `down`."""
    pytest.importorskip("ray", reason="flwr's simulation needs Ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not in a cluster that somebody else has started here
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_worker_niceness", "0")  # at Ray's own 15 a busy machine starves the workers
    assert fedcohort(tmp_path, "new", "my-app").returncode == 0
    app, marks = tmp_path / "my-app", []
    up = fedcohort(app, "up", "--simulation")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        marks = [p.mark for p in local.Deployment.load(app / local.FOLDER).processes]
        source, run = [line.strip() for line in up.stdout.splitlines() if line.startswith("  ")]
        settings = 'num-server-rounds=3 cohort-size=2 min-available=5 selector="oort"'
        line = f"PATH={shlex.quote(local._path())}; {source} && {run} --run-config {shlex.quote(settings)}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=app, timeout=LIMIT - 120, check=False, capture_output=True, text=True
        )
        assert "accuracy by round" in done.stdout, done.stdout + done.stderr
        assert "round 3: asked" in done.stdout
    finally:
        down = fedcohort(app, "down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert [pid for mark in marks for pid in local.marked(mark)] == []


def fedcohort(folder, *arguments):
    command = [sys.executable, "-m", "fedcohort.cli.main", "flower", *arguments]
    return subprocess.run(command, cwd=folder, timeout=LIMIT / 3, check=False, capture_output=True, text=True)


@deployment_test
@pytest.mark.timeout(LIMIT)
def test_tls_with_node_keys_finishes_too(tmp_path):
    (run,) = drill(tmp_path, "--selectors", "oort", "--tls")
    check_drill(run)


@deployment_test
@pytest.mark.timeout(LIMIT)
def test_restarted_supernodes_are_used_in_the_next_round():
    """Each comes back under another node id and with another key, while Flower still lists the dead one."""
    torture = str(ROOT / "tests" / "stress" / "torture")
    code = f"import sys, json; sys.path[:0] = {[str(ROOT), torture]}; import flower"
    code += "; print(json.dumps(flower.storms(1, (False,))))"
    done = subprocess.run([sys.executable, "-c", code], timeout=LIMIT - 60, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["SuperNodes restarted"], found["never usable again"], found["processes left"]) == (3, 0, 0)
    assert found["rounds until all are usable, worst"] <= 3  # the next one; on busy cores a start outlasts a round


@deployment_test
@pytest.mark.timeout(LIMIT)
def test_up_and_down_leave_nothing(tmp_path):
    up = fedcohort(tmp_path, "up", "--clients", "2")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        deployment = local.Deployment.load(tmp_path / local.FOLDER)
        marks = [p.mark for p in deployment.processes]
        assert [p.name for p in deployment.alive()] == ["superlink", "supernode-0", "supernode-1"]
        again = fedcohort(tmp_path, "up")
        assert again.returncode == 2
        assert "is running here" in again.stderr
        link = deployment.processes[0]
        os.kill(link.pid, signal.SIGKILL)
        revived = fedcohort(tmp_path, "up")  # the SuperLink from its database; nothing else changes
        assert revived.returncode == 0, revived.stdout + revived.stderr
        deployment, before = local.Deployment.load(tmp_path / local.FOLDER), deployment.processes
        assert sorted(p.name for p in deployment.alive()) == ["superlink", "supernode-0", "supernode-1"]
        assert len({p.pid for p in deployment.processes} & {p.pid for p in before}) == 2
        for process in deployment.processes:  # as after a crash of the machine: the file is there, they are not
            local.kill(process)
        anew = fedcohort(tmp_path, "up", "--clients", "1")
        assert anew.returncode == 0, anew.stdout + anew.stderr
        deployment = local.Deployment.load(tmp_path / local.FOLDER)
        marks += [p.mark for p in deployment.processes]
        assert [p.name for p in deployment.alive()] == ["superlink", "supernode-0"]
    finally:
        down = fedcohort(tmp_path, "down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert [pid for mark in marks for pid in local.marked(mark)] == []
    nothing = fedcohort(tmp_path, "down")
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


def test_a_superlink_that_ends_at_once_says_why(tmp_path, monkeypatch):
    script = tmp_path / "flower-superlink"
    script.write_text(f"#!{sys.executable}\nprint('the port is taken')\nraise SystemExit(1)\n")
    script.chmod(0o755)
    monkeypatch.setattr(local, "program", lambda name: str(tmp_path / name))
    with pytest.raises(StoreError, match=r"it ended at once: the port is taken; see .*superlink\.log"):
        local.up(tmp_path / "here", 1)


def test_a_superlink_is_not_taken_for_dead_while_it_starts(tmp_path, monkeypatch):
    """The environment of a process reads as empty between its fork and the end of its exec."""
    script = tmp_path / "flower-superlink"
    listens = "import socket, sys, time\ns = socket.create_server(('127.0.0.1', int(sys.argv[4])))\ntime.sleep(60)\n"
    script.write_text(f"#!{sys.executable}\n{listens}")
    script.chmod(0o755)
    monkeypatch.setattr(local, "program", lambda name: str(tmp_path / name))
    monkeypatch.setattr(local, "marked", lambda mark: [])
    deployment = local.Deployment(tmp_path, local.free_port())
    (tmp_path / "flwr").mkdir()
    process = local.start_superlink(deployment, 60.0)
    os.kill(process.pid, signal.SIGKILL)
    local.reap(process)


def test_free_ports_are_none_that_outgoing_connections_get():
    assert all(10_000 <= local.free_port() < 32_768 for _ in range(20))
