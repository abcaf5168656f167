"""Crashes and power cuts of a Flower deployment: what its state folder holds, and whether the next ServerApp ends alike.

The run: five rounds of Oort and FedAdam with eight clients, over a grid in memory, through `CohortStrategy.start`. Real
clients need not repeat themselves, so a cohort that was left open is sent out once more; the same cohorts, outcomes and
model must come of it.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from unittest import mock

import numpy as np
from recorder import RecordingDisk, image_after_crash, image_after_power_cut, lay_out
from tests.flower.grid import FakeClient, FakeGrid, as_record, timing

from fedcohort.errors import FedcohortError
from fedcohort.flower import CohortStrategy
from fedcohort.storage.disk import DISK
from fedcohort.storage.journal import Journal
from storage import acknowledged, length, limited, scratch

logging.getLogger("flwr").setLevel(logging.CRITICAL)
ROUNDS = 5
STEPS = ("connect", "write", "sync", "replace", "unlink", "sync_folder")


@contextlib.contextmanager
def _recorded(disk: RecordingDisk):
    """Let production write through this disk, and note what it was told to be done."""
    append = Journal.append

    def noted(self, *args):
        append(self, *args)
        disk.ack(str(self.length))

    vars(DISK).update({name: getattr(disk, name) for name in STEPS})
    try:
        with mock.patch.object(Journal, "append", noted):
            yield
    finally:
        vars(DISK).clear()


def _deploy(folder: Path, seed: int) -> tuple[list, bytes]:
    """Start the deployment, or let it continue; its cohorts and outcomes, and the final model."""
    clients = [
        FakeClient(f"{i:02}", step=0.1 * (i + 1), seconds=1.0 + i, provides=["samples", "utility"], utility=5.0 - i)
        for i in range(8)
    ]
    grid = FakeGrid(clients)
    keys = {"cohort_size": 4, "deadline": 60.0, "seed": seed, "state_dir": folder}
    strategy = CohortStrategy(method="fedadam", selector="oort", **keys, **timing(grid))
    result = strategy.start(grid, as_record({"w": np.zeros(4, np.float32)}), num_rounds=ROUNDS)
    journal = Journal.read(folder / "journal.db")
    found = []
    for record in journal.records():
        arrays = record.unpack()[0] if record.kind in ("ask", "tell") else {}
        found += [(record.kind, record.round, arrays["clients"].tolist())] if arrays else []
        found += [arrays["outcome"].tolist()] if record.kind == "tell" else []
    journal.close()
    return found, b"".join(array.data for array in result.arrays.values())


def crashes(many: int, seed: int) -> dict:
    """A crash behind every line of the log, and in the middle of writes, until `many` points were tried."""
    return _tried(many, seed, power=False)


def power_cuts(many: int, seed: int) -> dict:
    """Power cuts at random lines of the log."""
    return _tried(many, seed, power=True)


def full_disks(many: int, seed: int) -> dict:
    """A limit on the size of files in a child process, reached in the middle of a round; then there is space again."""
    rng = np.random.default_rng(seed)
    out = {"tried": many, "said in one sentence": 0, "same end afterwards": 0, "records lost": 0, "other ends": 0}
    with scratch() as folder:
        whole = _deploy(folder / "whole", seed)
        largest = max(p.stat().st_size for p in (folder / "whole").rglob("*"))
        for number in range(many):
            target = folder / f"full-{number}"
            answer = limited(lambda at=target: _deploy(at, seed), int(rng.integers(1_000, largest)))
            out["said in one sentence"] += answer == 3
            out["other ends"] += answer not in (0, 3)
            before = [r.hash for r in Journal.read(target / "journal.db").records()] if _begun(target) else []
            out["same end afterwards"] += _deploy(target, seed) == whole
            after = [r.hash for r in Journal.read(target / "journal.db").records()]
            out["records lost"] += after[: len(before)] != before
    return out


def _begun(folder: Path) -> bool:
    return (folder / "journal.db").exists()


def _tried(many: int, seed: int, *, power: bool) -> dict:
    rng, out = np.random.default_rng(seed), {"tried": 0, "same end": 0, "lost": 0, "refused": 0}
    with scratch() as folder:
        disk = RecordingDisk(folder)
        with _recorded(disk):
            whole = _deploy(folder, seed)
        log = disk.log
    points = [(at, None) for at in range(len(log) + 1)]
    points += [(at, int(rng.integers(1, max(len(line.data), 2)))) for at, line in enumerate(log) if line.data]
    for turn in range(many):
        at, torn = points[turn % len(points)] if many >= len(points) else points[rng.integers(len(points))]
        with scratch() as folder:
            image = image_after_power_cut(log, at, rng) if power else image_after_crash(log, at, torn)
            lay_out(image, folder)
            out["tried"] += 1
            try:
                out["lost"] += acknowledged(log, at) > length(folder)
                out["same end"] += _deploy(folder, seed) == whole
            except FedcohortError:
                out["refused"] += 1
    return {**out, "lines": len(log)}
