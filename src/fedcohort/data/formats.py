"""Readers for the file formats that datasets come in. Nothing here unpickles, and no header decides what is allocated.

Every reader takes a path, checks what the file declares against `ReadLimits` before it makes an array, and raises
:class:`DataError` that names the file: one sentence for "damaged", another for "refused".
"""

from __future__ import annotations

import gzip
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DataError
from fedcohort.types import Array, Arrays

HEADER_LIMIT = 10_000  # bytes of text in an .npy header; an honest one has about 120
AGAIN = "get it again, or write it again"
OFFICIAL = "use a file from the official source"
OWN = "save it again with np.savez(FILE, x=..., y=..., client=...)"
BOMB_SIZE, BOMB_RATIO = 256 << 20, 200  # no real measurement of this size compresses this well
LEAF_LIMIT = 2 << 30  # bytes of one LEAF json file
PLAIN_KINDS = "biuf"  # bool, integers, floats: what an array of samples or labels may hold
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError, struct.error, NotImplementedError, RuntimeError),
    UnicodeDecodeError,  # a name inside a zip file
)


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much a file may declare: bytes of one array, rows, and the shapes that one sample may have (empty: any)."""

    nbytes: int = 4 << 30
    rows: int = 50_000_000
    samples: tuple[tuple[int, ...], ...] = ()

    def check(self, path: Path, what: str, shape: tuple[int, ...], itemsize: int) -> None:
        """Refuse a declared shape before anything is allocated for it."""
        size = math.prod(shape) * itemsize
        if size > self.nbytes or (shape and shape[0] > self.rows):
            raise refused(
                path, f"{what} declares shape {shape}, {size:,} bytes: more than the limit of {self.nbytes:,}"
            )
        if self.samples and shape[1:] not in self.samples:
            wanted = " or ".join(map(str, self.samples))
            raise refused(path, f"{what} has samples of shape {shape[1:]}, not {wanted}")


def damaged(path: Path, why: str) -> DataError:
    """The error for a file that is cut short or altered."""
    return DataError(str(path), f"the file is damaged ({why})", AGAIN)


def refused(path: Path, why: str) -> DataError:
    """The error for a file that is whole but not of the form it should have."""
    return DataError(str(path), f"the file is refused ({why})", OFFICIAL)


def unfit(path: Path, why: str) -> DataError:
    """The error for a file of your own that is whole but does not hold what is needed."""
    return DataError(str(path), f"the file does not fit ({why})", OWN)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a broken file makes the standard library raise into one clear error."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(str(path), "there is no such file", "check the path") from None
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise damaged(path, str(error)) from None
        problem = f"the file cannot be read ({error.strerror or error})"
        raise DataError(str(path), problem, "check its permissions") from None
    except _BROKEN as error:
        raise damaged(path, str(error) or type(error).__name__) from None


def read_exactly(stream: IO[bytes], count: int, path: Path) -> bytearray:
    """Read `count` bytes, growing with what really arrives, so that a false header cannot make us allocate."""
    out = bytearray()
    while len(out) < count:
        block = stream.read(min(count - len(out), 1 << 22))
        if not block:
            raise damaged(path, f"it ends after {len(out):,} of {count:,} bytes")
        out += block
    return out


def read_npz(path: Path, limits: Callable[[str], ReadLimits | None]) -> Arrays:
    """The arrays of an .npz file. `limits(name)` says how large each may be; None leaves the array unread."""
    out: Arrays = {}
    with reading(path):
        _check_npz(path)
    with reading(path), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            bound = limits(name)
            if bound is None or name == info.filename:
                continue
            if name in out:
                raise refused(path, f"it holds {name!r} twice")
            if info.file_size > BOMB_SIZE and info.file_size > BOMB_RATIO * info.compress_size:
                raise refused(path, f"{name!r} unpacks {info.compress_size:,} bytes to {info.file_size:,}")
            with archive.open(info) as member:
                out[name] = _read_npy(member, path, name, bound, info.file_size)
    return out


def npz_names(path: Path) -> list[str]:
    """The names of all arrays in an .npz file."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def _check_npz(path: Path) -> None:
    """Files of another kind are told what they are: nothing is wrong with them."""
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith(b"PK") or not head:
        return
    if head.startswith(b"\x93NUMPY"):
        raise DataError(str(path), "this is one array (.npy), and a dataset is an .npz of several", OWN)
    if head.startswith(b"PAR1"):
        raise DataError(str(path), "this is a parquet file, not an .npz", f"name it as parquet:{path}")
    if b"\0" not in head:
        remedy = f"name it as csv:{path}(target='COLUMN', client='COLUMN') if it is a table"
        raise DataError(str(path), "this is a text file, not an .npz", remedy)
    raise DataError(str(path), "this is not an .npz file", OWN)


def _read_npy(stream: IO[bytes], path: Path, name: str, limits: ReadLimits, file_size: int) -> Array:
    try:
        version = np.lib.format.read_magic(stream)
        read: Callable[..., tuple[tuple[int, ...], bool, np.dtype[Any]]] | None = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise refused(path, f"{name!r} is in .npy version {version}")
        shape, fortran, dtype = read(stream, max_header_size=HEADER_LIMIT)
    except ValueError as error:
        raise damaged(path, f"the header of {name!r} cannot be read: {str(error).splitlines()[0]}") from None
    if dtype.hasobject or dtype.kind not in PLAIN_KINDS + "U":
        raise _not_plain(path, name, dtype)
    if any(n < 0 for n in shape):
        raise damaged(path, f"{name!r} declares shape {shape}")
    limits.check(path, repr(name), shape, dtype.itemsize)
    size = math.prod(shape) * dtype.itemsize
    if size > file_size:
        raise damaged(path, f"{name!r} declares {size:,} bytes and has {file_size:,}")
    flat = np.frombuffer(read_exactly(stream, size, path), dtype)
    if stream.read(1):
        raise damaged(path, f"{name!r} is longer than it declares")
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _not_plain(path: Path, name: str, dtype: np.dtype[Any]) -> DataError:
    """Objects are pickles, and never read; what was meant are mostly words, from a column of a data frame."""
    what = "Python objects" if dtype.hasobject else str(dtype)
    number = "int" if name.startswith(("y", "client", "activity")) else "float"  # labels and owners are whole numbers
    remedy = f"save it again with {name}={name}.astype(str) if these are words, {name}.astype({number}) if numbers"
    return DataError(
        str(path), f"the file is refused ({name!r} holds {what}, and only plain numbers and words are read)", remedy
    )


def read_idx(path: Path, limits: ReadLimits) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes (MNIST's format), plain or gzipped, which its first bytes tell."""
    with reading(path), path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.open(raw) if zipped else raw as stream:
            zero, kind, axes = struct.unpack(">HBB", read_exactly(stream, 4, path))  # type: ignore[arg-type]
            if zero != 0 or kind != 0x08 or not 1 <= axes <= 4:
                raise damaged(path, "it does not start like an idx file of bytes")
            shape = struct.unpack(f">{axes}I", read_exactly(stream, 4 * axes, path))  # type: ignore[arg-type]
            limits.check(path, "the header", shape, 1)
            flat = np.frombuffer(read_exactly(stream, math.prod(shape), path), np.uint8)  # type: ignore[arg-type]
            if stream.read(1):
                raise damaged(path, "it is longer than it declares")
    return flat.reshape(shape)


def read_leaf(paths: list[Path], side: int) -> tuple[Array, NDArray[np.int64], list[str]]:
    """LEAF json files of square pictures with `side` pixels: samples, labels and the writer of each sample.

    LEAF's values are k/255; they come back as bytes where that loses nothing, else as float32.
    """
    pictures: list[Array] = []
    labels: list[NDArray[np.int64]] = []
    writers: list[str] = []
    for path in paths:
        for writer, x, y in _leaf_writers(path, side * side):
            pictures.append(x)
            labels.append(y)
            writers += [writer] * len(y)
    if not labels or not writers:
        raise refused(paths[0], "it holds no samples")
    if any(x.dtype != np.uint8 for x in pictures):
        pictures = [x if x.dtype != np.uint8 else x.astype(np.float32) / np.float32(255) for x in pictures]
    return np.concatenate(pictures).reshape(-1, side, side), np.concatenate(labels), writers


def _leaf_writers(path: Path, pixels: int) -> Iterator[tuple[str, Array, NDArray[np.int64]]]:
    with reading(path):
        size = path.stat().st_size
        if size > LEAF_LIMIT:
            raise refused(path, f"{size:,} bytes are more than any LEAF file has")
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise damaged(path, f"not json: {str(error)[:80]}") from None
    owned = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(owned, dict):
        raise refused(path, "it has no 'user_data', so it is not a LEAF file")
    listed = content.get("users", list(owned))
    if not isinstance(listed, list) or sorted(map(str, listed)) != sorted(owned):
        raise damaged(path, "its writers and their data do not match")
    for writer, data in owned.items():
        yield writer, *_leaf_samples(path, writer, data, pixels)


def _leaf_samples(path: Path, writer: str, data: Any, pixels: int) -> tuple[Array, NDArray[np.int64]]:
    try:
        x, y = np.asarray(data["x"], np.float64), np.asarray(data["y"])
    except (KeyError, TypeError, ValueError):
        raise damaged(path, f"writer {writer!r} has no rectangular x and y") from None
    x = x.reshape(0, pixels) if not x.size else x
    if x.shape != (len(y), pixels) or y.ndim != 1:
        raise damaged(path, f"writer {writer!r} has x of shape {x.shape} and y of shape {y.shape}")
    if len(y) and y.dtype.kind not in "iu":
        raise damaged(path, f"writer {writer!r} has labels that are not integers")
    if not (np.isfinite(x).all() and (x >= 0).all() and (x <= 1).all()):
        raise damaged(path, f"writer {writer!r} has values that are not between 0 and 1")
    level = np.rint(x * 255)
    exact = bool((np.abs(x * 255 - level) < 1e-3).all())
    return (level.astype(np.uint8) if exact else x.astype(np.float32)), y.astype(np.int64)


def read_table(content: bytes, columns: int, path: Path, what: str) -> NDArray[np.float32]:
    """Numbers in text, separated by blanks, as rows of `columns`."""
    try:
        flat = np.array(content.split(), np.float32)
    except ValueError:
        raise damaged(path, f"{what} holds something that is not a number") from None
    if not flat.size or flat.size % columns or not np.isfinite(flat).all():
        raise damaged(path, f"{what} does not hold whole, finite rows of {columns}")
    return flat.reshape(-1, columns)
