"""The journal: what was decided and what came of it, in order, durable before anything leaves the server.

One SQLite file in WAL mode with synchronous=FULL, one writer. Records are chained: each holds the SHA-256 of
(previous hash, kind, round, body), so that a changed, missing or reordered record is found. Bodies are packs
(`core.pack`). The schema version is SQLite's user_version; a newer or foreign file is refused, its bytes untouched.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcohort.core.pack import PackError, pack, unpack
from fedcohort.errors import JournalDamaged, RunExists, RunLocked, StoreError, VersionMismatch
from fedcohort.snapshots import sync_folder
from fedcohort.types import Array, Arrays

APPLICATION = 0x46434F48  # "FCOH"
SCHEMA = 1
_GENESIS = b"\0" * 32


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal."""

    seq: int
    kind: str  # open, ask, tell, close
    round: int  # -1 where it belongs to no round
    body: bytes
    hash: bytes

    def unpack(self) -> tuple[Arrays, dict[str, Any]]:
        """The arrays and the meta data of the body."""
        return unpack(self.body)


class FolderLock:
    """Exclusive ownership of a folder by one process, given back when that process ends however it ends."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "lock").open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            raise RunLocked(
                f"run folder {folder}", f"process {owner} is using it", "wait for it to end, or use another folder"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Give the folder back."""
        if not self._file.closed:
            self._file.truncate(0)
            self._file.close()


class Journal:
    """An open journal. Use :meth:`create`, :meth:`open` (to go on) or :meth:`read` (to look)."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: FolderLock | None) -> None:
        self.path, self._db, self._lock = path, connection, lock
        self._seq, self._hash = -1, _GENESIS
        for record in self.records():
            self._seq, self._hash = record.seq, record.hash

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """Start a new journal whose first record is the header (the resolved configuration)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path.parent)
        if path.exists():
            lock.release()
            raise RunExists(f"{path}", "there is a journal already", "resume the run, or choose another folder")
        _found(path, header)
        return cls(path, _connect(path), lock)

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open an existing journal for going on; every record is checked."""
        _refuse_foreign(path)
        lock = FolderLock(path.parent)
        try:
            return cls(path, _connect(path), lock)
        except sqlite3.DatabaseError as error:
            lock.release()
            raise _damaged(path, str(error)) from None
        except StoreError:
            lock.release()
            raise

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Open for looking only, also while another process writes."""
        _refuse_foreign(path)
        try:
            return cls(path, sqlite3.connect(f"file:{path}?mode=ro", uri=True), None)
        except sqlite3.DatabaseError as error:
            raise _damaged(path, str(error)) from None

    @property
    def head(self) -> bytes:
        """Hash of the last record: equal heads mean equal histories."""
        return self._hash

    @property
    def header(self) -> dict[str, Any]:
        """The meta data of the first record."""
        for record in self.records(kind="open"):
            return record.unpack()[1]
        raise _damaged(self.path, "it has no first record")

    def append(self, kind: str, index: int, arrays: Mapping[str, Array], meta: Mapping[str, Any] | None = None) -> None:
        """Write one record; it is on disk when this returns."""
        body = pack(arrays, meta)
        hash_ = _chain(self._hash, kind, index, body)
        try:
            with self._db:
                self._db.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?)", (self._seq + 1, kind, index, body, hash_))
        except sqlite3.OperationalError as error:
            raise StoreError(
                f"journal {self.path}",
                f"the record could not be written ({error})",
                "free some space and resume the run",
            ) from None
        self._seq, self._hash = self._seq + 1, hash_

    def records(self, kind: str | None = None) -> Iterator[Record]:
        """All records in order (of one kind), each checked against the chain."""
        hash_, expected = _GENESIS, 0
        try:
            for row in self._db.execute("SELECT seq, kind, round, body, hash FROM record ORDER BY seq"):
                record = Record(*row)
                hash_ = _chain(hash_, record.kind, record.round, record.body)
                if record.seq != expected or record.hash != hash_:
                    raise _damaged(self.path, f"record {expected} does not fit the chain")
                expected += 1
                if kind is None or record.kind == kind:
                    yield record
        except (sqlite3.DatabaseError, TypeError, AttributeError) as error:
            raise _damaged(self.path, str(error)) from None
        except PackError as error:
            raise _damaged(self.path, str(error)) from None
        if expected == 0 and self._seq >= 0:
            raise _damaged(self.path, "all records are gone")

    def close(self) -> None:
        """Give the file and the folder back."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        if self._lock is not None:
            self._lock.release()


def _found(path: Path, header: Mapping[str, Any]) -> None:
    """A journal with its first record, complete or not there at all: made beside its place, then renamed."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    body = pack({}, header)
    db = sqlite3.connect(part)
    with contextlib.closing(db), db:
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("CREATE TABLE record (seq INTEGER PRIMARY KEY, kind TEXT, round INTEGER, body BLOB, hash BLOB)")
        db.execute("INSERT INTO record VALUES (0, 'open', -1, ?, ?)", (body, _chain(_GENESIS, "open", -1, body)))
    part.replace(path)
    sync_folder(path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db


def _chain(previous: bytes, kind: str, index: int, body: bytes) -> bytes:
    head = f"{kind}\n{index}\n{len(body)}\n".encode()
    return hashlib.sha256(previous + head + body).digest()


def _damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"journal {path}", f"it does not check out ({what})", "restore it from a copy; nothing was changed"
    )


def _refuse_foreign(path: Path) -> None:
    """Look at the first 100 bytes without letting SQLite touch the file."""
    if not path.exists():
        raise StoreError(f"{path}", "there is no journal here", "check the folder, or start a new run")
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        raise _damaged(path, "it is not an SQLite file, or cut off")
    version, application = int.from_bytes(head[60:64], "big"), int.from_bytes(head[68:72], "big")
    if application != APPLICATION:
        raise _damaged(path, "it was not written by fedcohort")
    if version != SCHEMA:
        raise VersionMismatch(
            f"journal {path}", f"it has schema {version}, this program writes {SCHEMA}", "use the version that wrote it"
        )
