"""The journal: what was decided and what came of it, in order, durable before anything leaves the server.

One SQLite file in WAL mode with synchronous=FULL, one writer. Records are chained: each holds the SHA-256 of
(previous hash, kind, round, body), so that a changed, missing or reordered record is found. Bodies are packs
(`core.pack`). Old records can be compressed into segments: nothing is lost, the chain runs through them.

The schema version is SQLite's user_version. Schema 1 had no segments; it is read as it is and brought to schema 2 in
one transaction when it is opened for writing. A newer or foreign file is refused, its bytes untouched.

When the owner closes the journal it leaves a seal next to it: the SHA-256 of the whole file. A bit that flips on disk
is found even where no record is stored. The seal is removed before the file is written again.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain as joined
from itertools import islice
from pathlib import Path
from typing import Any

from fedcohort.core.pack import pack
from fedcohort.errors import RunExists, StoreError, check
from fedcohort.storage.disk import DISK, FAULTS, Disk, wal_of
from fedcohort.storage.journal_reader import (
    APPLICATION,
    GENESIS,
    SCHEMA,
    JournalReader,
    Record,
    chain,
    damaged,
    digest_of,
    last_of,
    schema_of,
    seal_of,
)
from fedcohort.storage.run_folder import FolderLock
from fedcohort.storage.salvage import cut_note, cut_sentence, first_unreadable, set_aside
from fedcohort.storage.segments import Row, blocks, compress
from fedcohort.storage.snapshots import write_durably
from fedcohort.types import Array

_log = logging.getLogger("fedcohort.storage")
__all__ = ["GENESIS", "Journal", "Record", "chain"]

_RECORDS = "CREATE TABLE record (seq INTEGER PRIMARY KEY, kind TEXT, round INTEGER, body BLOB, hash BLOB)"
_SEGMENTS = "CREATE TABLE segment (first INTEGER PRIMARY KEY, last INTEGER, body BLOB, hash BLOB)"


Lost = Callable[[JournalReader], tuple[int, str] | None]


class Journal(JournalReader):
    """A journal that this process owns and writes: :meth:`create` a new one, or :meth:`open` an old one.

    `path` is the file, in a folder that is locked until :meth:`close`; `header` the meta data of the first record.

    >>> from tempfile import mkdtemp
    >>> journal = Journal.create(Path(mkdtemp()) / "journal.db", {"seed": 1})
    >>> journal.append("ask", 0, {}, {"clock": 0.0})
    >>> journal.length, journal.header
    (2, {'seed': 1})
    >>> journal.close()
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: FolderLock, disk: Disk = DISK) -> None:
        super().__init__(path, disk)
        self._db, self._lock = connection, lock
        self._seq, self._hash = last_of(connection, path)

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any], disk: Disk = DISK) -> Journal:
        """Start a new journal whose first record is the header (the resolved configuration)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path) as lock:
            if path.exists():
                raise RunExists(f"{path}", "there is a journal already", "resume the run, or choose another folder")
            _create_file(path, [("open", -1, pack({}, header))], disk)
            return cls(path, _connect(path, disk), lock, disk)

    @classmethod
    def open(cls, path: Path, disk: Disk = DISK, *, repair: bool = False, lost: Lost | None = None) -> Journal:
        """Open an existing journal to continue it. Every record and the seal are checked before anything is touched.

        With `repair`, a record that cannot be read is no reason to stop: the journal is cut before it, and the damaged
        file is set aside (`storage.salvage`). The same where `lost` names a record, and why nothing can go on from it.
        """
        JournalReader(path, disk).check_file()
        with _locked(path) as lock:
            _roll_back(path, disk)
            found = first_unreadable(JournalReader(path, disk)) if repair else None
            if found is None and lost is not None:
                found = lost(JournalReader(path, disk))
            if found is not None:
                _cut(path, *found, disk)
            looked = cls.read(path, disk)
            looked.check_seal()
            before = looked.head
            _unseal(path, disk)
            journal = cls(path, _connect(path, disk), lock, disk)
            if journal.head != before:
                journal._db.close()
                raise damaged(path, "it changed while it was opened")
            return journal

    @staticmethod
    def read(path: Path, disk: Disk = DISK) -> JournalReader:
        """A reader of this journal after every record was checked; also while another process writes."""
        reader = JournalReader(path, disk)
        reader.check()
        return reader

    @property
    def head(self) -> bytes:
        """Hash of the last record: equal heads mean equal histories."""
        return self._hash

    @property
    def length(self) -> int:
        """How many records there are, those in segments included."""
        return self._seq + 1

    def append(self, kind: str, index: int, arrays: Mapping[str, Array], meta: Mapping[str, Any] | None = None) -> None:
        """Write one record; it is on disk when this returns."""
        body = pack(arrays, meta)
        hash_ = chain(self._hash, kind, index, body)
        with self._writing():
            self._db.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?)", (self._seq + 1, kind, index, body, hash_))
        self._seq, self._hash = self._seq + 1, hash_

    def compact(self, keep: int = 0) -> tuple[int, int]:
        """Compress the records of finished rounds, all but the last `keep`; bytes of the file before and after."""
        check(keep >= 0, f"keep = {keep}", "it must not be negative", "use 0 to compress every finished round")
        self._checkpoint()
        before = self.path.stat().st_size
        old = self._finished(keep)
        if old:
            with self._writing():
                for part in (old[rows] for rows in blocks(len(r.body) for r in old)):
                    row = part[0].seq, part[-1].seq, compress((r.kind, r.round, r.body) for r in part), part[-1].hash
                    self._db.execute("INSERT INTO segment VALUES (?, ?, ?, ?)", row)
                self._db.execute("DELETE FROM record WHERE seq <= ?", (old[-1].seq,))
                self.check()  # read back; where that fails nothing is changed
        with _writable(self.path):
            self._db.execute("VACUUM")
        self._checkpoint()
        return before, self.path.stat().st_size

    def close(self) -> None:
        """Release the file and the folder, and leave a seal."""
        with contextlib.suppress(*FAULTS):
            self._db.close()
        if self._lock.held and not wal_of(self.path).exists():
            with contextlib.suppress(StoreError):  # a full disk: a run can be resumed without its seal
                write_durably(seal_of(self.path), digest_of(self.path), self._disk)
        self._lock.release()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The owner reads through its own connection."""
        yield self._db

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: all of it is on disk afterwards, or none."""
        with _writable(self.path), self._db:
            yield

    def _checkpoint(self) -> None:
        """Bring everything from the WAL into the file."""
        with _writable(self.path):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _finished(self, keep: int) -> list[Record]:
        """The records that are in no segment yet and belong to finished rounds, but for the last `keep` rounds."""
        (last,) = self._db.execute("SELECT coalesce(max(last), -1) FROM segment").fetchone()
        rows = [r for r in self.records() if r.seq > last]
        done = max((r.round for r in rows if r.kind == "tell"), default=-1) - keep
        open_from = next((at for at, r in enumerate(rows) if r.round > done), len(rows))
        return rows[:open_from] if done >= 0 else []


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[FolderLock]:
    """The lock of the journal's folder; released again where the journal cannot be opened."""
    lock = FolderLock(path.parent)
    try:
        with _writable(path):
            yield lock
    except StoreError:
        lock.release()
        raise


@contextlib.contextmanager
def _writable(path: Path) -> Iterator[None]:
    """What fails in here is said in one sentence."""
    try:
        yield
    except (*FAULTS, OSError) as error:
        raise StoreError(
            f"journal {path}", f"the record could not be written ({error})", "free some space and resume the run"
        ) from None


def _cut(path: Path, first: int, why: str, disk: Disk) -> None:
    """Keep the records before number `first`, and the damaged file under another name."""
    if first == 0:
        raise damaged(path, f"{why}: it is the first record, so there is nothing to go on from")
    reader = JournalReader(path, disk)
    note = cut_note(reader, first, why, set_aside(path, disk))
    kept = ((r.kind, r.round, r.body) for r in islice(reader.records(), first))
    _create_file(path, joined(kept, [("cut", -1, pack({}, note))]), disk)
    _unseal(path, disk)
    _log.warning("journal %s is %s", path, cut_sentence(path, note))


def _create_file(path: Path, rows: Iterable[Row], disk: Disk) -> None:
    """A journal with its first records, complete or not there at all: made under another name, then renamed."""
    part = path.with_name(f".{path.name}.part")
    for left_over in (part, part.with_name(f"{part.name}-journal"), wal_of(part)):
        disk.unlink(left_over)
    db, hash_ = disk.connect(part), GENESIS
    db.execute("PRAGMA journal_mode = WAL").fetchall()  # here, because the switch itself is not atomic to a reader
    db.execute("PRAGMA synchronous = FULL")
    with contextlib.closing(db), db:
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute(_RECORDS)
        db.execute(_SEGMENTS)
        for seq, (kind, round_, body) in enumerate(rows):
            hash_ = chain(hash_, kind, round_, body)
            db.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?)", (seq, kind, round_, body, hash_))
    disk.sync(part)
    for left_over in (wal_of(path), path.with_name(f"{path.name}-shm")):  # of the file that is replaced
        disk.unlink(left_over)
    disk.replace(part, path)
    disk.sync_folder(path.parent)


def _connect(path: Path, disk: Disk) -> sqlite3.Connection:
    """A connection for the owner; an older schema is brought up to date."""
    db = disk.connect(path)
    try:
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA synchronous = FULL")
        if schema_of(db) == 1:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_SEGMENTS)
            db.execute("PRAGMA user_version = 2")
            db.execute("COMMIT")
    except FAULTS:
        db.close()
        raise
    return db


def _roll_back(path: Path, disk: Disk) -> None:
    """Undo what a crash interrupted before the file was in WAL mode (schema 1 switched the file it had created)."""
    if path.with_name(f"{path.name}-journal").exists():
        with contextlib.closing(disk.connect(path)) as db, contextlib.suppress(*FAULTS):
            schema_of(db)


def _unseal(path: Path, disk: Disk) -> None:
    if seal_of(path).exists():
        disk.unlink(seal_of(path))
        disk.sync_folder(path.parent)
