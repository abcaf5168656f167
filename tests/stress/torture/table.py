"""The figures of past runs: kept in one JSON file, row by row, and printed as the table of docs/reliability.md."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
HEAD = "| what was done | goal | what was found | seconds | run | goal reached |\n|---|---|---|---|---|---|"


def made(what: str, goal: str, figures: dict[str, Any], seconds: float, good: bool) -> dict[str, Any]:
    """One row, with the day, the commit and the machine that it holds for."""
    row = {"what": what, "goal": goal, "figures": figures, "seconds": round(seconds, 1), "reached": bool(good)}
    return {**row, "when": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit(), "machine": machine()}


def keep(path: Path, row: dict[str, Any], order: list[str]) -> None:
    """Put this row into the file, instead of an older one of the same name; rows that no longer exist go."""
    known = {r["what"]: r for r in json.loads(path.read_text())["rows"]} if path.exists() else {}
    known[row["what"]] = row
    kept = [known[what] for what in order if what in known]
    path.write_text(json.dumps({"rows": kept}, indent=1) + "\n")


def markdown(path: Path) -> str:
    """The table of all rows in the file."""
    rows = json.loads(path.read_text())["rows"]
    missed = sum(not r["reached"] for r in rows)
    short = ({**r, "figures": {k: v for k, v in r["figures"].items() if not isinstance(v, list)}} for r in rows)
    lines = [HEAD, *map(line, short), "", f"{len(rows)} rows, {missed} below their goal."]
    return "\n".join([*lines, f"Machine: {'; '.join(sorted({r['machine'] for r in rows}))}."])


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    told = ", ".join(f"{k} {_text(v)}" for k, v in row["figures"].items())
    run, good = f"{row['when']}, {row['commit']}", "yes" if row["reached"] else "**no**"
    return f"| {row['what']} | {row['goal']} | {told} | {row['seconds']:.0f} | {run} | {good} |"


def machine() -> str:
    """What this runs on."""
    used, cores = len(os.sched_getaffinity(0)), os.cpu_count()
    return f"{used} of {cores} shared cores {platform.machine()}, Python {platform.python_version()}"


def commit() -> str:
    """The commit that runs, with a plus where the code was changed since."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    paths = ["src", "tests/stress", "tests/flower/grid.py"]
    changed = subprocess.run([*git, "status", "--porcelain", *paths], capture_output=True, text=True, check=False)
    return (found.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")


def _text(value: object) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
