"""Fuzzing by the clock: the targets of a group in turn, each with its share of the time."""

from __future__ import annotations

import sys
from typing import Any

from tests.stress.fuzz_targets import GROUPS
from tests.stress.fuzzing import MEMORY, fuzz


def group(name: str, executions: int, seconds: float, seed: int) -> dict[str, Any]:
    """Figures over all targets of a group; with `executions` so many of each, else so many seconds in all."""
    out: dict[str, Any] = {"executions": 0, "taken": 0, "different ends": 0, "findings": 0}
    slowest, grown = 0.0, 0.0
    for target in GROUPS[name]:
        found = fuzz(target, seed, executions=executions, seconds=0.0 if executions else seconds / len(GROUPS[name]))
        out["executions"] += found.executions
        out["taken"] += found.taken
        out["different ends"] += found.places
        out["findings"] += len(found.findings)
        slowest, grown = max(slowest, found.slowest), max(grown, found.megabytes)
        for finding in found.findings:
            print(f"{target.name}: {finding}", file=sys.stderr, flush=True)
    return out | {"slowest, seconds": slowest, "grown, MB": grown, "bound, MB": MEMORY >> 20}
