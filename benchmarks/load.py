"""Load: many runs on the dashboard, a journal of a million clients, a sweep of a thousand runs, two sweeps at once.

    python benchmarks/load.py [--only dashboard million sweep two] [--json benchmarks/results/load.json]
    python benchmarks/load.py --table benchmarks/results/load.json      # the table of docs/reliability.md

Seconds are of the processor, so that a busy machine does not count, except where a row says "on the clock". Memory is what the process
holds beyond what it held before.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # the smallest federation of the tests
HEAD = "| load | what was found | goal | reached | run |\n|---|---|---|---|---|"
TINY = {"task": "quadratic", "world": "iid-v1(clients=20)", "rounds": 1, "cohort_size": 2}


def dashboard(folder: Path, runs: int = 500, rounds: int = 1000) -> dict[str, Any]:
    """A board of many runs: the list, the list again, a run's page, and what stays in memory."""
    from fedcohort.dashboard.app import Pages, answer
    from fedcohort.dashboard.board import Board
    from fedcohort.dashboard.live import Live
    from fedcohort.experiment.runs import RunConfig, run

    first = folder / "runs" / "run-0"
    run(RunConfig(**{**TINY, "rounds": rounds, "world": "iid-v1(clients=100)", "cohort_size": 10}), first)
    for number in range(1, runs):
        shutil.copytree(first, folder / "runs" / f"run-{number}")
    before, board = _memory(), Board([folder / "runs"])
    pages = Pages(board, Live(board))

    def listed() -> bytes:
        board.refresh()
        version, found, _ = board.since(0)
        return bytes(answer({"version": version, "runs": found}).body)

    cold, size = _timed(listed)
    warm, _ = _timed(listed)
    after_list = _memory()
    ids = [entry["id"] for entry in board.since(0)[1]]
    opened = _timed(lambda: _page(pages, ids[0]))[0]
    for run_id in ids[1:30]:
        _page(pages, run_id)
    after_thirty = _memory()
    for run_id in ids[30:90]:
        _page(pages, run_id)
    for _ in range(20):
        listed()
    return {
        "runs": len(ids),
        "rounds of each": rounds,
        "seconds for the first list": cold,
        "seconds for the list again": warm,
        "kB of the list": len(size) // 1024,
        "seconds to open a run": opened,
        "MB after the list": round(after_list - before, 1),
        "MB after 30 runs were opened": round(after_thirty - before, 1),
        "MB after 90 runs and 20 lists": round(_memory() - before, 1),
    }


def _page(pages: Any, run_id: str) -> None:
    """What a browser asks for when a run is opened."""
    from starlette.requests import Request

    for look in (pages.run, pages.curve, pages.map):
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        asyncio.run(look(Request({**scope, "path_params": {"run": run_id}})))


def million(folder: Path, clients: int = 1_000_000, rounds: int = 20) -> dict[str, Any]:
    """A run with a million clients of which nine tenths are available in a round: its journal, and its replay."""
    from tests.stress.federation import Task, World, simulated

    from fedcohort.registry.lookup import make_selector
    from fedcohort.rounds.replay import Known, replay
    from fedcohort.rounds.session import Session
    from fedcohort.storage.journal import Journal

    class Ninety(World):
        def available(self, index: int, clock: float) -> Any:
            return np.flatnonzero(np.random.default_rng(index).random(clients) < 0.9)

    class Samples(Known):
        def profiles(self, population: int) -> Any:
            return world.profiles()

    world = Ninety(clients)
    task = Task(world, params=64)
    task.delta = lambda index, asked: np.ones((asked.size, 64), np.float32)  # type: ignore[method-assign]
    simulation = simulated(make_selector("oort"), world, task, cohort_size=100, rounds=rounds)
    simulation.attach(Journal.create(folder / "journal.db", {"kind": "load"}), None)
    seconds, _ = _timed(lambda: list(simulation.steps()))
    simulation.session.journal.close()
    size = (folder / "journal.db").stat().st_size
    session = Session(make_selector("oort"), cohort_size=100, seed=simulation.settings.seed)
    checked, cohorts = _timed(lambda: replay(session, Journal.read(folder / "journal.db").records(), Samples()))
    return {
        "clients": clients,
        "rounds": rounds,
        "journal bytes per round": size // rounds,
        "seconds of the run": seconds,
        "seconds of the replay": checked,
        "rounds replayed": len(cohorts),
    }


def sweep(folder: Path, runs: int = 1000) -> dict[str, Any]:
    """Tiny runs, one after the other in one worker process, beside the same runs without a sweep."""
    from fedcohort.experiment.runs import RunConfig, build
    from fedcohort.experiment.store import Store
    from fedcohort.experiment.sweep import from_mapping, run_sweep

    plan = from_mapping({**TINY, "seeds": runs})
    begun, began = _used(), time.monotonic()
    done = run_sweep(plan, Store(folder / "store"), workers=1)
    used, clock = _used() - begun, time.monotonic() - began
    again, _ = _timed(lambda: run_sweep(plan, Store(folder / "store"), workers=1))
    bare, _ = _timed(lambda: [build(RunConfig(**TINY, seed=seed)).run() for seed in range(min(runs, 100))])
    many = min(runs, 100)
    return {
        "runs": len(done.states),
        "failed": sum(state == "failed" for state in done.states.values()),
        "ms per run": round(1e3 * used / runs, 1),
        "ms per run on the clock": round(1e3 * clock / runs, 1),
        "ms per run without sweep and files": round(1e3 * bare / many, 1),
        "seconds to find that all are done": again,
    }


_TWO = """
import json, sys
from pathlib import Path
from fedcohort.experiment.store import Store
from fedcohort.experiment.sweep import from_mapping, run_sweep
done = run_sweep(from_mapping(json.loads(sys.argv[2])), Store(Path(sys.argv[1])), workers=2)
print(json.dumps([done.states, done.errors]))
"""


def two(folder: Path, runs: int = 60) -> dict[str, Any]:
    """The same sweep, started twice at the same time on one store."""
    from fedcohort.experiment.verification import verify

    plan = json.dumps({**TINY, "rounds": 5, "seeds": runs})
    command = [sys.executable, "-c", _TWO, str(folder / "store"), plan]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    found = [child.communicate(timeout=1200) for child in both]
    states = [json.loads(out)[0] if out else {} for out, _ in found]
    sound = 0
    for name in states[0]:
        sound += verify(folder / "store" / name).rounds == 5
    failed = [state for each in states for state in each.values() if state == "failed"]
    return {
        "runs": runs,
        "sweeps that ended": sum(child.returncode == 0 for child in both),
        "runs done and verified": sound,
        "failed": len(failed),
        "done by the first": sum(s in ("run", "resumed") for s in states[0].values()),
        "done by the second": sum(s in ("run", "resumed") for s in states[1].values()),
    }


ROWS: dict[str, tuple[str, Callable[..., dict[str, Any]], str, Callable[[dict[str, Any]], bool]]] = {
    "dashboard": (
        "dashboard with many runs",
        dashboard,
        "the list within a second, memory flat",
        lambda f: (
            max(f["seconds for the first list"], f["seconds for the list again"]) < 1.0
            and f["MB after 90 runs and 20 lists"] <= f["MB after 30 runs were opened"] + 20.0
        ),
    ),
    "million": (
        "journal of a run with 10^6 clients",
        million,
        "two bits per client and round at most; every round replayed, no slower than the run",
        lambda f: (
            f["rounds replayed"] == f["rounds"]
            and f["journal bytes per round"] < f["clients"] / 4
            and f["seconds of the replay"] <= 1.2 * f["seconds of the run"] + 1.0
        ),
    ),
    "sweep": (
        "sweep of tiny runs",
        sweep,
        "0 failed, < 100 ms of overhead per run",
        lambda f: not f["failed"] and f["ms per run"] - f["ms per run without sweep and files"] < 100.0,
    ),
    "two": (
        "two sweeps on one store at the same time",
        two,
        "both end, every run is done once and verified, 0 failed",
        lambda f: f["sweeps that ended"] == 2 and f["runs done and verified"] == f["runs"] and not f["failed"],
    ),
}


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    found = call()
    return round(time.process_time() - begun, 3), found


def _used() -> float:
    """Seconds of the processor: of this process and of those that it waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def _memory() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def markdown(path: Path) -> str:
    """The table of a file made with --json."""
    lines = []
    for row in json.loads(path.read_text())["rows"]:
        told = ", ".join(f"{k} {v:,}" for k, v in row["figures"].items())
        good = "yes" if row["reached"] else "**no**"
        lines.append(f"| {row['what']} | {told} | {row['goal']} | {good} | {row['when']}, {row['commit']} |")
    return "\n".join([HEAD, *lines])


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _measured(name: str) -> dict[str, Any]:
    what, run, goal, good = ROWS[name]
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        figures = run(Path(folder))
    machine = f"{os.cpu_count()} cores {platform.machine()}, load {os.getloadavg()[0]:.0f}"
    row = {"name": name, "what": what, "goal": goal, "figures": figures, "reached": bool(good(figures))}
    return {**row, "when": f"{datetime.now(UTC):%Y-%m-%d}", "commit": _commit(), "machine": machine}


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table:
        print(markdown(args.table))
        return 0
    known = (
        {r["name"]: r for r in json.loads(args.json.read_text())["rows"]} if args.json and args.json.exists() else {}
    )
    for name in args.only:
        known[name] = _measured(name)
        print(json.dumps(known[name], indent=1), flush=True)
        if args.json:
            kept = [known[n] for n in ROWS if n in known]
            args.json.write_text(json.dumps({"rows": kept}, indent=1) + "\n")
    return int(any(not known[n]["reached"] for n in args.only))


if __name__ == "__main__":
    sys.exit(main())
