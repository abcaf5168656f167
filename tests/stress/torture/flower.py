"""kill -9 of real Flower processes: SuperLinks with a database, SuperNodes and ServerApps of deployments on loopback.

Deployments run side by side, a third of the kills on some with TLS and node keys. A kill comes at a random moment after
a round has closed; what was killed is started again as an operator would do it, and the next kill waits for the next
closed round. A deployment ends after so many kills with a replay of all its cohorts, and another one takes its place.
Every kill is written down at once in a file of its own, so that an interrupted hour goes on where it was.
The restart storm restarts every SuperNode in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import table

from fedcohort.errors import FedcohortError
from fedcohort.experiment.verification import verify
from fedcohort.flower.dev import deployment as local
from fedcohort.storage.journal import Journal
from fedcohort.types import Outcome

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from flower_drill import Drill, mentioning, rows_of

KINDS = ("SuperLink", "SuperNode", "ServerApp")
SIDE_BY_SIDE = 3  # deployments; fewer on a busy machine
OF_ONE = 15  # kills in a deployment before it ends and is replayed
CLIENTS, LONGEST = 3, 15.0  # seconds between a closed round and the next kill at most
GIVE_UP = 3  # deployments in a row that did not finish
RUNNING: list[Drill] = []
_LOCK = threading.Lock()


def kills(
    each: int, seed: int, kept: Path | None = None, side_by_side: int = SIDE_BY_SIDE, minutes: float = 600.0
) -> dict[str, Any]:
    """So many kills of each kind, or as many as begin in so many minutes; `kept` goes on where it was."""
    signal.signal(signal.SIGTERM, _end)
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "1"  # Flower's own: forty processes that look more often are busy
    with tempfile.TemporaryDirectory(prefix="flower-kills-") as name, contextlib.redirect_stdout(sys.stderr):
        until = time.monotonic() + 60.0 * minutes
        notes = Notes(kept or Path(name) / "kills.json", each, np.random.default_rng(seed), until)
        with ThreadPoolExecutor(side_by_side) as pool:
            list(pool.map(lambda at: _group(at, seed, notes, Path(name)), range(side_by_side)))
        left = mentioning(Path(name))
    return {"wanted of each": each, **notes.figures(), "processes left": len(left)}


class Notes:
    """The kills so far, in a file that is written after each."""

    def __init__(self, path: Path, each: int, rng: np.random.Generator, until: float = math.inf) -> None:
        self.path, self.rng, self.until = path, rng, until
        known = json.loads(path.read_text()) if path.exists() else {"kills": [], "ends": []}
        self.wanted = _left(known["kills"], each)
        if not any(self.wanted.values()):  # all were done: begin anew
            known, self.wanted = {"kills": [], "ends": []}, _left([], each)
        self.kills: list[dict[str, Any]] = known["kills"]
        self.ends: list[dict[str, Any]] = known["ends"]

    def sort(self) -> bool | None:
        """Whether the next deployment is with TLS and keys: drawn from the kills that are left; None after the last."""
        with _LOCK:
            left = [secure for (secure, _), many in self.wanted.items() for _ in range(many)]
            if not left or time.monotonic() > self.until:
                return None
            return left[int(self.rng.integers(len(left)))]

    def take(self, secure: bool) -> str | None:
        """What is to be killed next in a deployment of this sort."""
        with _LOCK:
            left = [kind for kind in KINDS for _ in range(self.wanted[secure, kind])]
            if not left or time.monotonic() > self.until:
                return None
            kind = left[int(self.rng.integers(len(left)))]
            self.wanted[secure, kind] -= 1
            return kind

    def give_back(self, secure: bool, kind: str) -> None:
        """It could not be done."""
        with _LOCK:
            self.wanted[secure, kind] += 1

    def add(self, to: list[dict[str, Any]], **entry: Any) -> None:
        """Write one more down."""
        with _LOCK:
            to.append({**entry, "commit": table.commit(), "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime())})
            text = ",\n".join(f"  {json.dumps(e)}" for e in self.kills)
            ends = ",\n".join(f"  {json.dumps(e)}" for e in self.ends)
            self.path.write_text(f'{{"kills": [\n{text}\n], "ends": [\n{ends}\n]}}\n')

    def figures(self) -> dict[str, Any]:
        """Everything in one row of the table."""
        of = {kind: [k for k in self.kills if k["kind"] == kind] for kind in KINDS}
        out: dict[str, Any] = {f"{kind} killed": len(found) for kind, found in of.items()}
        out["of these with TLS and keys"] = sum(k["secure"] for k in self.kills)
        out["records lost"] = sum(k["lost"] for k in self.kills)
        out["of these with all other processes started anew"] = sum(k.get("anew", 0) for k in self.kills)
        out["rounds trained again"] = sum(k["again"] for k in self.kills)
        for kind, found in of.items():
            if found:
                out[f"median seconds from kill to closed round, {kind}"] = round(median(k["seconds"] for k in found), 1)
        out["longest"] = round(max((k["seconds"] for k in self.kills), default=0.0), 1)
        out["rounds replayed"] = sum(e["rounds"] for e in self.ends)
        return out | {"runs not finished": sum(not e["finished"] for e in self.ends)}


def _left(done: list[dict[str, Any]], each: int) -> dict[tuple[bool, str], int]:
    """How many kills are still to do, with and without TLS and keys, by kind; a third are with."""
    wanted = {}
    for at, kind in enumerate(KINDS):
        for secure, many in ((True, (each + at) // 3), (False, each - (each + at) // 3)):
            found = sum(k["kind"] == kind and k["secure"] == secure for k in done)
            wanted[secure, kind] = max(many - found, 0)
    return wanted


def _group(at: int, seed: int, notes: Notes, folder: Path) -> None:
    """One deployment after the other, as long as there are kills to do."""
    failures, rng = 0, np.random.default_rng((seed, at, len(notes.kills)))
    while failures < GIVE_UP and (secure := notes.sort()) is not None:
        with tempfile.TemporaryDirectory(prefix=f"group-{at}-", dir=folder, ignore_cleanup_errors=True) as name:
            try:
                with _deployment(Path(name), secure, cohort=2) as drill:
                    done = _some(drill, secure, rng, notes)
                    rounds = _finish(drill)
                notes.add(notes.ends, secure=secure, finished=True, kills=done, rounds=rounds)
                failures = 0
            except (TimeoutError, FedcohortError, OSError) as error:
                failures += 1
                print(f"group {at}: {error}", file=sys.stderr, flush=True)
                notes.add(notes.ends, secure=secure, finished=False, kills=0, rounds=0, why=str(error)[:1000])


def _some(drill: Drill, secure: bool, rng: np.random.Generator, notes: Notes) -> int:
    """Kills in one deployment, as many as it gets; returns how many."""
    for done in range(OF_ONE):
        if (kind := notes.take(secure)) is None:
            return done
        try:
            found = _one(drill, kind, rng)
        except BaseException:
            notes.give_back(secure, kind)
            raise
        notes.add(notes.kills, kind=kind, secure=secure, **found)
    return OF_ONE


@contextlib.contextmanager
def _deployment(folder: Path, secure: bool, cohort: int) -> Iterator[Drill]:
    options = argparse.Namespace(
        tls=secure, clients=CLIENTS, rounds=10_000, deadline=45.0, patience=300.0, calm=True, cohort=cohort
    )
    drill = Drill(folder, "oort", options)
    RUNNING.append(drill)
    try:
        drill.up()
        drill.run(**{"cohort-size": cohort})
        drill.wait(lambda: drill.records("tell"), "the first round")
        yield drill
    finally:
        drill.deployment.down(2.0)
        RUNNING.remove(drill)


def _end(*_: object) -> None:
    """What was started is ended with us."""
    for drill in RUNNING:
        drill.deployment.down(1.0)
    os._exit(143)


def _one(drill: Drill, kind: str, rng: np.random.Generator) -> dict[str, Any]:
    """One kill at a random moment, the restart, and the next closed round."""
    time.sleep(float(rng.uniform(0.0, LONGEST)))
    drill.wait(lambda: owner(drill) is not None, "a ServerApp that owns the folder")
    length, head = _head(drill.state)
    told, again = len(drill.records("tell")), len(drill.records("again"))
    killed, anew = time.monotonic(), 0
    back = killed
    kill = {"SuperLink": _kill_superlink, "SuperNode": _kill_supernode, "ServerApp": _kill_server_app}[kind]
    try:
        kill(drill, rng)
        back = time.monotonic()
        drill.wait(lambda: len(drill.records("tell")) > told, f"the next round after the kill of a {kind}")
    except (TimeoutError, FedcohortError) as error:  # on a starved machine Flower takes back what it just started
        drill.say(str(error).splitlines()[0])
        _rebuild(drill)
        anew = 1
        drill.wait(lambda: len(drill.records("tell")) > told, "the next round of a new deployment")
    found = {"lost": int(not _holds(drill.state, length, head)), "again": len(drill.records("again")) - again}
    found |= {"seconds": round(time.monotonic() - killed, 1), "restart": round(back - killed, 1), "anew": anew}
    drill.say(f"{kind} killed, {found}")
    return found


def _rebuild(drill: Drill) -> None:
    """A new deployment for the same state folder, as where every other machine is lost."""
    drill.deployment.down(2.0)
    drill.deployment = local.Deployment(drill.folder / f"deployment-{drill.runs}", local.free_port(), drill.options.tls)
    (drill.deployment.folder / "flwr").mkdir(parents=True)
    drill.up()
    _resume(drill)


def _kill_superlink(drill: Drill, rng: np.random.Generator) -> None:
    """The SuperLink alone; its ServerApp ends with it (Flower), and the run is submitted again."""
    link = next(p for p in drill.deployment.processes if p.name == "superlink")
    before = owner(drill)
    os.kill(link.pid, signal.SIGKILL)
    local.reap(link)
    local.revive(drill.deployment, drill.options.patience)
    drill.wait(lambda: owner(drill) != before, "the end of the ServerApp whose SuperLink is gone")
    _resume(drill)


def _kill_server_app(drill: Drill, rng: np.random.Generator) -> None:
    os.kill(owner(drill) or 0, signal.SIGKILL)
    _resume(drill)


def _kill_supernode(drill: Drill, rng: np.random.Generator) -> None:
    """A SuperNode with all that it started, as in a power cut."""
    restart(drill, int(rng.integers(CLIENTS)))


def _resume(drill: Drill, **changes: object) -> None:
    drill.run(**{"min-available": 1, "cohort-size": drill.options.cohort, **changes})


def restart(drill: Drill, client: int) -> None:
    """Kill one SuperNode and everything it started, and start it again."""
    local.kill(next(p for p in drill.deployment.processes if p.name == f"supernode-{client}"))
    local.start_supernode(drill.deployment, client, CLIENTS)


def _finish(drill: Drill) -> int:
    """End the run without end by one that has two more rounds; then every cohort is chosen again from the journal."""
    drill.wait(lambda: owner(drill) is not None, "a ServerApp that owns the folder")
    os.kill(owner(drill) or 0, signal.SIGKILL)
    _resume(drill, **{"num-server-rounds": len(drill.records("tell")) + 2})
    drill.wait(lambda: drill.records("close"), "the end of the run")
    return int(verify(drill.state).rounds)


def storms(times: int, kinds: tuple[bool, ...] = (False, True)) -> dict[str, Any]:
    """Restart every SuperNode in turn, so often on a deployment without and one with TLS and node keys.

    Counted are rounds that begin after Flower has listed the new nodes, until one uses a reply of every client.
    """
    signal.signal(signal.SIGTERM, _end)
    out: dict[str, Any] = {"storms": 0, "SuperNodes restarted": 0, "rounds until all are usable, worst": 0}
    out |= {"with TLS and keys": 0, "never usable again": 0, "processes left": 0}
    with tempfile.TemporaryDirectory(prefix="flower-storm-") as name, contextlib.redirect_stdout(sys.stderr):
        for secure in kinds:
            (folder := Path(name) / f"secure-{secure}").mkdir()
            with _deployment(folder, secure, cohort=CLIENTS) as drill:
                for _ in range(times):
                    waited = _storm(drill)
                    out["never usable again"] += waited is None
                    worst = max(out["rounds until all are usable, worst"], waited or 0)
                    out["rounds until all are usable, worst"] = worst
                    out["storms"], out["with TLS and keys"] = out["storms"] + 1, out["with TLS and keys"] + secure
                    out["SuperNodes restarted"] += CLIENTS
        out["processes left"] = len(mentioning(Path(name)))
    return out


def _storm(drill: Drill) -> int | None:
    """One storm: the number of rounds that it took, or None if it is not over after five."""
    log = drill.deployment.folder / "superlink.log"
    listed = log.read_text(errors="replace").count("Activated node_id")
    for client in range(CLIENTS):
        restart(drill, client)

    def back() -> bool:
        _supervise(drill)
        return log.read_text(errors="replace").count("Activated node_id") >= listed + CLIENTS

    drill.wait(back, "all SuperNodes again")
    first = len(drill.records("ask"))

    def used() -> list[int]:
        rows = rows_of(drill.state)
        return [i for i in range(first, len(rows)) if _all_used(rows[i]["outcomes"])]

    drill.wait(lambda: used() or len(drill.records("tell")) >= first + 5, "a round with every client")
    drill.say(f"storm over: {[len(r['outcomes']) for r in rows_of(drill.state)[first:]]} asked by round")
    return used()[0] - first + 1 if used() else None


def _supervise(drill: Drill) -> None:
    """Start SuperNodes that have ended: with authentication Flower turns one away whose predecessor it still lists."""
    alive = {p.name for p in drill.deployment.alive()}
    for client in range(CLIENTS):
        if f"supernode-{client}" not in alive:
            restart(drill, client)


def _all_used(outcomes: dict[str, int]) -> bool:
    return len(outcomes) == CLIENTS and all(o == Outcome.OK for o in outcomes.values())


def owner(drill: Drill) -> int | None:
    """The living process that owns the state folder; a killed one leaves its number there."""
    try:
        pid = int((drill.state / "lock").read_text())
        return pid if Path(f"/proc/{pid}/cmdline").read_bytes() else None
    except (OSError, ValueError):
        return None


def _head(state: Path) -> tuple[int, bytes]:
    journal = Journal.read(state / "journal.db")
    try:
        return journal.length, journal.head
    finally:
        journal.close()


def _holds(state: Path, length: int, head: bytes) -> bool:
    """Whether the journal goes on from what it was."""
    journal = Journal.read(state / "journal.db")
    try:
        return journal.holds(length, head)
    finally:
        journal.close()
