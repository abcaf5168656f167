"""Compressed journal records: many bodies in one block. What goes in comes out, byte for byte.

A block is zlib over a pack of four arrays: which kind, which round and how long each record is, and all bodies one
after the other. The length before compression is stored in front and is a limit: a block cannot decompress to more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from fedcohort.core.pack import PackError, pack, unpack

Row = tuple[str, int, bytes]  # kind, round, body
MAX_BYTES = 2**32  # bytes that a block may decompress to
BLOCK = 2**28  # bytes of bodies that are put into one block; SQLite takes no value of more than 10^9 bytes


def blocks(sizes: Iterable[int]) -> list[slice]:
    """Which rows go into one block each, by the sizes of their bodies: as many as fit, at least one."""
    starts, full, count = [0], 0, 0
    for count, size in enumerate(sizes, start=1):
        if full and full + size > BLOCK:
            starts, full = [*starts, count - 1], 0
        full += size
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], count], strict=True)]


def compress(rows: Iterable[Row]) -> bytes:
    """One block of these rows."""
    kinds, rounds, bodies = zip(*rows, strict=True)
    names = sorted(set(kinds))
    plain = pack(
        {
            "kind": np.array([names.index(k) for k in kinds], np.uint8),
            "round": np.array(rounds, np.int64),
            "size": np.array([len(b) for b in bodies], np.int64),
            "data": np.frombuffer(b"".join(bodies), np.uint8),
        },
        {"kinds": names},
    )
    return len(plain).to_bytes(8, "little") + zlib.compress(plain, 6)


def decompress(block: bytes) -> Iterator[Row]:
    """The rows of a block; raises PackError when it is not one."""
    size = int.from_bytes(block[:8], "little")
    if size > MAX_BYTES:
        raise PackError(f"a segment of {size} bytes is larger than any that is written")
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(block[8:], size + 1)
    except zlib.error as error:
        raise PackError(f"a segment cannot be decompressed ({error})") from None
    if len(plain) != size or not reader.eof or reader.unused_data:
        raise PackError("a segment is longer or shorter than it says")
    arrays, meta = unpack(plain)
    try:
        names, kind, round_, length = meta["kinds"], arrays["kind"], arrays["round"], arrays["size"]
        data, ends = arrays["data"].tobytes(), np.cumsum(length)
        if not (kind.shape == round_.shape == length.shape) or (length < 0).any() or ends[-1] != len(data):
            raise PackError("a segment's columns do not fit each other")
        for k, r, start, end in zip(kind, round_, ends - length, ends, strict=True):
            yield names[int(k)], int(r), data[int(start) : int(end)]
    except (KeyError, IndexError, TypeError) as error:
        raise PackError(f"a segment is damaged ({error})") from None
