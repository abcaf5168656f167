"""Snapshots: everything needed to resume after a round, in two generations, each with a digest.

A snapshot is a pack followed by its SHA-256. It is written to a temporary file, synced, renamed, and the folder
synced; the previous one stays until the next. If the newest one is damaged, the previous one is used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedcohort.core.pack import PackError, pack, unpack
from fedcohort.errors import StoreError
from fedcohort.storage.disk import DISK, Disk
from fedcohort.types import Array, Arrays

GENERATIONS = 2


class Snapshots:
    """The snapshots of one run, in a folder that holds nothing else.

    >>> from tempfile import mkdtemp
    >>> import numpy as np
    >>> snapshots = Snapshots(Path(mkdtemp()))
    >>> snapshots.save(3, {"model": np.zeros(2)}, {"seed": 1})
    >>> index, arrays, meta = snapshots.latest()
    >>> index, meta["seed"]
    (3, 1)
    """

    def __init__(self, folder: Path, disk: Disk = DISK) -> None:
        self.folder, self.disk = folder, disk

    def save(self, index: int, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Keep the state after round `index`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = pack(arrays, {**meta, "round": index})
        write_durably(self._path(index), data + hashlib.sha256(data).digest(), self.disk)
        for old in self._rounds()[:-GENERATIONS]:
            self.disk.unlink(self._path(old))

    def latest(self) -> tuple[int, Arrays, dict[str, Any]] | None:
        """The newest snapshot that checks out: (round, arrays, meta), or None."""
        return next(self.newest(), None)

    def newest(self) -> Iterator[tuple[int, Arrays, dict[str, Any]]]:
        """All snapshots that check out, the newest first."""
        for index in reversed(self._rounds()):
            found = self._read(index)
            if found is not None:
                yield index, *found

    def set_aside(self, after: int) -> None:
        """Snapshots of later rounds than `after` are not to be used: they get a name that is not looked for."""
        for index in self._rounds():
            if index > after:
                self.disk.replace(self._path(index), self._path(index).with_suffix(".unused"))

    def at(self, index: int) -> tuple[Arrays, dict[str, Any]] | None:
        """The snapshot after round `index`: (arrays, meta), or None where it is missing or damaged."""
        return self._read(index) if self._path(index).exists() else None

    def check(self) -> int:
        """How many snapshots there are; raises when one of them does not check out."""
        for index in self._rounds():
            if self._read(index) is None:
                raise StoreError(
                    f"snapshot {self._path(index)}",
                    "its digest does not match",
                    "delete it; the run resumes from another one",
                )
        return len(self._rounds())

    def _read(self, index: int) -> tuple[Arrays, dict[str, Any]] | None:
        data = self._path(index).read_bytes()
        if hashlib.sha256(data[:-32]).digest() != data[-32:]:
            return None
        try:
            arrays, meta = unpack(data[:-32])
        except PackError:
            return None
        return (arrays, meta) if meta.get("round") == index else None

    def _path(self, index: int) -> Path:
        return self.folder / f"round-{index:08d}.snapshot"

    def _rounds(self) -> list[int]:
        found = self.folder.glob("round-*.snapshot") if self.folder.is_dir() else []
        return sorted(int(p.stem.removeprefix("round-")) for p in found if p.stem.removeprefix("round-").isdigit())


def write_durably(path: Path, data: bytes, disk: Disk = DISK, *, shared: bool = False) -> None:
    """Replace a file so that after a crash it holds either the old or the new bytes.

    With `shared`, several processes may write this file at the same time; it holds what one of them wrote.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part" if shared else f".{path.name}.part")
    try:
        disk.write(part, data)
        disk.sync(part)
        disk.replace(part, path)
        disk.sync_folder(path.parent)
    except OSError as error:
        if part.is_file():
            disk.unlink(part)
        raise StoreError(
            f"file {path}", f"it could not be written ({error.strerror})", "free some space and resume"
        ) from None
