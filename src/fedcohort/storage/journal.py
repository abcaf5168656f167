"""The journal: what was decided and what came of it, in order, durable before anything leaves the server.

One SQLite file in WAL mode with synchronous=FULL, one writer. Records are chained: each holds the SHA-256 of
(previous hash, kind, round, body), so that a changed, missing or reordered record is found. Bodies are packs
(`core.pack`). Old records can be folded into compressed segments: nothing is lost, the chain runs through them.

The schema version is SQLite's user_version. Schema 1 had no segments; it is read as it is and brought to schema 2 in
one transaction when it is opened for going on. A newer or foreign file is refused, its bytes untouched.

When the owner closes the journal it leaves a seal beside it: the SHA-256 of the whole file. A bit that flips on the
shelf is found even where no record is stored. The seal is taken away before the file is written again.
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
from fedcohort.errors import JournalDamaged, RunExists, RunLocked, StoreError, VersionMismatch, check
from fedcohort.storage.disk import DISK, FAULTS, Disk
from fedcohort.storage.segments import compress, decompress
from fedcohort.storage.snapshots import write_durably
from fedcohort.types import Array, Arrays

APPLICATION = 0x46434F48  # "FCOH"
SCHEMA = 2
GENESIS = b"\0" * 32
_RECORDS = "CREATE TABLE record (seq INTEGER PRIMARY KEY, kind TEXT, round INTEGER, body BLOB, hash BLOB)"
_SEGMENTS = "CREATE TABLE segment (first INTEGER PRIMARY KEY, last INTEGER, body BLOB, hash BLOB)"
_ALL_1 = "SELECT seq, kind, round, body, hash FROM record ORDER BY seq"
_ALL_2 = (
    "SELECT first AS at, NULL, last, body, hash FROM segment UNION ALL "
    "SELECT seq AS at, kind, round, body, hash FROM record ORDER BY at"
)


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

    @property
    def held(self) -> bool:
        """Whether the folder is still owned through this lock."""
        return not self._file.closed

    def release(self) -> None:
        """Give the folder back."""
        if not self._file.closed:
            self._file.truncate(0)
            self._file.close()


class Journal:
    """An open journal. Use :meth:`create`, :meth:`open` (to go on) or :meth:`read` (to look)."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: FolderLock | None, disk: Disk = DISK) -> None:
        self.path, self._db, self._lock, self._disk = path, connection, lock, disk
        self._seq, self._hash = -1, GENESIS
        for record in self.records():
            self._seq, self._hash = record.seq, record.hash

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any], disk: Disk = DISK) -> Journal:
        """Start a new journal whose first record is the header (the resolved configuration)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path.parent)
        try:
            if path.exists():
                raise RunExists(f"{path}", "there is a journal already", "resume the run, or choose another folder")
            try:
                _create_file(path, header, disk)
                return cls(path, _connect(path, disk), lock, disk)
            except (*FAULTS, OSError) as error:
                raise _unwritable(path, error) from None
        except StoreError:
            lock.release()
            raise

    @classmethod
    def open(cls, path: Path, disk: Disk = DISK) -> Journal:
        """Open an existing journal for going on. Every record and the seal are checked before anything is touched."""
        _refuse_foreign(path)
        lock = FolderLock(path.parent)
        try:
            _roll_back(path, disk)
            looked = cls.read(path, disk)
            try:
                looked.check_seal()
            finally:
                looked.close()
            try:
                _unseal(path, disk)
                journal = cls(path, _connect(path, disk), lock, disk)
            except (*FAULTS, OSError) as error:
                raise _unwritable(path, error) from None
            if journal.head != looked.head:
                journal._db.close()
                raise _damaged(path, "it changed while it was opened")
            return journal
        except StoreError:
            lock.release()
            raise

    @classmethod
    def read(cls, path: Path, disk: Disk = DISK) -> Journal:
        """Open for looking only, also while another process writes."""
        _refuse_foreign(path)
        db = disk.connect(path, read_only=True)
        try:
            _refuse_newer(path, _version(db))
            return cls(path, db, None, disk)
        except (*FAULTS, StoreError) as error:
            db.close()
            raise error if isinstance(error, StoreError) else _damaged(path, str(error)) from None

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

    @property
    def length(self) -> int:
        """How many records there are, folded ones included."""
        return self._seq + 1

    def append(self, kind: str, index: int, arrays: Mapping[str, Array], meta: Mapping[str, Any] | None = None) -> None:
        """Write one record; it is on disk when this returns."""
        body = pack(arrays, meta)
        hash_ = chain(self._hash, kind, index, body)
        try:
            with self._db:
                self._db.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?)", (self._seq + 1, kind, index, body, hash_))
        except FAULTS as error:
            raise _unwritable(self.path, error) from None
        self._seq, self._hash = self._seq + 1, hash_

    def records(self, kind: str | None = None) -> Iterator[Record]:
        """All records in order (of one kind), each checked against the chain; folded ones are unfolded."""
        hash_, expected = GENESIS, 0
        try:
            for record, written in self._rows():
                hash_ = chain(hash_, record.kind, record.round, record.body)
                if record.seq != expected or (written is not None and written != hash_):
                    raise _damaged(self.path, f"record {expected} does not fit the chain")
                expected += 1
                if kind is None or record.kind == kind:
                    yield Record(record.seq, record.kind, record.round, record.body, hash_)
        except (*FAULTS, TypeError, AttributeError, PackError) as error:
            raise _damaged(self.path, str(error)) from None
        if expected == 0 and self._seq >= 0:
            raise _damaged(self.path, "all records are gone")

    def holds(self, length: int, head: bytes) -> bool:
        """Whether this journal goes on from the one that had this length and head."""
        if length == 0:
            return head == GENESIS
        return any(r.seq == length - 1 and r.hash == head for r in self.records())

    def compact(self, keep: int = 0) -> tuple[int, int]:
        """Fold all records of finished rounds, but for the last `keep` of them; bytes of the file before and after."""
        check(keep >= 0, f"keep = {keep}", "it must not be negative", "use 0 to fold every finished round")
        self._checkpoint()
        before = self.path.stat().st_size
        rows = [r for r in self.records() if r.seq >= self._folded()]
        done = max((r.round for r in rows if r.kind == "tell"), default=-1) - keep
        old = [r for r in rows if r.kind != "close"]
        old = old[: next((at for at, r in enumerate(old) if r.round > done), len(old))]
        try:
            if old and done >= 0:
                body = compress([(r.kind, r.round, r.body) for r in old])
                with self._db:
                    self._db.execute(
                        "INSERT INTO segment VALUES (?, ?, ?, ?)", (old[0].seq, old[-1].seq, body, old[-1].hash)
                    )
                    self._db.execute("DELETE FROM record WHERE seq <= ?", (old[-1].seq,))
            self._db.execute("VACUUM")
        except FAULTS as error:
            raise _unwritable(self.path, error) from None
        self._checkpoint()
        return before, self.path.stat().st_size

    def check_seal(self) -> bool:
        """Whether there is a seal; raises when it does not fit the file."""
        seal = _seal(self.path)
        if not seal.exists():
            return False
        if seal.read_bytes() != _sealed(self.path):
            raise _damaged(self.path, "its bytes are not those that were sealed when it was closed")
        return True

    def close(self) -> None:
        """Give the file and the folder back; the owner leaves a seal."""
        with contextlib.suppress(*FAULTS):
            self._db.close()
        if self._lock is not None:
            if self._lock.held and not self.path.with_name(f"{self.path.name}-wal").exists():
                with contextlib.suppress(StoreError):  # a full disk: the seal is a comfort, not a need
                    write_durably(_seal(self.path), _sealed(self.path), self._disk)
            self._lock.release()

    def _checkpoint(self) -> None:
        """Bring everything from the WAL into the file."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except FAULTS as error:
            raise _unwritable(self.path, error) from None

    def _folded(self) -> int:
        """The first record that is not in a segment."""
        (last,) = self._db.execute("SELECT coalesce(max(last), -1) FROM segment").fetchone()
        return int(last) + 1

    def _rows(self) -> Iterator[tuple[Record, bytes | None]]:
        """Rows as stored, with the hash that is stored beside them (inside a segment only the last has one)."""
        for at, kind, round_, body, hash_ in self._db.execute(_ALL_1 if _version(self._db) == 1 else _ALL_2):
            if kind is not None:
                yield Record(at, kind, round_, body, hash_), hash_
                continue
            for seq, (name, index, data) in enumerate(decompress(body), start=at):
                yield Record(seq, name, index, data, b""), hash_ if seq == round_ else None
            if seq != round_:
                raise _damaged(self.path, f"the segment of records {at} to {round_} ends with {seq}")


def _create_file(path: Path, header: Mapping[str, Any], disk: Disk) -> None:
    """A journal with its first record, complete or not there at all: made beside its place, then renamed."""
    part = path.with_name(f".{path.name}.part")
    for left_over in (part, part.with_name(f"{part.name}-journal"), part.with_name(f"{part.name}-wal")):
        disk.unlink(left_over)
    body = pack({}, header)
    db = disk.connect(part)
    db.execute("PRAGMA journal_mode = WAL").fetchall()  # here, for the switch itself is not atomic to a reader
    db.execute("PRAGMA synchronous = FULL")
    with contextlib.closing(db), db:
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute(_RECORDS)
        db.execute(_SEGMENTS)
        db.execute("INSERT INTO record VALUES (0, 'open', -1, ?, ?)", (body, chain(GENESIS, "open", -1, body)))
    disk.sync(part)
    disk.replace(part, path)
    disk.sync_folder(path.parent)


def _connect(path: Path, disk: Disk) -> sqlite3.Connection:
    """A connection for the owner; an older schema is brought up to date."""
    db = disk.connect(path)
    try:
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA synchronous = FULL")
        if _version(db) == 1:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_SEGMENTS)
            db.execute("PRAGMA user_version = 2")
            db.execute("COMMIT")
    except FAULTS:
        db.close()
        raise
    return db


def _roll_back(path: Path, disk: Disk) -> None:
    """Undo what a crash interrupted before the file was in WAL mode (schema 1 switched in its place)."""
    if path.with_name(f"{path.name}-journal").exists():
        with contextlib.closing(disk.connect(path)) as db, contextlib.suppress(*FAULTS):
            _version(db)


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def chain(previous: bytes, kind: str, index: int, body: bytes) -> bytes:
    """The hash of a record: of the one before, and of all that is in it."""
    head = f"{kind}\n{index}\n{len(body)}\n".encode()
    return hashlib.sha256(previous + head + body).digest()


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.stem}.seal")


def _sealed(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


def _unseal(path: Path, disk: Disk) -> None:
    if _seal(path).exists():
        disk.unlink(_seal(path))
        disk.sync_folder(path.parent)


def _damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"journal {path}", f"it does not check out ({what})", "restore it from a copy; nothing was changed"
    )


def _unwritable(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"journal {path}", f"the record could not be written ({error})", "free some space and resume the run"
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
    _refuse_newer(path, version)


def _refuse_newer(path: Path, version: int) -> None:
    if not 1 <= version <= SCHEMA:
        raise VersionMismatch(
            f"journal {path}", f"it has schema {version}, this program writes {SCHEMA}", "use the version that wrote it"
        )
