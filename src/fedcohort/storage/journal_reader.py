"""Reading journals: the only module that knows how records are stored, and how damage is reported.

Reading is safe while another process writes. A connection is opened for one call and closed again, so that the owner
can always close its file cleanly. A journal that nobody writes (it has no WAL) is opened as immutable:
reading it leaves no file behind and works in a folder without write permission.

`records` and `JournalTail` check every record against the hash chain. `header`, `newest`, `since` and `at` read only
what they return, which is what a list of 500 runs can afford; `fedcohort verify` and tables of metrics check it all.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcohort import __version__
from fedcohort.core.pack import PackError, unpack
from fedcohort.core.plain_text import shown
from fedcohort.errors import JournalDamaged, StoreError, VersionMismatch
from fedcohort.storage.disk import DISK, FAULTS, Disk, is_written
from fedcohort.storage.segments import MAX_BYTES, decompress
from fedcohort.types import Arrays

APPLICATION = 0x46434F48  # "FCOH"
SCHEMA = 2
GENESIS = b"\0" * 32
BATCH = 4_000  # records that a tail reads at once
_HEAD = 100  # bytes of the header of an SQLite file
_COLUMNS = "SELECT seq, kind, round, body, hash FROM record"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a journal: what it is about, its bytes, and its hash in the chain."""

    seq: int
    kind: str  # open, ask, tell, close; a Flower run and recovery after damage have more (`storage.salvage`)
    round: int  # -1 where it belongs to no round
    body: bytes
    hash: bytes = b""  # empty where the chain was not computed
    journal: Path = field(default=Path(), compare=False, repr=False)

    def unpack(self) -> tuple[Arrays, dict[str, Any]]:
        """The arrays and the meta data of the body."""
        try:
            return unpack(self.body)
        except PackError as error:
            raise damaged(self.journal, f"record {self.seq}: {error}") from None


class JournalReader:
    """A journal to be read, also while its owner writes.

    `path` is the file. Nothing is held open between calls.

    >>> from tempfile import mkdtemp
    >>> from fedcohort.storage.journal import Journal
    >>> path = Path(mkdtemp()) / "journal.db"
    >>> owner = Journal.create(path, {"seed": 1})
    >>> owner.append("ask", 0, {}, {"clock": 0.0})
    >>> reader = JournalReader(path)
    >>> reader.header, reader.length, [record.kind for record in reader.newest()]
    ({'seed': 1}, 2, ['ask', 'open'])
    >>> owner.close()
    """

    max_bytes = MAX_BYTES  # that one segment or record may take in memory

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        self.path, self._disk = path, disk

    @property
    def header(self) -> dict[str, Any]:
        """The meta data of the first record: the configuration."""
        with self._reading() as db:
            first = next(self._rows(db, most=1), None)
        if first is None or first.kind != "open":
            raise damaged(self.path, "it has no first record")
        return first.unpack()[1]

    @property
    def length(self) -> int:
        """How many records there are, those in segments included."""
        with self._reading() as db:
            return last_of(db, self.path)[0] + 1

    @property
    def head(self) -> bytes:
        """The stored hash of the last record: equal heads mean equal histories."""
        with self._reading() as db:
            return last_of(db, self.path)[1]

    def records(self, kind: str | None = None) -> Iterator[Record]:
        """All records in order (or those of one kind), each checked against the chain."""
        seq, hash_ = -1, GENESIS
        with self._reading() as db:
            for row in self._rows(db):
                seq, hash_ = seq + 1, self._chained(row, seq + 1, hash_)
                if kind is None or row.kind == kind:
                    yield Record(seq, row.kind, row.round, row.body, hash_, self.path)
        if seq < 0:
            raise damaged(self.path, "all records are gone")

    def newest(self) -> Iterator[Record]:
        """Records from the last one backwards."""
        with self._reading() as db:
            for row in db.execute(f"{_COLUMNS} ORDER BY seq DESC"):
                yield self._record(*row)
            for first in reversed(_segments(db)):
                yield from reversed(list(self._segment(db, first)))

    def since(self, first: int = 0) -> Iterator[Record]:
        """Asks and tells of this round and later ones, in order."""
        with self._reading() as db:
            for segment in _segments(db):
                for record in self._segment(db, segment):
                    if record.round >= first and record.kind in ("ask", "tell"):
                        yield record
            for row in db.execute(f"{_COLUMNS} WHERE round >= ? AND kind IN ('ask', 'tell') ORDER BY seq", (first,)):
                yield self._record(*row)

    def at(self, numbers: Iterable[int]) -> dict[int, Record]:
        """Single records by number; those that do not exist are left out."""
        wanted = set(numbers)
        found: dict[int, Record] = {}
        with self._reading() as db:
            for seq in sorted(wanted):
                for row in db.execute(f"{_COLUMNS} WHERE seq = ?", (seq,)):
                    found[seq] = self._record(*row)
            spans = db.execute("SELECT first, last FROM segment").fetchall() if schema_of(db) > 1 else []
            for first, last in spans:
                if any(first <= seq <= last for seq in wanted):
                    found |= {r.seq: r for r in self._segment(db, first) if r.seq in wanted}
        return found

    def after(self, seq: int, hash_: bytes, most: int = BATCH) -> list[Record]:
        """The records behind number `seq`, whose hash is given; each checked against the chain."""
        found: list[Record] = []
        with self._reading() as db:
            for row in self._rows(db, seq, most):
                seq, hash_ = seq + 1, self._chained(row, seq + 1, hash_)
                found.append(Record(seq, row.kind, row.round, row.body, hash_, self.path))
        return found

    @property
    def cuts(self) -> list[dict[str, Any]]:
        """What was lost to damage, in order: see `storage.salvage`."""
        return [record.unpack()[1] for record in self.records("cut")]

    @property
    def just_cut(self) -> bool:
        """Whether records were lost to damage and nobody was asked or told since."""
        last = next((r.kind for r in self.newest() if r.kind in ("ask", "tell", "cut")), "")
        return last == "cut"

    def holds(self, length: int, head: bytes) -> bool:
        """Whether this journal continues the one that had this length and head."""
        if length == 0:
            return head == GENESIS
        return any(r.seq == length - 1 and r.hash == head for r in self.records())

    def copy_to(self, path: Path) -> None:
        """Write a copy of the journal as it is now, also while its owner writes."""
        with self._reading() as db, contextlib.closing(self._disk.connect(path)) as copy:
            db.backup(copy)
        self._disk.sync(path)

    def check(self) -> None:
        """Walk the whole chain; raises at the first record that does not fit."""
        for _ in self.records():
            pass

    def check_seal(self) -> bool:
        """Whether there is a seal; raises when it does not match the file."""
        seal = seal_of(self.path)
        if not seal.exists():
            return False
        if seal.read_bytes() != digest_of(self.path):
            raise damaged(self.path, "its bytes are not those that were sealed when it was closed")
        return True

    def check_version(self) -> dict[str, Any]:
        """The header; refused where another version of fedcohort wrote it."""
        header = self.header
        written = str(header.get("version", "?"))
        if written.split(".")[:2] != __version__.split(".")[:2]:
            raise VersionMismatch(
                f"run folder {self.path.parent}",
                f"it was written by fedcohort {written}, this is {__version__}",
                f"use another folder, or install fedcohort {written} to continue it",
            )
        return header

    def close(self) -> None:
        """Does nothing here; the owner's journal is closed by the same name."""

    def check_file(self) -> None:
        """Refuse what is not a journal of this program by its first bytes, without letting SQLite touch the file."""
        if not self.path.exists():
            raise StoreError(f"{self.path}", "there is no journal here", "check the folder, or start a new run")
        try:
            with self.path.open("rb") as file:
                head = file.read(_HEAD)
        except OSError as error:
            raise StoreError(
                f"{self.path}", f"it cannot be opened ({error.strerror})", "check its permissions"
            ) from None
        if len(head) < _HEAD or not head.startswith(b"SQLite format 3\0"):
            raise damaged(self.path, "it is not an SQLite file, or cut off")
        if int.from_bytes(head[68:72], "big") != APPLICATION:
            raise damaged(self.path, "it was not written by fedcohort")
        _check_schema(self.path, int.from_bytes(head[60:64], "big"))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for one call; whatever a damaged file makes SQLite raise becomes one sentence."""
        try:
            with self._connected() as db:
                yield db
        except (*FAULTS, PackError, TypeError) as error:
            raise damaged(self.path, str(error)) from None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees the journal as it is now, whatever the owner does in the meantime."""
        self.check_file()
        before = None if is_written(self.path) else _stamp(self.path)
        with contextlib.closing(self._disk.connect(self.path, read_only=True)) as db:
            try:
                _check_schema(self.path, schema_of(db))
                db.execute("BEGIN")
                yield db
            except (*FAULTS, PackError, TypeError, JournalDamaged):
                if before is None or before == _stamp(self.path):
                    raise
                raise StoreError(
                    f"journal {self.path}", "another process began to write it while it was read", "read it again"
                ) from None

    def _rows(self, db: sqlite3.Connection, seen: int = -1, most: int = -1) -> Iterator[Record]:
        """Records behind the one numbered `seen` as stored: inside a segment only the last one has a hash."""
        for first in _segments(db, seen):
            for record in self._segment(db, first):
                if record.seq > seen:
                    yield record
                    seen, most = record.seq, most - 1
                    if most == 0:
                        return
        for row in db.execute(f"{_COLUMNS} WHERE seq > ? ORDER BY seq LIMIT ?", (seen, most)):
            yield self._record(*row)

    def _segment(self, db: sqlite3.Connection, first: int) -> Iterator[Record]:
        """The records of one segment; its size is checked before it is decompressed."""
        head, last, hash_ = db.execute(
            "SELECT substr(body, 1, 8), last, hash FROM segment WHERE first = ?", (first,)
        ).fetchone()
        if int.from_bytes(head, "little") > self.max_bytes:
            raise PackError("a segment is larger than is read here")
        (body,) = db.execute("SELECT body FROM segment WHERE first = ?", (first,)).fetchone()
        seq = first - 1
        for seq, (kind, round_, data) in enumerate(decompress(body), start=first):
            yield self._record(seq, kind, round_, data, hash_ if seq == last else b"")
        if seq != last:
            raise PackError(f"the segment of records {first} to {last} ends with {seq}")

    def _record(self, seq: Any, kind: Any, round_: Any, body: Any, hash_: Any) -> Record:
        """A record of the right form."""
        fine = type(seq) is int and type(round_) is int and isinstance(kind, str)
        if not (fine and isinstance(body, bytes) and isinstance(hash_, bytes)) or len(body) > self.max_bytes:
            raise PackError(f"record {seq} is of the wrong form")
        return Record(seq, kind, round_, body, hash_, self.path)

    def _chained(self, row: Record, seq: int, previous: bytes) -> bytes:
        """The hash of the record that must be number `seq`."""
        hash_ = chain(previous, row.kind, row.round, row.body)
        if row.seq != seq or row.hash not in (b"", hash_):
            raise damaged(self.path, f"record {seq} does not fit the chain")
        return hash_


class JournalTail:
    """Follows a journal that grows: each call of `read` returns the records that came since the last one.

    Every record is checked against the chain, and what was read once is not read again.

    >>> from tempfile import mkdtemp
    >>> from fedcohort.storage.journal import Journal
    >>> path = Path(mkdtemp()) / "journal.db"
    >>> owner = Journal.create(path, {})
    >>> tail = JournalTail(JournalReader(path))
    >>> [record.kind for record in tail.read()], tail.read()
    (['open'], [])
    >>> owner.close()
    """

    def __init__(self, reader: JournalReader) -> None:
        self.reader, self.seq, self.hash = reader, -1, GENESIS

    def read(self) -> list[Record]:
        """New records in order, at most a batch of them. Raises when the chain is broken."""
        found = self.reader.after(self.seq, self.hash)
        if found:
            self.seq, self.hash = found[-1].seq, found[-1].hash
        return found


def chain(previous: bytes, kind: str, index: int, body: bytes) -> bytes:
    """The hash of a record: of the one before, and of all that is in it."""
    head = f"{kind}\n{index}\n{len(body)}\n".encode()
    return hashlib.sha256(previous + head + body).digest()


def ended(newest: Iterable[Record]) -> bool:
    """Whether the run was closed, by its newest records backwards: who came or was refused since changes nothing."""
    return next((r.kind for r in newest if r.kind in ("ask", "tell", "close")), "") == "close"


def damaged(path: Path, what: str) -> JournalDamaged:
    """The error of a journal that does not check out."""
    return JournalDamaged(
        f"journal {path}", f"it does not check out ({shown(what)})", "restore it from a copy; nothing was changed"
    )


def seal_of(path: Path) -> Path:
    """The file with the digest of a closed journal."""
    return path.with_name(f"{path.stem}.seal")


def digest_of(path: Path) -> bytes:
    """The digest of a file's bytes, as a seal holds it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


def schema_of(db: sqlite3.Connection) -> int:
    """The schema version of an open journal."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def last_of(db: sqlite3.Connection, path: Path) -> tuple[int, bytes]:
    """Number and stored hash of the last record."""
    found = db.execute("SELECT seq, hash FROM record ORDER BY seq DESC LIMIT 1").fetchone()
    if found is None and schema_of(db) > 1:
        found = db.execute("SELECT last, hash FROM segment ORDER BY last DESC LIMIT 1").fetchone()
    if found is None:
        raise damaged(path, "all records are gone")
    return int(found[0]), bytes(found[1])


def _check_schema(path: Path, version: int) -> None:
    if not 1 <= version <= SCHEMA:
        raise VersionMismatch(
            f"journal {path}", f"it has schema {version}, this program writes {SCHEMA}", "use the version that wrote it"
        )


def _segments(db: sqlite3.Connection, seen: int = -1) -> list[int]:
    """First record of each segment that reaches beyond number `seen`; schema 1 has none."""
    if schema_of(db) == 1:
        return []
    return [first for (first,) in db.execute("SELECT first FROM segment WHERE last > ? ORDER BY first", (seen,))]


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of a file: an immutable connection reads garbage when these change."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
