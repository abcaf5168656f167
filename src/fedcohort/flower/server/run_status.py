"""How a deployment is doing, from its state folder: also while its server runs, and without touching anything.

Only the newest records are read, so that it takes no longer after 100,000 rounds than after ten.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.core.columns import from_bytes
from fedcohort.rounds.usage import Usage
from fedcohort.storage.disk import wal_of
from fedcohort.storage.journal_reader import Record, ended
from fedcohort.storage.run_folder import StateFolder
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Outcome

LOOKED_AT = 2_000  # newest records that are read
HEALTHY, STOPPED, STALE, SILENT = 0, 3, 4, 5  # exit codes of `fedcohort flower status`
_QUIET = (Outcome.LATE, Outcome.FAILED)


@dataclass
class RunStatus:
    """What the newest records say. Names are those of the roster; a slot without one is shown by its number."""

    state: str  # running, stopped or finished
    rounds: int = 0  # that are done
    open_round: int | None = None  # counted from 1, as in the log
    asked: list[str] = field(default_factory=list)  # in the open round, or in the last one
    silent: dict[str, int] = field(default_factory=dict)  # asked and not heard of since -> asks in a row
    last: dict[str, int] = field(default_factory=dict)  # outcomes of the last finished round
    last_error: str = ""
    accuracy: float | None = None
    clients: int = 0
    looked_at: int = 0  # rounds behind `used` and `silent`
    used: int = 0
    replies: int = 0
    never: list[str] = field(default_factory=list)
    written: float = 0.0  # seconds since the journal was written

    def exit_code(self, stale: float | None = None) -> int:
        """0: running or finished; 3: stopped; 4: nothing was written for `stale` seconds; 5: nobody answers."""
        if self.state != "running":
            return HEALTHY if self.state == "finished" else STOPPED
        if stale is not None and self.written > stale:
            return STALE
        return SILENT if self.last and not self.last.get("ok") and not self.last.get("filtered") else HEALTHY


def read_status(folder: Path) -> RunStatus:
    """The status of the run in a state folder.

    Refused where there is no journal, or where a record cannot be read: the error says which.
    """
    files = StateFolder(folder)
    journal = files.reader()
    newest = list(islice(journal.newest(), LOOKED_AT))
    running = files.running
    status = RunStatus("finished" if ended(newest) and not running else "running" if running else "stopped")
    names = _Names(files)
    status.clients = len(names.ids)
    _fill(status, newest, names)
    files_written = [p.stat().st_mtime for p in (files.journal, wal_of(files.journal)) if p.exists()]
    status.written = max(time.time() - max(files_written), 0.0)
    return status


class _Names:
    """Names of slots."""

    def __init__(self, files: StateFolder) -> None:
        found = Snapshots(files.roster).latest()
        self.ids: list[str] = [] if found is None else from_bytes(found[1]["clients"])["ids"]

    def __call__(self, slot: int) -> str:
        return self.ids[slot] if slot < len(self.ids) else f"slot {slot}"


def _fill(status: RunStatus, newest: list[Record], name: _Names) -> None:
    """Read from the newest record backwards."""
    usage, quiet, heard = Usage(), dict[int, int](), set[int]()
    for record in newest:
        arrays, meta = record.unpack()
        if record.kind == "ask" and not status.rounds and status.open_round is None:
            status.open_round = record.round + 1
            status.asked = [name(int(c)) for c in np.sort(arrays["clients"])]
        elif record.kind == "tell":
            if not status.rounds:
                _last_round(status, record, arrays, meta, name)
            _look_back(arrays, quiet, heard)
            usage.add(arrays["clients"], arrays["clients"][arrays["outcome"] == Outcome.OK])
            status.looked_at += 1
        if not status.last_error:
            status.last_error = _error(record, meta, name)
    status.silent = {name(slot): count for slot, count in sorted(quiet.items())}
    status.used, status.replies = int(usage.used.sum()), int(usage.asked.sum())
    status.never = [name(int(slot)) for slot in usage.never]


def _last_round(status: RunStatus, record: Record, arrays: Any, meta: Any, name: _Names) -> None:
    status.rounds = record.round + 1
    status.last = {o.name.lower(): int((arrays["outcome"] == o).sum()) for o in Outcome}
    found = [meta["metrics"].get(k) for k in ("server.accuracy", "evaluate.accuracy")]
    status.accuracy = next((float(v) for v in found if isinstance(v, int | float)), None)
    if status.open_round is None:
        status.asked = [name(int(c)) for c in arrays["clients"]]


def _look_back(arrays: Any, quiet: dict[int, int], heard: set[int]) -> None:
    """Count how often in a row each client has not answered; one that did before is no longer looked at."""
    for client, outcome in zip(arrays["clients"].tolist(), arrays["outcome"].tolist(), strict=True):
        if client in heard:
            continue
        if outcome in _QUIET:
            quiet[client] = quiet.get(client, 0) + 1
        else:
            heard.add(client)


def _error(record: Record, meta: Any, name: _Names) -> str:
    """What went wrong in this record, if anything."""
    if record.kind == "tell" and meta["reasons"]:
        slot, why = sorted(meta["reasons"].items())[-1]
        return f"{_told(record)}, client {name(int(slot))}: {why}"
    if record.kind == "tell" and meta["metrics"].get("abandoned"):
        return f"{_told(record)} was abandoned: too few replies"
    if record.kind == "roster" and meta["refused"]:
        who, why = sorted(meta["refused"].items())[-1]
        return f"client {who} is refused: {why}"
    return f"the journal was cut before record {meta['first']}: {meta['why']}" if record.kind == "cut" else ""


def _told(record: Record) -> str:
    """The round as the log counts, and as `fedcohort journal` does."""
    return f"round {record.round + 1} (journal: {record.round})"
