"""Recorded availability from a file: when each device was on.

Three forms are read.
    FedScale json   {"17": {"active": [0, 900], "inactive": [300, 1500], "finish_time": 2000, ...}, ...}
                    on from active[j] to inactive[j], both included; the record repeats after finish_time seconds
    json            {"period": 86400, "devices": [[[0, 300], [900, 1500]], ...]}
    csv             device,begin,end rows with that header line (or client,begin,end), seconds; the record repeats
                    after the largest end
Times are looked up by bisection, so an answer does not depend on what was asked before.
"""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DataError, RunWarning
from fedcohort.types import Index, Mask

_REMEDY = "see docs/worlds.md for the three forms of a trace"


@dataclass(frozen=True)
class Trace:
    """Intervals of all devices in CSR form, sorted and merged within a device."""

    first: Index  # (devices + 1,)
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    period: NDArray[np.float64]  # (devices,) seconds after which the record repeats
    names: tuple[str, ...] = ()  # of the devices, where the file has them

    @property
    def devices(self) -> int:
        """How many devices were recorded."""
        return int(self.period.size)

    def active(self, clock: float) -> Mask:
        """Which devices are on at this time."""
        local = np.mod(clock, self.period)
        low, high = self.first[:-1].copy(), self.first[1:].copy()  # bisect: the last interval that has begun
        while np.any(low < high):
            middle = (low + high) // 2
            begun = np.zeros(low.size, np.bool_)
            live = low < high
            begun[live] = self.begin[middle[live]] <= local[live]
            low, high = np.where(live & begun, middle + 1, low), np.where(live & ~begun, middle, high)
        last = low - 1
        found = last >= self.first[:-1]
        on = np.zeros(low.size, np.bool_)
        on[found] = local[found] <= self.end[last[found]]
        return on


def load_trace(path: str | Path) -> Trace:
    """Read a trace; a missing or damaged file is a DataError that names it."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "cannot be read" if file.exists() else "does not exist"
        raise DataError(f"availability trace path={str(path)!r}", reason, "set path to a trace file") from error
    try:
        if file.suffix.lower() == ".csv":
            return _from_csv(text)
        data = json.loads(text)
        if isinstance(data, Mapping) and "devices" in data:
            rows = [list(d) for d in data["devices"]]
            return _trace(rows, [float(data["period"])] * len(rows))
        return _from_fedscale(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, csv.Error) as error:
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        what = f"is not a trace ({said})"
        raise DataError(f"availability trace path={str(path)!r}", what, _REMEDY) from error


def _from_csv(text: str) -> Trace:
    rows: dict[str, list[tuple[float, float]]] = {}
    lines = text.removeprefix("\ufeff").splitlines()
    table = csv.DictReader(lines, delimiter=max(",;\t", key=(lines or [""])[0].count))
    has = list(table.fieldnames or [])
    who = next((name for name in ("device", "client") if name in has), "")
    if not who or not {"begin", "end"} <= set(has):
        raise ValueError(f"its columns must be device (or client), begin and end; it has {', '.join(has) or 'none'}")
    for row in table:
        rows.setdefault(str(row[who]).strip(), []).append((float(row["begin"]), float(row["end"])))
    longest = max((end for spans in rows.values() for _, end in spans), default=0.0)
    return _trace(list(rows.values()), [longest] * len(rows), list(rows))


def _from_fedscale(data: Mapping[str, Any]) -> Trace:
    names = sorted(data, key=lambda name: (len(str(name)), str(name)))
    spans = [list(zip(data[n]["active"], data[n]["inactive"], strict=False)) for n in names]
    return _trace(spans, [float(data[n]["finish_time"]) for n in names], [str(n) for n in names])


def rows_by_name(file: str, recorded: Sequence[str], clients: Sequence[str]) -> Index | None:
    """The row of each client in a file, by its name; None where nothing in the file has the name of a client.

    >>> rows_by_name("fleet.csv", ["north", "south"], ["south", "north", "south"])
    array([1, 0, 1])
    """
    at = {name: row for row, name in enumerate(recorded)}
    missing = [name for name in clients if name not in at]
    if not clients or not recorded:
        return None
    if len(missing) == len(clients):
        _tell_strangers(file, recorded, clients)
        return None
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        rule = f"{len(missing)} of {len(clients)} clients are not in it: {some}"
        raise DataError(f"file {file}", rule, "add them, under the names that the data have")
    return np.array([at[name] for name in clients], np.int64)


def _tell_strangers(file: str, recorded: Sequence[str], clients: Sequence[str]) -> None:
    """Names that differ in case or spaces only are a mistake; other ones may be meant, and that is said."""
    alike = {name.strip().lower(): name for name in recorded}
    for name in clients:
        if name.strip().lower() in alike:
            rule = f"it has {alike[name.strip().lower()]!r} where the data have {name!r}"
            raise DataError(f"file {file}", rule, "write the names as the data have them")
    text = (
        f"file {file}: none of its names ({recorded[0]}, ...) is that of a client of the data ({clients[0]}, ...), so "
    )
    warnings.warn(text + "clients take its rows in turns, whichever are theirs.", RunWarning, stacklevel=4)


def _trace(spans: Sequence[Sequence[Sequence[float]]], period: Sequence[float], names: Sequence[str] = ()) -> Trace:
    if not spans:
        raise ValueError("no devices")
    if not all(np.isfinite(p) and p > 0 for p in period):
        raise ValueError("the period must be a positive number of seconds")
    merged = [_merged(s) for s in spans]
    first = np.concatenate([[0], np.cumsum([len(m) for m in merged])]).astype(np.int64)
    flat = np.array([pair for m in merged for pair in m], np.float64).reshape(-1, 2)
    return Trace(first, flat[:, 0].copy(), flat[:, 1].copy(), np.array(period, np.float64), tuple(names))


def _merged(spans: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Sorted, with overlaps joined, so that the last interval that has begun decides."""
    out: list[tuple[float, float]] = []
    for begin, end in sorted((float(b), float(e)) for b, e in spans):
        if not (np.isfinite(begin) and np.isfinite(end) and begin <= end):
            raise ValueError(f"interval {begin} .. {end}")
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out
