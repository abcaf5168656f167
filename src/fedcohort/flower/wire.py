"""What goes over the wire: names of records and fields, and how arrays are read without trusting their sender.

A request carries, besides what the wrapped strategy puts into it, one ConfigRecord named ``fedcohort``; a reply may
carry a MetricRecord ``fedcohort.signals`` and an ArrayRecord ``fedcohort.vectors``. All three are ours: the wrapped
strategy never sees them. Client ids are text; node ids are 64-bit and never leave this package.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

WIRE = 1  # version of this format; clients with another one are refused
REQUEST = "fedcohort"  # ConfigRecord of a request: wire, round, measure, directives
SIGNALS = "fedcohort.signals"  # MetricRecord of a reply: scalar signals
VECTORS = "fedcohort.vectors"  # ArrayRecord of a reply: vector signals
REGISTER = "query.fedcohort_register"
PROBE = "query.fedcohort_probe"
MAX_METRICS, MAX_NAME = 200, 200  # metrics of one reply, characters of a name
_NPY_HEAD = 4096  # more than any header of a plain array needs


class Refused(Exception):
    """A reply that is rejected; the reason code goes to the journal."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_array(array: Any, key: str, *, shape: tuple[int, ...] | None = None, most: int = 2**31) -> NDArray[Any]:
    """The NumPy array inside a Flower array: size, type and shape are checked before anything is allocated."""
    if array.stype != "numpy.ndarray":
        raise Refused(f"array-serialisation:{key}")
    expected = most if shape is None else math.prod(shape) * 8
    if len(array.data) > expected + _NPY_HEAD:
        raise Refused(f"array-too-large:{key}")
    try:
        file = io.BytesIO(array.data)
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        found, fortran, dtype = reader(file)
    except Exception:
        raise Refused(f"array-unreadable:{key}") from None
    if dtype.kind not in "biuf":
        raise Refused(f"array-dtype:{key}")
    if shape is not None and tuple(found) != shape:
        raise Refused(f"array-shape:{key}")
    raw = array.data[file.tell() :]
    if len(raw) != math.prod(found) * dtype.itemsize:
        raise Refused(f"array-unreadable:{key}")
    return np.frombuffer(raw, dtype).reshape(found, order="F" if fortran else "C")


def fit_name(name: str) -> bool:
    """Whether a name from outside may be kept: not empty, not too long, printable."""
    return 0 < len(name) <= MAX_NAME and name.isprintable()


def numbers(record: MetricRecord) -> dict[str, float | list[float]]:
    """The finite numbers of a metric record."""
    out: dict[str, float | list[float]] = {}
    if len(record) > MAX_METRICS:
        raise Refused(f"metrics-too-many:{len(record)}")
    for key, value in record.items():
        if not fit_name(str(key)):
            raise Refused("metric-name")
        values = list(value) if isinstance(value, list) else [value]
        if len(values) > MAX_METRICS:
            raise Refused(f"metric-too-long:{key}")
        if not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
            raise Refused(f"metric-not-finite:{key}")
        out[str(key)] = value
    return out


def own(content: RecordDict) -> tuple[Mapping[str, Any], ArrayRecord]:
    """Our two records of a reply: scalar and vector signals (empty where there are none)."""
    scalars, vectors = content.get(SIGNALS), content.get(VECTORS)
    if not isinstance(scalars, MetricRecord | None) or not isinstance(vectors, ArrayRecord | None):
        raise Refused("signals-malformed")
    return scalars or MetricRecord(), vectors or ArrayRecord()


def foreign(content: RecordDict) -> RecordDict:
    """The content without our records: what the wrapped strategy may see."""
    return RecordDict({k: v for k, v in content.items() if k not in (REQUEST, SIGNALS, VECTORS)})
