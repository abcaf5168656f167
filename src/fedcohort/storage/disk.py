"""The disk as the journal and the snapshots see it: one small object that tests can replace.

Every step that can be interrupted is a method: a simulated crash may come before or after any of them, and a simulated
power cut may lose what was written and not synced.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

# What SQLite raises; its message about a damaged file may quote bytes that Python cannot decode as text.
FAULTS = (sqlite3.Error, UnicodeDecodeError)


class Disk:
    """The real one."""

    def connect(self, path: Path, *, read_only: bool = False) -> sqlite3.Connection:
        """An SQLite connection; a read-only one never touches the file, and leaves none behind where nobody writes."""
        if read_only:
            how = "mode=ro" if is_written(path) else "mode=ro&immutable=1"
            return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)
        return sqlite3.connect(path)

    def write(self, path: Path, data: bytes) -> None:
        """Write a whole file; it may be lost until it is synced."""
        with path.open("wb") as file:
            file.write(data)

    def sync(self, path: Path) -> None:
        """The content of this file survives a power cut from now on."""
        _sync(path, os.O_RDWR)

    def replace(self, old: Path, new: Path) -> None:
        """Give a file another name, in one step."""
        old.replace(new)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Renames and removals in this folder survive a power cut from now on."""
        _sync(folder, os.O_RDONLY)


def wal_of(path: Path) -> Path:
    """The write-ahead log of an SQLite file."""
    return path.with_name(f"{path.name}-wal")


def is_written(path: Path) -> bool:
    """Whether some process writes this SQLite file, or a killed one left records in its WAL."""
    try:
        return wal_of(path).lstat().st_size > 0
    except OSError:
        return False


def _sync(path: Path, how: int) -> None:
    descriptor = os.open(path, how)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


DISK = Disk()
