"""The drill: a real Flower deployment on loopback that is treated badly, and finishes.

One SuperLink, three SuperNodes, digits. In one run of each selector:

    round 1   client 1 sends NaN, client 2 straggles beyond the deadline
    round 2   client 0 sends a metric key that nobody else sends
    round 3   the ServerApp is killed (kill -9) while clients train, and started again;
              then SuperNode 1 is killed (kill -9) while clients train

    python benchmarks/flower_drill.py                       # insecure, selectors uniform and oort
    python benchmarks/flower_drill.py --tls                 # TLS and registered node keys
    python benchmarks/flower_drill.py --calm --rounds 1     # no faults

Processes are ended by the ids they were started with; the last line says that none is left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from fedcohort.flower import local
from fedcohort.flower.project import write_project
from fedcohort.journal import Journal

FAULTS = {0: "2=extra", 1: "1=nan", 2: "1=straggle"}  # client -> round=what
FAULTY = '''
import time

import numpy as np


def faulty(train):
    """Does in a given round what the node config says."""

    def wrapped(msg, context):
        faults = dict(f.split("=") for f in str(context.node_config.get("fault", "")).split("+") if f)
        what = faults.get(str(msg.content["config"]["server-round"])) if context.run_config["faults"] else None
        if what == "straggle":
            time.sleep(float(context.run_config["deadline"]) + 10.0)
        reply = train(msg, context)
        if what == "nan":
            bad = {k: Array(np.full_like(a.numpy(), np.nan)) for k, a in reply.content["arrays"].items()}
            reply.content["arrays"] = ArrayRecord(bad)
        if what == "extra":
            reply.content["metrics"]["surprise"] = 1.0
        time.sleep(float(context.run_config["pause"]))
        return reply

    return wrapped


@app.train()
@faulty
def train('''


def write_app(folder: Path) -> Path:
    """The ready project, with clients that can be told to misbehave."""
    app = folder / "drill-app"
    write_project(app)
    client = app / "drill_app" / "client_app.py"
    text = client.read_text()
    assert "\n@app.train()\ndef train(" in text
    client.write_text(text.replace("\n@app.train()\ndef train(", FAULTY))
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace('state-dir = ""', 'state-dir = ""\nfaults = true\npause = 0.0'))
    server = app / "drill_app" / "server_app.py"
    server.write_text(server.read_text().replace("app_version=", "over_select=1.5,\n        app_version="))
    return app


class Run:
    """One `flwr run` against the deployment, followed through its journal."""

    def __init__(self, deployment: local.Deployment, app: Path, state: Path, settings: dict[str, object]) -> None:
        self.deployment, self.state = deployment, state
        pairs = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={json.dumps(v)}" for k, v in settings.items())
        command = [local.program("flwr"), "run", str(app), local.CONNECTION, "--stream", "--run-config", pairs]
        self.process = deployment.launch(f"run-{state.name}-{time.time_ns() % 10**6}", command)

    def records(self) -> list[tuple[str, int, float]]:
        """(kind, round, clock) of what the journal holds by now."""
        if not (self.state / "journal.db").exists():
            return []
        journal = Journal.read(self.state / "journal.db")
        try:
            return [(r.kind, r.round, 0.0) for r in journal.records()]
        finally:
            journal.close()

    def wait_for(self, kind: str, index: int, seconds: float) -> None:
        """Until the journal has this record."""
        until = time.monotonic() + seconds
        while not any(k == kind and r == index for k, r, _ in self.records()):
            if time.monotonic() > until:
                raise TimeoutError(f"no {kind} of round {index + 1} within {seconds} s; see {self.process.log}")
            time.sleep(0.3)

    def server_app(self) -> int:
        """Process id of the ServerApp, among those that our SuperLink started."""
        link = next(p for p in self.deployment.processes if p.name == "superlink")
        for pid in local.marked(link.mark):
            if any(p.endswith(b"flwr-serverapp") for p in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:3]):
                return pid
        raise LookupError("no ServerApp is running")

    def leave(self) -> None:
        """The follower of the log is not needed any more."""
        local.end([self.process], 3.0)
        self.deployment.processes.remove(self.process)
        self.deployment.save()


def rows_of(state: Path) -> list[dict]:
    journal = Journal.read(state / "journal.db")
    try:
        out = []
        for record in journal.records("tell"):
            arrays, meta = record.unpack()
            row = dict(meta["metrics"])
            row["outcomes"] = dict(zip(arrays["clients"].tolist(), arrays["outcome"].tolist(), strict=True))
            row["reasons"] = meta["reasons"]
            out.append(row)
        return out
    finally:
        journal.close()


def one_run(deployment, app, folder, selector, options) -> dict:
    """A run with its share of misfortune."""
    state = folder / f"state-{selector.partition('(')[0]}"
    pause = 0.0 if options.calm else options.pause
    settings = {
        "selector": selector,
        "num-server-rounds": options.rounds,
        "deadline": options.deadline,
        "state-dir": str(state),
        "min-available": options.clients,
        "faults": not options.calm,
        "pause": pause,
    }
    began = time.monotonic()
    run = Run(deployment, app, state, settings)
    lost = 0
    if not options.calm and options.rounds >= 3:
        run.wait_for("ask", 2, options.patience)
        time.sleep(1.0)
        os.kill(run.server_app(), signal.SIGKILL)
        lost = 1
        run.leave()
        print("  ServerApp killed in round 3; started again", flush=True)
        asked = len(run.records())
        run = Run(deployment, app, state, {**settings, "min-available": 1})
        wait_until(lambda: reasked(run, asked), options.patience, "the round was not asked again")
        victim = next(p for p in deployment.processes if p.name == "supernode-1")
        local.kill(victim)
        print("  SuperNode 1 killed in round 3", flush=True)
    run.wait_for("close", options.rounds, options.patience)
    seconds = time.monotonic() - began
    log = Path(run.process.log).read_text()
    run.leave()
    rows = rows_of(state)
    lags = [round(r["close_lag"], 2) for r in rows if "close_lag" in r]
    return {
        "selector": selector,
        "rounds": len(rows),
        "rounds_lost": 0 if len(rows) == options.rounds else options.rounds - len(rows),
        "server_kills": lost,
        "accuracy": [round(r.get("server.accuracy", float("nan")), 4) for r in rows],
        "train_loss": [round(r["train.train_loss"], 4) if "train.train_loss" in r else None for r in rows],
        "outcomes": [r["outcomes"] for r in rows],
        "reasons": [r["reasons"] for r in rows],
        "round_seconds": [round(r["seconds"], 1) for r in rows],
        "close_after_last_needed_reply": lags,
        "seconds": round(seconds, 1),
        "resumed": "resumed:" in log,
    }


def reasked(run: Run, before: int) -> bool:
    text = Path(run.process.log).read_text() if Path(run.process.log).exists() else ""
    return "asked again" in text and "configure_train" in text


def wait_until(done, seconds: float, otherwise: str) -> None:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise TimeoutError(otherwise)
        time.sleep(0.3)


def drill(options: argparse.Namespace) -> dict:
    folder = Path(tempfile.mkdtemp(prefix="flower-drill-"))
    app, results = write_app(folder), []
    marks: list[str] = []
    try:
        for selector in options.selectors:
            print(f"{selector} ({'TLS, node keys' if options.tls else 'insecure'})", flush=True)
            deployment = local.Deployment(folder / f"deployment-{len(marks)}", local.free_port(), options.tls)
            (deployment.folder / "flwr").mkdir(parents=True)
            try:
                local.start_superlink(deployment)
                for index in range(options.clients):
                    fault = f'fault="{FAULTS.get(index, "")}"'
                    local.start_supernode(deployment, index, options.clients, "" if options.calm else fault)
                results.append(one_run(deployment, app, folder, selector, options))
                print("  " + json.dumps(results[-1]), flush=True)
            finally:
                marks += [p.mark for p in deployment.processes]
                deployment.down()
        orphans = [pid for mark in marks for pid in local.marked(mark)] + mentioning(folder)
        return {"when": when(), "machine": machine(), "tls": options.tls, "runs": results, "orphans": orphans}
    finally:
        if options.keep:
            print("kept:", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def mentioning(folder: Path) -> list[int]:
    """Processes whose command or environment names our folder."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in text:
                out.append(int(entry.name))
    return out


def when() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def machine() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores, {found.group(1) if found else platform.machine()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--selectors", nargs="+", default=["uniform", "oort"])
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--deadline", type=float, default=30.0)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds that every client takes at least")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for anything at all")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--calm", action="store_true", help="no faults, no kills")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and journals")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    found = drill(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    print(f"{found['when']}, {found['machine']}")
    print("no process is left" if not found["orphans"] else f"LEFT: {found['orphans']}")
    sys.exit(bool(found["orphans"]))


if __name__ == "__main__":
    main()
