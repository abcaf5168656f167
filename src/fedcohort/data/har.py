"""The official UCI HAR archive: windows of 128 readings from the phones of 30 volunteers, six activities.

The channels are those of the wearable-sensor layout: total acceleration x, y, z (in g), angular velocity x, y, z
(in rad/s). The archive's own split is by volunteer; both halves come back as one pool with the volunteer of each
window, so that whoever cuts the test set cuts it by volunteer too.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedcohort.data.formats import damaged, read_table, reading, refused
from fedcohort.types import Arrays

INNER = "UCI HAR Dataset.zip"
FOLDER = "UCI HAR Dataset"
_MEMBER_LIMIT = 96 << 20
_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("total_acc", "body_gyro") for axis in "xyz")


def read_folder(folder: Path) -> Arrays:
    """The unpacked folder `UCI HAR Dataset`."""

    def member(name: str) -> bytes:
        path = folder / name
        with reading(path):
            if path.stat().st_size > _MEMBER_LIMIT:
                raise refused(path, "it is larger than any file of this set")
            return path.read_bytes()

    return _read(member, folder)


def read_zip(path: Path) -> Arrays:
    """The archive as UCI serves it (a zip in a zip), or the inner one. Read in memory, nothing is unpacked."""
    with reading(path), zipfile.ZipFile(path) as outer:
        if INNER in outer.namelist():
            with zipfile.ZipFile(io.BytesIO(_member(outer, INNER, path))) as inner:
                return _read(lambda name: _member(inner, f"{FOLDER}/{name}", path), path)
        return _read(lambda name: _member(outer, f"{FOLDER}/{name}", path), path)


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise damaged(path, f"it does not hold {name!r}") from None
    if info.file_size > _MEMBER_LIMIT:
        raise refused(path, f"{name!r} declares {info.file_size:,} bytes")
    return archive.read(info)


def _read(member: Callable[[str], bytes], path: Path) -> Arrays:
    halves: dict[str, list[np.ndarray]] = {"x": [], "y": [], "client": []}
    for half in ("train", "test"):
        signals = [
            read_table(member(f"{half}/Inertial Signals/{name}_{half}.txt"), 128, path, f"{name}_{half}.txt")
            for name in _SIGNALS
        ]
        labels, volunteers = (
            read_table(member(f"{half}/{name}_{half}.txt"), 1, path, f"{name}_{half}.txt")[:, 0]
            for name in ("y", "subject")
        )
        if len({len(part) for part in (*signals, labels, volunteers)}) != 1:
            raise damaged(path, f"the files of {half!r} differ in length")
        if not np.isin(labels, np.arange(1, 7)).all():
            raise damaged(path, f"y_{half}.txt has labels that are not 1 .. 6")
        halves["x"].append(np.stack(signals, axis=2))
        halves["y"].append(labels.astype(np.int64) - 1)
        halves["client"].append(volunteers.astype(np.int64))
    return {name: np.concatenate(parts) for name, parts in halves.items()}
