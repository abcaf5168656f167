"""kill -9 of real Flower processes at random moments: ServerApps and SuperNodes of a deployment on loopback.

A ServerApp is killed when it owns the state folder: one that is killed earlier is started anew by Flower itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedcohort.errors import FedcohortError
from fedcohort.experiment.verification import verify
from fedcohort.flower.dev import deployment as local
from fedcohort.storage.journal import Journal

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from flower_drill import Drill, mentioning

CLIENTS, LONGEST = 3, 20.0  # seconds between two kills at most
OPTIONS = argparse.Namespace(tls=False, clients=CLIENTS, rounds=10_000, deadline=0.0, patience=900.0, calm=True)


def kills(times: int, seed: int) -> dict[str, int]:
    """So many kills in one run, each followed by a restart; then two more rounds, and the run is replayed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
    rng, figures = np.random.default_rng(seed), dict.fromkeys(("ServerApp killed", "SuperNode killed"), 0)
    figures.update({"rounds": 0, "records lost": 0, "runs not finished": 0, "processes left": 0})
    with tempfile.TemporaryDirectory(prefix="flower-kills-") as name, contextlib.redirect_stdout(sys.stderr):
        drill, marks = Drill(Path(name), "oort", OPTIONS), []
        try:
            drill.up()
            drill.run()
            for at in range(times):
                drill.wait(lambda: _owner(drill) is not None, "a ServerApp that owns the folder")
                time.sleep(float(rng.uniform(0.0, LONGEST)))
                server = at == times - 1 or rng.random() < 0.5  # the last one ends the run without end
                length, head = _head(drill.state)
                _kill(drill, int(rng.integers(CLIENTS)), server, marks, last=at == times - 1)
                figures["ServerApp killed" if server else "SuperNode killed"] += 1
                figures["records lost"] += not _holds(drill.state, length, head)
            drill.wait(lambda: drill.records("close"), "the end of the run")
            figures["rounds"] = verify(drill.state).rounds
        except (TimeoutError, FedcohortError) as error:
            print(error, file=sys.stderr)
            figures["runs not finished"] += 1
        finally:
            marks += [p.mark for p in drill.deployment.processes]
            drill.deployment.down(2.0)
        figures["processes left"] = len([p for m in marks for p in local.marked(m)] + mentioning(Path(name)))
    return figures


def _kill(drill: Drill, client: int, server: bool, marks: list[str], *, last: bool) -> None:
    if server:
        drill.wait(lambda: _owner(drill) is not None, "a ServerApp that owns the folder")
        os.kill(_owner(drill) or 0, signal.SIGKILL)
        drill.say(f"ServerApp killed in round {len(drill.records('ask'))}")
        last_round = {"num-server-rounds": len(drill.records("tell")) + 2} if last else {}
        drill.run(**{"min-available": 1, **last_round})
        return
    drill.kill_super_node(str(client))
    dead = next(p for p in drill.deployment.processes if p.name == f"supernode-{client}")
    marks.append(dead.mark)
    drill.deployment.processes.remove(dead)
    local.start_supernode(drill.deployment, client, CLIENTS)


def _owner(drill: Drill) -> int | None:
    """The living process that owns the state folder; a killed one leaves its number there."""
    try:
        pid = int((drill.state / "lock").read_text())
        return pid if Path(f"/proc/{pid}/cmdline").read_bytes() else None
    except (OSError, ValueError):
        return None


def _head(state: Path) -> tuple[int, bytes]:
    if not (state / "journal.db").exists():
        return 0, b""
    journal = Journal.read(state / "journal.db")
    try:
        return journal.length, journal.head
    finally:
        journal.close()


def _holds(state: Path, length: int, head: bytes) -> bool:
    """Whether the journal goes on from what it was."""
    if length == 0:
        return True
    journal = Journal.read(state / "journal.db")
    try:
        return journal.holds(length, head)
    finally:
        journal.close()
