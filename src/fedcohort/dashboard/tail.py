"""A journal read little by little, while its owner goes on writing.

Connections are opened for a moment only, so that the owner can always close its file cleanly, and a journal that nobody
writes (no WAL beside it) is opened as immutable: looking at it leaves no file behind. Each new record is checked
against the hash chain; what was read once is not read again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcohort.core.pack import PackError
from fedcohort.errors import JournalDamaged, StoreError, VersionMismatch
from fedcohort.storage.journal import APPLICATION, GENESIS, SCHEMA, Record, chain
from fedcohort.storage.segments import decompress

MAX_SEGMENT_BYTES = 256 << 20  # bytes that one folded segment may decompress to here
MOST_BODY = 64 << 20  # bytes of one record
BATCH = 4_000  # records read at once
Row = tuple[int, str, int, bytes, bytes | None]  # seq, kind, round, body, hash (None inside a segment)


@dataclass(frozen=True, slots=True)
class Glance:
    """What is seen without reading the whole: the first record, the last ones (newest first), and how many."""

    header: dict[str, Any]
    last: list[Record]
    length: int


def plain_file(path: Path) -> bool:
    """Whether this is a file of its own: not a link, a pipe or a device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection for a moment; links, foreign files and other schemas are refused."""
    wal = path.with_name(f"{path.name}-wal")
    try:
        live = wal.lstat().st_size > 0
    except OSError:
        live = False
    if not plain_file(path) or (live and not plain_file(wal)):
        raise damaged(path, "it is not a file of its own")
    _check_head(path)
    how = "mode=ro" if live else "mode=ro&immutable=1"
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=2.0, isolation_level=None)
    except sqlite3.Error as error:
        raise damaged(path, str(error)) from None
    try:
        db.execute("BEGIN")
        yield db
    except (sqlite3.Error, PackError, TypeError, ValueError, OverflowError) as error:
        raise damaged(path, str(error)) from None
    finally:
        with contextlib.suppress(sqlite3.Error):
            db.close()


def glance(path: Path, last: int = 8) -> Glance:
    """The first record and the newest ones; the chain is not checked."""
    with connection(path) as db:
        first = next(_from(db, -1, 1), None)
        if first is None:
            raise damaged(path, "it has no first record")
        header = Record(first[0], first[1], first[2], first[3], b"").unpack()[1]
        (top,) = db.execute("SELECT max(seq) FROM record").fetchone()
        if top is None and _segmented(db):
            (top,) = db.execute("SELECT max(last) FROM segment").fetchone()
        rows = sorted(_from(db, max(int(top) - last, -1), last), reverse=True)
        return Glance(header, [Record(s, k, r, b, b"") for s, k, r, b, _ in rows], int(top) + 1)


class Tail:
    """The records that were not seen yet, each time it is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seq, self.hash = -1, GENESIS

    def read(self) -> list[Record]:
        """New records in order, at most a batch of them. Raises when the chain is broken."""
        found: list[Record] = []
        at, hash_ = self.seq, self.hash
        with connection(self.path) as db:
            for seq, kind, round_, body, written in _from(db, self.seq, BATCH):
                at, hash_ = at + 1, chain(hash_, kind, round_, body)
                if seq != at or (written is not None and written != hash_):
                    raise damaged(self.path, f"record {at} does not fit the chain")
                found.append(Record(seq, kind, round_, body, hash_))
        self.seq, self.hash = at, hash_
        return found


def pick(path: Path, wanted: set[int]) -> dict[int, Record]:
    """Single records by number, folded ones included."""
    found: dict[int, Record] = {}
    with connection(path) as db:
        for seq in sorted(wanted):
            row = db.execute("SELECT seq, kind, round, body FROM record WHERE seq = ?", (seq,)).fetchone()
            if row is not None:
                found[seq] = Record(*_checked(*row), b"")
        for first, end in db.execute("SELECT first, last FROM segment").fetchall() if _segmented(db) else []:
            if any(first <= seq <= end for seq in wanted):
                found.update({r[0]: Record(*r[:4], b"") for r in _unfolded(db, first) if r[0] in wanted})
    return found


def damaged(path: Path, what: str) -> JournalDamaged:
    """The sentence for a journal that cannot be shown."""
    return JournalDamaged(f"journal of {path.parent.name}", f"it does not check out ({what})", "restore it from a copy")


def _from(db: sqlite3.Connection, seen: int, most: int) -> Iterator[Row]:
    """Rows after the one numbered `seen`, in order, out of segments and single records."""
    given = 0
    if _segmented(db):
        ends = db.execute("SELECT first FROM segment WHERE last > ? ORDER BY first", (seen,)).fetchall()
        for (first,) in ends:
            for row in _unfolded(db, first):
                if row[0] > seen and given < most:
                    given += 1
                    seen = row[0]
                    yield row
            if given >= most:
                return
    sql = "SELECT seq, kind, round, body, hash FROM record WHERE seq > ? ORDER BY seq LIMIT ?"
    for seq, kind, round_, body, hash_ in db.execute(sql, (seen, most - given)):
        yield *_checked(seq, kind, round_, body), bytes(hash_)


def _unfolded(db: sqlite3.Connection, first: int) -> Iterator[Row]:
    head, end, hash_ = db.execute(
        "SELECT substr(body, 1, 8), last, hash FROM segment WHERE first = ?", (first,)
    ).fetchone()
    if int.from_bytes(head, "little") > MAX_SEGMENT_BYTES:
        raise PackError("a segment is larger than is shown here")
    (body,) = db.execute("SELECT body FROM segment WHERE first = ?", (first,)).fetchone()
    for seq, (kind, round_, data) in enumerate(decompress(body), start=first):
        yield seq, kind, round_, data, hash_ if seq == end else None


def _checked(seq: Any, kind: Any, round_: Any, body: Any) -> tuple[int, str, int, bytes]:
    fine = type(seq) is int and isinstance(kind, str) and type(round_) is int and isinstance(body, bytes)
    if not fine or len(body) > MOST_BODY:
        raise PackError("a record is of the wrong form")
    return seq, kind, round_, body


def _segmented(db: sqlite3.Connection) -> bool:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version) >= 2


def _check_head(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise StoreError(f"journal of {path.parent.name}", str(error.strerror), "check its permissions") from None
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        raise damaged(path, "it is not an SQLite file, or cut off")
    version, application = int.from_bytes(head[60:64], "big"), int.from_bytes(head[68:72], "big")
    if application != APPLICATION:
        raise damaged(path, "it was not written by fedcohort")
    if not 1 <= version <= SCHEMA:
        raise VersionMismatch(f"journal of {path.parent.name}", f"it has schema {version}", "use a newer fedcohort")
