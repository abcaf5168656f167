"""A disk that writes everything down, and what it would look like after a crash or a power cut at any moment.

`RecordingDisk` stands in the place of `fedcohort.storage.disk.Disk`: SQLite goes through an APSW VFS, plain files through its
methods; each write, sync, truncation, removal and rename becomes one line of a log, and is really done as well.
`image_after_crash` replays the first n lines: what a killed process leaves (the kernel keeps what was written).
`image_after_power_cut` keeps what was synced for certain, and of what was written after that a random part, torn at
sectors of 512 bytes: each file's unsynced writes may reach the disk in any combination, renames only in order.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import apsw
import numpy as np

from fedcohort.storage.disk import Disk

SECTOR = 512


@dataclass(frozen=True)
class Line:
    """One thing that happened to the disk (or was acknowledged to the caller)."""

    what: str  # write, truncate, sync, unlink, rename, folder, ack
    name: str = ""
    offset: int = 0
    data: bytes = b""
    other: str = ""


class Full(OSError):
    """No space left."""


class RecordingDisk(Disk):
    """Really writes below `root`, and logs. `normal=True` weakens SQLite to synchronous=NORMAL, as a control."""

    _count = 0

    def __init__(self, root: Path, *, normal: bool = False) -> None:
        self.root, self.normal, self.log = root, normal, []
        RecordingDisk._count += 1
        self.vfs = _Vfs(f"recording-{RecordingDisk._count}", self)

    def name(self, path: object) -> str:
        return str(Path(str(path)).relative_to(self.root))

    def add(self, what: str, path: object = "", offset: int = 0, data: bytes = b"", other: object = "") -> None:
        name = self.name(path) if path else ""
        self.log.append(Line(what, name, offset, data, self.name(other) if other else ""))

    def ack(self, what: str) -> None:
        """The caller was told that this is done."""
        self.log.append(Line("ack", what))

    def connect(self, path: Path, *, read_only: bool = False):
        if read_only:
            return super().connect(path, read_only=True)
        return _Connection(path, self.vfs.name, self.normal)

    def write(self, path: Path, data: bytes) -> None:
        self.add("truncate", path)
        self.add("write", path, 0, data)
        super().write(path, data)

    def sync(self, path: Path) -> None:
        self.add("sync", path)

    def replace(self, old: Path, new: Path) -> None:
        self.add("rename", old, other=new)
        super().replace(old, new)

    def unlink(self, path: Path) -> None:
        if path.exists():
            self.add("unlink", path)
            super().unlink(path)

    def sync_folder(self, folder: Path) -> None:
        self.add("folder", folder)


class _Vfs(apsw.VFS):
    def __init__(self, name: str, disk: RecordingDisk) -> None:
        self.name, self.disk = name, disk
        super().__init__(name, "")

    def xOpen(self, name, flags):
        return _File(name, flags, self.disk)

    def xDelete(self, name, syncdir):
        self.disk.add("unlink", name)
        if syncdir:
            self.disk.add("folder", Path(name).parent)
        super().xDelete(name, syncdir)


class _File(apsw.VFSFile):
    def __init__(self, name, flags, disk: RecordingDisk) -> None:
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self.disk, self.fresh = disk, not Path(self.path).exists()
        super().__init__("", name, flags)

    def xWrite(self, data, offset):
        self.disk.add("write", self.path, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, size):
        self.disk.add("truncate", self.path, size)
        super().xTruncate(size)

    def xSync(self, flags):
        self.disk.add("sync", self.path)
        if self.fresh:  # the unix VFS syncs the folder of a file that it made
            self.disk.add("folder", Path(self.path).parent)
            self.fresh = False
        # nothing is passed on: the real disk below need not be durable


class _Connection:
    """An APSW connection that speaks like sqlite3's, as far as the journal does."""

    def __init__(self, path: Path, vfs: str, normal: bool) -> None:
        self.db, self.normal = apsw.Connection(str(path), vfs=vfs), normal
        self.db.execute("PRAGMA locking_mode = EXCLUSIVE")  # APSW files have no shared memory

    def execute(self, sql: str, values: tuple = ()):
        if self.normal:
            sql = sql.replace("synchronous = FULL", "synchronous = NORMAL")
        try:
            return _Cursor(self.db.execute(sql, values))
        except apsw.Error as error:
            raise sqlite3.OperationalError(str(error)) from None

    def __enter__(self):
        self.db.__enter__()
        return self

    def __exit__(self, *what):
        try:
            return self.db.__exit__(*what)
        except apsw.Error as error:
            raise sqlite3.OperationalError(str(error)) from None

    def close(self) -> None:
        self.db.close()


class _Cursor:
    def __init__(self, cursor) -> None:
        self.cursor = cursor

    def fetchone(self):
        return self.cursor.fetchone()

    def fetchall(self):
        return self.cursor.fetchall()

    def __iter__(self):
        return iter(self.cursor)


def image_after_crash(log: list[Line], upto: int, torn: int | None = None) -> dict[str, bytes]:
    """The files after the first `upto` lines; with `torn`, of the next one (a write) only this many bytes."""
    files: dict[str, bytearray] = {}
    for line in log[:upto]:
        _do(files, line)
    if torn is not None and upto < len(log) and log[upto].what == "write":
        line = log[upto]
        _do(files, Line("write", line.name, line.offset, line.data[:torn]))
    return {name: bytes(data) for name, data in files.items()}


def image_after_power_cut(log: list[Line], upto: int, rng: np.random.Generator) -> dict[str, bytes]:
    """The files after a power cut behind line `upto`: what was synced, and a random part of what was not."""
    order: list[int] = []  # lines that reached the disk, in order
    loose: dict[str, list[int]] = {}  # file -> its unsynced writes
    names: list[int] = []  # renames and removals whose folder is not synced
    alias: dict[int, str] = {}
    for at, line in enumerate(log[:upto]):
        if line.what in ("write", "truncate"):
            loose.setdefault(line.name, []).append(at)
        elif line.what == "sync":
            order += loose.pop(line.name, [])
        elif line.what in ("rename", "unlink"):
            names.append(at)
            if line.what == "rename" and line.name in loose:
                loose[line.other] = loose.pop(line.name)
        elif line.what == "folder":
            order += names
            names = []
    kept = set(order) | set(names[: int(rng.integers(0, len(names) + 1))])
    files: dict[str, bytearray] = {}
    unsynced = {at for ats in loose.values() for at in ats}
    for at, line in enumerate(log[:upto]):
        if at in kept:
            _do(files, line)
        elif at in unsynced and alias.get(at) is None:
            for piece in _torn(line, rng):
                _do(files, piece)
    return {name: bytes(data) for name, data in files.items()}


def _torn(line: Line, rng: np.random.Generator) -> list[Line]:
    """All, none or some sectors of a write."""
    fate = rng.integers(0, 3)
    if line.what == "truncate" or fate < 2:
        return [line] if fate else []
    pieces = [(o, line.data[o : o + SECTOR]) for o in range(0, len(line.data), SECTOR)]
    return [Line("write", line.name, line.offset + o, data) for o, data in pieces if rng.random() < 0.5]


def _do(files: dict[str, bytearray], line: Line) -> None:
    if line.what == "write":
        file = files.setdefault(line.name, bytearray())
        if len(file) < line.offset:
            file.extend(bytes(line.offset - len(file)))
        file[line.offset : line.offset + len(line.data)] = line.data
    elif line.what == "truncate":
        file = files.setdefault(line.name, bytearray())
        del file[line.offset :]
    elif line.what == "unlink":
        files.pop(line.name, None)
    elif line.what == "rename" and line.name in files:
        files[line.other] = files.pop(line.name)


def lay_out(image: dict[str, bytes], folder: Path) -> None:
    """Put an image on the real disk."""
    for name, data in image.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
