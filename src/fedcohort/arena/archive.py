"""The archive: everybody's results, one row per run, in one compressed file that only grows.

A file is a chain of gzip members of JSON lines, so that a row is added without touching those before it, and a process
that is killed can lose nothing but the row it was writing. Two archives are merged by taking the union of their rows.
A row counts only while its digest is that of the current configuration of problem and selector.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from fedcohort.arena.cells import Entry, entry
from fedcohort.arena.problem_set import VERSION, problems
from fedcohort.errors import FedcohortError, StoreError, VersionMismatch
from fedcohort.storage.snapshots import write_durably

FORMAT = 1
Row = dict[str, Any]
_KEYS = ("selector", "problem", "seed", "digest")


def shipped(version: str = VERSION) -> Path:
    """The archive that comes with fedcohort."""
    return Path(str(files("fedcohort.arena").joinpath(f"archive-{version}.jsonl.gz")))


class Archive:
    """The rows of one file; a file that does not exist is an empty archive.

    >>> from tempfile import mkdtemp
    >>> mine = Archive(Path(mkdtemp()) / "mine.jsonl.gz")
    >>> mine.add({"selector": "uniform", "problem": "digits-skew", "seed": 0, "digest": "x", "error": "it failed"})
    >>> len(Archive(mine.path).rows)
    1
    """

    def __init__(self, path: Path | None = None, version: str = VERSION) -> None:
        self.path, self.version = path or shipped(version), version
        self.rows: list[Row] = list(_read(self.path, version)) if self.path.exists() else []

    def add(self, row: Row) -> None:
        """Append one row; it is on the disk when this returns, also where several processes write."""
        line = json.dumps({"format": FORMAT, "arena": self.version, **row}, separators=(",", ":")) + "\n"
        with self._locked() as file:
            file.write(gzip.compress(line.encode(), mtime=0))
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)

    def merge(self, other: Iterable[Row]) -> int:
        """Take over the rows that are not here yet; how many those were. What is here already stays as it is."""
        known = {_key(row) for row in self.rows}
        new = [row for row in other if _key(row) not in known]
        self.rows += new
        self.rewrite()
        return len(new)

    def rewrite(self) -> None:
        """Write all rows in order as one member: small, and the same rows give the same bytes."""
        with self._locked():
            found = {_key(row): row for row in (*_read(self.path, self.version), *self.rows)}
            self.rows = [found[key] for key in sorted(found)]
            lines = [json.dumps({"format": FORMAT, "arena": self.version, **_own(row)}) for row in self.rows]
            write_durably(self.path, gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """The file, open for appending and locked; another process may have replaced it in the meantime."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with self.path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if self.path.exists() and os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    yield file
                    return

    def current(self, own: Iterable[Entry] = ()) -> list[Row]:
        """The rows that count: of problems and selectors as they are configured now."""
        known = {p.name: p for p in problems(self.version)}
        entries: dict[str, Entry | None] = {e.name: e for e in own}
        found: dict[tuple[str, str, int], Row] = {}
        for row in self.rows:
            name, on = row["selector"], known.get(row["problem"])
            if name not in entries:
                entries[name] = _entry(name)
            who = entries[name]
            if on is not None and who is not None and who.digest(on, row["seed"]) == row["digest"]:
                found[name, row["problem"], row["seed"]] = row
        return list(found.values())


def _entry(name: str) -> Entry | None:
    try:
        return entry(name)
    except (FedcohortError, ImportError):
        return None


def _own(row: Row) -> Row:
    return {k: v for k, v in row.items() if k not in ("format", "arena")}


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[k] for k in _KEYS)


def _read(path: Path, version: str) -> Iterator[Row]:
    """Every complete row; what a killed process left half-written at the end is ignored."""
    for line in _lines(path.read_bytes()):
        try:
            row = json.loads(line)
            seen = row["format"], row["arena"]
            _key(row)
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"archive {path}", "a line of it is not a result", "restore the file") from None
        if seen != (FORMAT, version):
            raise VersionMismatch(
                f"archive {path}",
                f"it is of arena {seen[1]} (format {seen[0]}), and this is {version} (format {FORMAT})",
                f"name an archive of {version}",
            )
        yield _own(row)


def _lines(data: bytes) -> Iterator[bytes]:
    while data:
        unpack = zlib.decompressobj(wbits=31)
        try:
            text = unpack.decompress(data)
        except zlib.error:
            raise StoreError("archive", "it is not a gzip file, or damaged", "restore the file") from None
        if not unpack.eof:
            return  # the last member was being written
        yield from text.splitlines()
        data = unpack.unused_data
