"""The drill: a real Flower deployment on loopback that meets every kind of fault, and finishes.

One SuperLink, three SuperNodes, digits; every round asks two of the three, chosen by the selector:

    one client sends NaN, one misses the deadline, one sends a metric key that nobody else sends;
    the ServerApp is killed (kill -9) while clients train, and started again: the same cohort is asked again;
    the SuperNode of a client that trains is killed (kill -9);
    then one more round with the remaining clients

    python benchmarks/flower_drill.py                       # insecure, selectors uniform and oort
    python benchmarks/flower_drill.py --tls                 # TLS and registered node keys
    python benchmarks/flower_drill.py --superlink           # the SuperLink is killed, and its ServerApp with it
    python benchmarks/flower_drill.py --calm --rounds 1     # no faults

Each step waits until the previous one shows in the journal, and the deadline follows from how long the SuperLink needs
to start: a busy machine makes the drill longer, not different. Processes are ended by their own ids; the last line
says that none is left.
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
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedcohort.flower.dev import deployment as loopback
from fedcohort.flower.dev.project import write_project
from fedcohort.storage.journal import Journal

FAULTS = {"nan": "update-not-finite", "straggle": "", "extra": "metric-unknown:surprise"}  # the reason in the journal
KEYS = ("train_loss", "num-examples", "num-steps")  # the metrics that a reply must have
LATER = 4.0  # seconds by which a straggler misses the deadline
MANY = 50  # rounds of the run that is killed; the run that resumes it gets the number that is left
ABSENT = 300.0  # seconds without a ServerApp after which we give up; Flower restarts one every 30
FAULTY = '''
import os
import time
from pathlib import Path

import numpy as np


def take(folder, client):
    """The first fault that nobody has taken yet."""
    for what in FAULTS:
        try:
            (folder / f"fault-{what}").open("x").write(client)
        except FileExistsError:
            continue
        return what
    return None


def faulty(train):
    """Notes that it trains, and misbehaves where there is a fault to take."""

    def wrapped(msg, context):
        config, number = context.run_config, int(msg.content["config"]["server-round"])
        client, folder = str(context.node_config["partition-id"]), Path(EVENTS)
        what = take(folder, client) if config["faults"] else None
        (folder / f"train-{number}-{client}-{context.run_id}").touch()
        if what == "straggle":
            time.sleep(float(config["deadline"]) + LATER)
        time.sleep(float(config["pause"]))
        reply = train(msg, context)
        if what == "nan":
            bad = {k: Array(np.full_like(a.numpy(), np.nan)) for k, a in reply.content["arrays"].items()}
            reply.content["arrays"] = ArrayRecord(bad)
        if what == "extra":
            reply.content["metrics"]["surprise"] = 1.0
        return reply

    return wrapped


@app.train()
@faulty
def train('''


def write_app(folder: Path) -> Path:
    """The project template, with clients that can misbehave and data that load fast."""
    from sklearn.datasets import load_digits

    app, events = folder / "drill-app", folder / "events"
    events.mkdir()
    write_project(app)
    x, y = load_digits(return_X_y=True)
    np.savez(folder / "digits.npz", x=x, y=y)
    task = app / "drill_app" / "task.py"
    body = f"x, y = np.load({str(folder / 'digits.npz')!r}).values()\n    return (x / 16.0).astype(np.float32), y\n"
    task.write_text(
        re.sub(r"(?s)(def digits\(.*?:\n    ).*?(?=\n\n@)", lambda m: m[1] + body, task.read_text(), count=1)
    )
    known = f"EVENTS, FAULTS, LATER = {str(events)!r}, {list(FAULTS)!r}, {LATER!r}\n"
    _edit(app / "drill_app" / "client_app.py", "\n@app.train()\ndef train(", known + FAULTY)
    _edit(app / "pyproject.toml", 'state-dir = ""', 'state-dir = ""\nfaults = true\npause = 0.0')
    _edit(app / "drill_app" / "server_app.py", "app = ServerApp()", f"app = ServerApp()\nKEYS = {KEYS!r}")
    _edit(
        app / "drill_app" / "server_app.py",
        "app_version=",
        "over_select=1.0,\n        metrics=KEYS,\n        app_version=",
    )
    return app


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {old!r}"
    path.write_text(text.replace(old, new))


class Drill:
    """One deployment, and a run on it that is followed through its journal."""

    def __init__(self, folder: Path, selector: str, options: argparse.Namespace) -> None:
        self.folder, self.selector, self.options = folder, selector, options
        self.state, self.events = folder / "state", folder / "events"
        self.app = write_app(folder)
        self.deployment = loopback.Deployment(folder / "deployment", loopback.free_port(), options.tls)
        (self.deployment.folder / "flwr").mkdir(parents=True)
        self.began, self.seen = time.monotonic(), time.monotonic()
        self.runs = 0

    def say(self, text: str) -> None:
        """A line with the time."""
        print(f"  {time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def up(self) -> None:
        """The SuperLink and three SuperNodes; a machine on which the first takes long gets a longer deadline."""
        loopback.start_superlink(self.deployment, self.options.patience)
        self.deadline = self.options.deadline or round(5.0 + 2.5 * (time.monotonic() - self.began), 1)
        loopback.start_supernodes(self.deployment, self.options.clients)
        self.say(f"SuperLink and {self.options.clients} SuperNodes are started; deadline {self.deadline} s")

    def run(self, **changes: object) -> None:
        """`flwr run`: the first one, or one that resumes the one that was killed."""
        settings = {
            "selector": self.selector,
            "num-server-rounds": self.options.rounds if self.options.calm else MANY,
            "deadline": self.deadline,
            "state-dir": str(self.state),
            "min-available": self.options.clients,
            "faults": not self.options.calm,
            "pause": 0.0,
            **changes,
        }
        pairs = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={json.dumps(v)}" for k, v in settings.items())
        arguments = ["run", str(self.app), loopback.CONNECTION, "--run-config", pairs]
        loopback.run_flwr(self.deployment, arguments, self.options.patience)
        self.runs, self.seen = self.runs + 1, time.monotonic()
        self.say("flwr run" if self.runs == 1 else "flwr run again, with the same state_dir")

    def records(self, kind: str) -> list[int]:
        """Rounds of the records of a kind that the journal holds by now."""
        if not (self.state / "journal.db").exists():
            return []
        journal = Journal.read(self.state / "journal.db")
        try:
            return [r.round for r in journal.records(kind)]
        finally:
            journal.close()

    def wait(self, done: Callable[[], object], what: str) -> None:
        """Wait until it is true; give up when there is no ServerApp for too long, or patience runs out."""
        until = time.monotonic() + self.options.patience
        while not done():
            now = time.monotonic()
            self.seen = now if self.server_app() is not None else self.seen
            if now > until or now - self.seen > ABSENT:
                log = (self.deployment.folder / "superlink.log").read_text(errors="replace")
                raise TimeoutError(f"{what}: not within {now - self.began:.0f} s\n{log[-6000:]}")
            time.sleep(0.2)

    def server_app(self) -> int | None:
        """Process id of the ServerApp, among those that our SuperLink started."""
        link = next(p for p in self.deployment.processes if p.name == "superlink")
        for pid in loopback.marked(link.mark):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:3]
            except OSError:
                continue
            if any(w.endswith(b"flwr-serverapp") for w in words):
                return pid
        return None

    def training(self, number: int) -> list[str]:
        """Clients that have begun to train in this round, of the newest run."""
        found = sorted(self.events.glob("train-*"), key=lambda p: p.stat().st_mtime)
        runs = list(dict.fromkeys(p.name.rsplit("-", 1)[1] for p in found))
        if len(runs) < self.runs:
            return []
        mine = [p.name.split("-")[1:3] for p in found if p.name.endswith(runs[-1])]
        return [client for at, client in mine if int(at) == number]

    def kill_server_app(self) -> None:
        """kill -9."""
        pid = self.server_app()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.say(f"ServerApp killed in round {len(self.records('ask'))}")

    def kill_superlink(self) -> None:
        """kill -9 of the SuperLink alone, whose ServerApp ends with it; then it is started again from its database."""
        link = next(p for p in self.deployment.processes if p.name == "superlink")
        os.kill(link.pid, signal.SIGKILL)
        loopback.reap(link)
        self.say(f"SuperLink killed in round {len(self.records('ask'))}")
        self.wait(lambda: self.server_app() is None, "the end of the ServerApp whose SuperLink is gone")
        loopback.revive(self.deployment, self.options.patience)

    def kill_super_node(self, client: str) -> None:
        """kill -9 of a SuperNode and all that it started."""
        loopback.kill(next(p for p in self.deployment.processes if p.name == f"supernode-{client}"))
        self.say(f"SuperNode {client} killed in round {len(self.records('ask'))}")

    def shown(self) -> bool:
        """Whether every fault is in the journal. One whose reply came too late may be taken once more."""
        rows = rows_of(self.state)
        reasons = [why for row in rows for why in row["reasons"].values()]
        for what, reason in FAULTS.items():
            taken = self.events / f"fault-{what}"
            if reason in reasons or (what == "straggle" and taken.exists() and rows):
                continue
            told = max((p.stat().st_mtime for p in self.state.glob("snapshots/*")), default=0.0)
            if taken.exists() and taken.stat().st_mtime < told:
                taken.unlink()
            return False
        return True

    def kills(self) -> None:
        """The ServerApp or the SuperLink, then the SuperNode of a client that trains; each while a round is open."""
        self.wait(self.shown, "faults of clients")
        self.say(f"every fault of a client is in the journal, {len(self.records('tell'))} rounds are done")
        done = len(self.records("tell"))
        self.wait(lambda: self.training(done + 1), f"training of round {done + 1}")
        (self.kill_superlink if self.options.superlink else self.kill_server_app)()
        open_ = len(self.records("tell")) + 1
        self.run(**{"min-available": 1, "pause": 2.0, "num-server-rounds": open_ + 1})
        self.wait(lambda: self.records("again") or len(self.records("tell")) >= open_, "the resumed run")
        self.say(f"round {open_} is asked again")
        self.wait(lambda: self.training(open_) or self.training(open_ + 1), "training after the resume")
        self.kill_super_node((self.training(open_) or self.training(open_ + 1))[0])

    def figures(self) -> dict[str, object]:
        """The figures of this drill, from the journal."""
        rows = rows_of(self.state)
        return {
            "selector": self.selector,
            "rounds": len(rows),
            "server_kills": self.runs - 1,
            "asked_again": [r + 1 for r in self.records("again")],
            "deadline": self.deadline,
            "accuracy": [round(r.get("server.accuracy", float("nan")), 4) for r in rows],
            "train_loss": [round(r["train.train_loss"], 4) if "train.train_loss" in r else None for r in rows],
            "outcomes": [r["outcomes"] for r in rows],
            "reasons": [r["reasons"] for r in rows],
            "round_seconds": [round(r["seconds"], 1) for r in rows],
            "close_after_last_needed_reply": [round(r["close_lag"], 2) for r in rows if "close_lag" in r],
            "seconds": round(time.monotonic() - self.began, 1),
        }


def rows_of(state: Path) -> list[dict]:
    """Metrics, outcomes and reasons of every finished round."""
    if not (state / "journal.db").exists():
        return []
    journal = Journal.read(state / "journal.db")
    try:
        out = []
        for record in journal.records("tell"):
            arrays, meta = record.unpack()
            names = meta["metrics"]["names"]
            row = dict(meta["metrics"])
            pairs = zip(arrays["clients"].tolist(), arrays["outcome"].tolist(), strict=True)
            row["outcomes"] = {names[str(c)]: o for c, o in pairs}
            row["reasons"] = {names[c]: why for c, why in meta["reasons"].items()}
            out.append(row)
        return out
    finally:
        journal.close()


def drill(selector: str, options: argparse.Namespace) -> dict[str, object]:
    """One deployment and one run, from start to clean-up."""
    print(f"{selector} ({'TLS, node keys' if options.tls else 'insecure'})", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="flower-drill-"))
    one, marks = Drill(folder, selector, options), []
    try:
        try:
            one.up()
            one.run()
            if not options.calm:
                one.kills()
            one.wait(lambda: one.records("close"), "the last round")
            found = one.figures()
            one.say(f"{found['rounds']} rounds are done")
        finally:
            marks = [p.mark for p in one.deployment.processes]
            one.deployment.down(2.0)
        found["orphans"] = [pid for mark in marks for pid in loopback.marked(mark)] + mentioning(folder)
        one.say("everything has ended")
        print("  " + json.dumps(found), flush=True)
        return found
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
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a calm run")
    parser.add_argument(
        "--deadline", type=float, default=0.0, help="seconds; by default it follows from the speed of the machine"
    )
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for any single step")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--superlink", action="store_true", help="kill the SuperLink instead of the ServerApp")
    parser.add_argument("--calm", action="store_true", help="no faults, no kills")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and journals")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    runs = [drill(selector, options) for selector in options.selectors]
    orphans = [pid for run in runs for pid in run["orphans"]]
    found = {"when": when(), "machine": machine(), "tls": options.tls, "runs": runs, "orphans": orphans}
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    print(f"{found['when']}, {found['machine']}")
    print("no process is left" if not orphans else f"LEFT: {orphans}")
    sys.exit(bool(orphans))


if __name__ == "__main__":
    main()
