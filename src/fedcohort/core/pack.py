"""Arrays and a little JSON as bytes: deterministic, without pickle, and refused unless every length checks out.

Layout: 8-byte magic, 8-byte header length, header (JSON: meta, and per array dtype, shape, offset), raw C-order data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"fcpack01"
_MAX_HEADER = 16 * 2**20
_KINDS = "biuf"
_TYPE = re.compile(r"[<|][biuf]\d{1,2}")


class PackError(ValueError):
    """These bytes are not a pack, or a damaged one."""


def pack(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any] | None = None) -> bytes:
    """Arrays (of plain numbers) and JSON-able meta data as bytes. Equal input gives equal bytes."""
    index: dict[str, list[Any]] = {}
    chunks: list[bytes] = []
    offset = 0
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name]).reshape(np.shape(arrays[name]))
        if a.dtype.kind not in _KINDS:
            raise PackError(f"{name}: arrays of {a.dtype} cannot be packed, only plain numbers")
        a = a.astype(a.dtype.newbyteorder("<"), copy=False)
        raw = a.tobytes()
        index[name] = [a.dtype.str, list(a.shape), offset]
        chunks.append(raw)
        offset += len(raw)
    header = json.dumps({"meta": meta or {}, "arrays": index, "size": offset}, sort_keys=True).encode()
    if len(header) > _MAX_HEADER:
        raise PackError(f"names and texts of {len(header)} bytes, more than the {_MAX_HEADER} that can be read back")
    return b"".join([_MAGIC, len(header).to_bytes(8, "little"), header, *chunks])


def unpack(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Inverse of :func:`pack`; every offset, shape and type is checked before anything is read."""
    if data[:8] != _MAGIC or len(data) < 16:
        raise PackError("not a fedcohort pack")
    length = int.from_bytes(data[8:16], "little")
    if length > min(_MAX_HEADER, len(data) - 16):
        raise PackError("header longer than the data")
    try:
        header = json.loads(data[16 : 16 + length])
        index, meta, size = header["arrays"], header["meta"], header["size"]
        body = memoryview(data)[16 + length :]
        if len(body) != size or not isinstance(meta, dict):
            raise PackError(f"{len(body)} bytes of data where {size} were announced")
        return {name: _read(name, entry, body) for name, entry in index.items()}, meta
    except PackError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise PackError(f"damaged header ({error})") from None


def _read(name: str, entry: Any, body: memoryview) -> NDArray[Any]:
    text, shape, offset = entry
    if not (isinstance(text, str) and _TYPE.fullmatch(text)):  # NumPy would read ",i2" as an expression
        raise PackError(f"{name}: unknown type {text!r}")
    try:
        dtype = np.dtype(text)
    except TypeError:
        raise PackError(f"{name}: unknown type {text!r}") from None
    if not all(isinstance(n, int) and n >= 0 for n in [*shape, offset]):
        raise PackError(f"{name}: not an array of plain numbers")
    count = math.prod(shape)
    if offset + count * dtype.itemsize > len(body):
        raise PackError(f"{name}: reaches past the end")
    return np.frombuffer(body, dtype, count, offset).reshape(shape).copy()
