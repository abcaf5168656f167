"""A glance at a journal: its header, its newest records, or those from some round on. Read-only, also during the run.

Nothing is checked against the chain here: that costs a walk through the whole file, too much for a list of 500 runs.
`fedcohort verify` and the tables of a report (through `experiment.run.read`) do check it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcohort.core.pack import PackError, unpack
from fedcohort.errors import JournalDamaged, StoreError
from fedcohort.experiment.run import METRICS, journal_of
from fedcohort.storage.disk import DISK, FAULTS
from fedcohort.storage.segments import decompress
from fedcohort.types import Arrays

_NEWEST = "SELECT kind, round, body FROM record ORDER BY seq DESC"
_SINCE = "SELECT kind, round, body FROM record WHERE round >= ? AND kind IN ('ask', 'tell') ORDER BY seq"
_FOLDED = "SELECT body FROM segment ORDER BY first"


@dataclass(frozen=True, slots=True)
class Seen:
    """One record that was looked at."""

    kind: str  # ask, tell, close
    round: int
    arrays: Arrays
    meta: dict[str, Any]


class Glance:
    """A journal opened for a look. Use it in a `with` block."""

    def __init__(self, folder: Path) -> None:
        self.path = journal_of(folder)
        self._db: sqlite3.Connection | None = None

    def __enter__(self) -> Glance:
        try:
            self._db = DISK.connect(self.path, read_only=True)
        except FAULTS as error:
            raise StoreError(f"{self.path}", f"it cannot be opened ({error})", "check its permissions") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._db is not None:
            self._db.close()

    def header(self) -> dict[str, Any]:
        """The meta data of the first record: the configuration."""
        for kind, _, body in self._rows("SELECT kind, round, body FROM record WHERE seq = 0"):
            if kind == "open":
                return unpacked(self.path, body)[1]
        for block in self._segments():
            for kind, _, body in block:
                if kind == "open":
                    return unpacked(self.path, body)[1]
        raise damaged(self.path, "it has no first record")

    def newest(self) -> Iterator[Seen]:
        """Records from the newest backwards."""
        for kind, index, body in self._rows(_NEWEST):
            yield Seen(kind, index, *unpacked(self.path, body))
        for block in reversed(self._segments()):
            for kind, index, body in reversed(block):
                yield Seen(kind, index, *unpacked(self.path, body))

    def since(self, first: int = 0) -> Iterator[Seen]:
        """Asks and tells of rounds from this one on, in order."""
        for block in self._segments():
            for kind, index, body in block:
                if index >= first and kind in ("ask", "tell"):
                    yield Seen(kind, index, *unpacked(self.path, body))
        for kind, index, body in self._rows(_SINCE, first):
            yield Seen(kind, index, *unpacked(self.path, body))

    def _rows(self, query: str, *values: int) -> Iterator[tuple[str, int, bytes]]:
        assert self._db is not None
        try:
            yield from self._db.execute(query, values)
        except FAULTS as error:
            raise damaged(self.path, str(error)) from None

    def _segments(self) -> list[list[tuple[str, int, bytes]]]:
        """Folded records, block by block; schema 1 has none."""
        assert self._db is not None
        try:
            if self._db.execute("PRAGMA user_version").fetchone()[0] < 2:
                return []
            return [list(decompress(body)) for (body,) in self._db.execute(_FOLDED)]
        except (*FAULTS, PackError, TypeError) as error:
            raise damaged(self.path, str(error)) from None


def unpacked(path: Path, body: bytes) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and meta data of a record, or the sentence that says that it is damaged."""
    try:
        return unpack(body)
    except (PackError, TypeError) as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, what: str) -> JournalDamaged:
    """The error of a journal that cannot be read."""
    return JournalDamaged(f"journal {path}", f"it cannot be read ({what})", "restore it from a copy")


def state(folder: Path) -> str:
    """ "finished", "running" (by a process of this machine) or "unfinished"."""
    if (folder / METRICS).exists():
        return "finished"
    try:
        owner = int((folder / "lock").read_text().strip())  # empty once the folder was given back
        if owner > 0:
            os.kill(owner, 0)  # asks only whether there is such a process
            return "running"
    except PermissionError:
        return "running"  # there is, and it is somebody else's
    except (OSError, ValueError, OverflowError):
        return "unfinished"
    return "unfinished"
