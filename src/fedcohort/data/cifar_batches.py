"""CIFAR-10's official batches: the binary ones, and the Python ones read without unpickling.

A Python batch is a pickle, that is, a program. Here its opcodes are walked by an interpreter that can make only a dict,
lists, tuples, strings, small integers and an array of bytes. The few names such a file needs (NumPy's array and dtype)
are symbols to it, never looked up and never called; any other name, and any other opcode, refuses the file.
"""

from __future__ import annotations

import math
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.data.formats import damaged, reading, refused
from fedcohort.errors import DataError

BATCH_LIMIT = 64 << 20  # bytes of one batch; the official ones have 31 MB
DEPTH_LIMIT = 100_000  # values on the stack or in the memo; an official batch has some 20,000
RECORD = 1 + 3 * 32 * 32
Batch = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # pictures (n, 3, 32, 32), labels (n,)

_NAMES = {
    "numpy.core.multiarray._reconstruct": "array",
    "numpy._core.multiarray._reconstruct": "array",
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    "_codecs.encode": "encode",  # how Python 3 writes bytes in an old protocol
}


def read_binary(content: bytes, path: Path) -> Batch:
    """One binary batch: records of a label byte and 3 x 32 x 32 bytes, red plane first."""
    if not content or len(content) % RECORD:
        raise damaged(path, f"{len(content):,} bytes are not a whole number of {RECORD}-byte records")
    rows = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    if rows[:, 0].max() > 9:
        raise damaged(path, f"label {rows[:, 0].max()} is not between 0 and 9")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].copy()


def read_python(content: bytes, path: Path) -> Batch:
    """One Python batch: a dict with `data`, (n, 3072) bytes, and `labels`, a list of n integers."""
    top = _Walk(content, path).run()
    if not isinstance(top, dict):
        raise refused(path, "it does not hold a dict")
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in top.items()}
    data, labels = named.get("data"), named.get("labels")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != RECORD - 1:
        raise refused(path, "its 'data' is not an array of rows of 3,072 bytes")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label <= 9 for label in labels):
        raise refused(path, "its 'labels' are not a list of integers between 0 and 9")
    if not labels or len(labels) != len(data):
        raise damaged(path, f"it has {len(data)} pictures and {len(labels)} labels")
    return data.reshape(-1, 3, 32, 32), np.array(labels, np.uint8)


def read_file(path: Path) -> bytes:
    """The bytes of one batch file, unless there are too many."""
    with reading(path):
        size = path.stat().st_size
        if size > BATCH_LIMIT:
            raise refused(path, f"{size:,} bytes are more than any batch has")
        return path.read_bytes()


def read_archive(path: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """The wanted members of a .tar.gz, by their last name, read in memory: nothing is ever unpacked to disk."""
    out: dict[str, bytes] = {}
    try:
        with reading(path), tarfile.open(path, "r:gz") as archive:
            for count, member in enumerate(archive):
                if member.size > BATCH_LIMIT or count > 1000:
                    raise refused(path, f"member {member.name!r} of {member.size:,} bytes does not belong in it")
                name = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if name in wanted and member.isfile() else None
                if stream is not None:
                    out[name] = stream.read()
    except tarfile.TarError as error:
        raise damaged(path, str(error)) from None
    absent = [name for name in wanted if name not in out]
    if absent:
        raise damaged(path, f"it does not hold {', '.join(absent)}")
    return out


@dataclass(frozen=True)
class _Symbol:
    """A name in the file: known to mean something, never looked up."""

    meaning: str


class _Shell:
    """The array under construction: empty until its state is set."""

    value: NDArray[np.uint8] | None = None


_MARK = _Symbol("mark")
_BYTE = _Symbol("dtype u1")


class _Walk:
    """One pass over the opcodes, with a stack and a memo. Everything on the stack is plain data or a symbol."""

    def __init__(self, content: bytes, path: Path) -> None:
        self.content, self.path, self.at = content, path, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """What the file holds, with the array instead of its shell."""
        try:
            while (code := self.take(1)) != b".":
                step = _STEPS.get(code)
                if step is None:
                    raise self.refuse(f"opcode {code!r} at byte {self.at - 1}")
                step(self)
            top = self.stack.pop()
        except DataError:
            raise
        except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error, UnicodeError) as error:
            raise damaged(self.path, f"opcode before byte {self.at} does not fit: {type(error).__name__}") from None
        if isinstance(top, dict):
            return {key: value.value if isinstance(value, _Shell) else value for key, value in top.items()}
        return top

    def refuse(self, what: str) -> DataError:
        return refused(self.path, f"it holds {what}, which a batch of pictures does not need")

    def take(self, count: int) -> bytes:
        block = self.content[self.at : self.at + count]
        if len(block) < count:
            raise damaged(self.path, f"it ends after {len(self.content):,} bytes, in the middle")
        self.at += count
        return block

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def line(self) -> str:
        end = self.content.find(b"\n", self.at, self.at + 200)
        if end < 0:
            raise damaged(self.path, "a name in it has no end")
        return self.take(end + 1 - self.at)[:-1].decode("ascii", "backslashreplace")

    def push(self, value: Any) -> None:
        if len(self.stack) > DEPTH_LIMIT:
            raise self.refuse(f"more than {DEPTH_LIMIT:,} values at once")
        self.stack.append(value)

    def remember(self, key: int) -> None:
        if len(self.memo) > DEPTH_LIMIT:
            raise self.refuse(f"more than {DEPTH_LIMIT:,} remembered values")
        self.memo[key] = self.stack[-1]

    def since_mark(self) -> list[Any]:
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:  # runs off the front, an IndexError, when there is none
            start -= 1
        out = self.stack[start + 1 :]
        del self.stack[start:]
        return out

    def tuple_of(self, count: int) -> None:
        if count > len(self.stack):
            raise IndexError
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self.push(items)

    def name(self, module: str, name: str) -> None:
        meaning = _NAMES.get(f"{module}.{name}")
        if meaning is None:
            raise self.refuse(f"the name {f'{module}.{name}'!r}")
        self.push(_Symbol(meaning))

    def stacked_name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise TypeError
        self.name(module, name)

    def reduce(self) -> None:
        given, symbol = self.stack.pop(), self.stack.pop()
        if symbol == _Symbol("encode") and len(given) == 2 and given[1] == "latin1" and isinstance(given[0], str):
            self.push(given[0].encode("latin1"))
        elif symbol == _Symbol("dtype") and given[0] in ("u1", b"u1"):
            self.push(_BYTE)
        elif symbol == _Symbol("array") and given[0] == _Symbol("ndarray") and given[1] == (0,):
            self.push(_Shell())
        else:
            raise self.refuse("a call that does not make an array of bytes")

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if target == _BYTE:
            return
        if not isinstance(target, _Shell):
            raise self.refuse("a state for something that is not an array")
        _version, shape, kind, fortran, content = state
        whole = isinstance(content, bytes) and len(shape) <= 4 and all(type(n) is int and n >= 0 for n in shape)
        if kind != _BYTE or not whole or math.prod(shape) != len(content):
            raise damaged(self.path, "its array does not have the size that it declares")
        flat = np.frombuffer(content, np.uint8)
        target.value = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        keys = items[::2]
        if not isinstance(self.stack[-1], dict) or len(items) % 2 or not all(isinstance(k, str | bytes) for k in keys):
            raise TypeError
        self.stack[-1].update(zip(keys, items[1::2], strict=True))


_STEPS: dict[bytes, Callable[[_Walk], None]] = {
    b"\x80": lambda w: w.skip(1),  # protocol
    b"\x95": lambda w: w.skip(8),  # frame
    b"(": lambda w: w.push(_MARK),
    b"}": lambda w: w.push({}),
    b"]": lambda w: w.push([]),
    b")": lambda w: w.push(()),
    b"N": lambda w: w.push(None),
    b"\x88": lambda w: w.push(True),
    b"\x89": lambda w: w.push(False),
    b"K": lambda w: w.push(w.number("<B")),
    b"M": lambda w: w.push(w.number("<H")),
    b"J": lambda w: w.push(w.number("<i")),
    b"U": lambda w: w.push(w.take(w.number("<B"))),
    b"T": lambda w: w.push(w.take(w.number("<I"))),
    b"C": lambda w: w.push(w.take(w.number("<B"))),
    b"B": lambda w: w.push(w.take(w.number("<I"))),
    b"\x8e": lambda w: w.push(w.take(w.number("<Q"))),
    b"X": lambda w: w.push(w.take(w.number("<I")).decode()),
    b"\x8c": lambda w: w.push(w.take(w.number("<B")).decode()),
    b"q": lambda w: w.remember(w.number("<B")),
    b"r": lambda w: w.remember(w.number("<I")),
    b"\x94": lambda w: w.remember(len(w.memo)),
    b"h": lambda w: w.push(w.memo[w.number("<B")]),
    b"j": lambda w: w.push(w.memo[w.number("<I")]),
    b"\x85": lambda w: w.tuple_of(1),
    b"\x86": lambda w: w.tuple_of(2),
    b"\x87": lambda w: w.tuple_of(3),
    b"t": lambda w: w.push(tuple(w.since_mark())),
    b"a": lambda w: w.extend([w.stack.pop()]),
    b"e": lambda w: w.extend(w.since_mark()),
    b"s": lambda w: w.update([w.stack.pop(-2), w.stack.pop()]),
    b"u": lambda w: w.update(w.since_mark()),
    b"c": lambda w: w.name(w.line(), w.line()),
    b"\x93": lambda w: w.stacked_name(),
    b"R": lambda w: w.reduce(),
    b"b": lambda w: w.build(),
}
