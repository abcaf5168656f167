"""How long the clients of your own fleet take, from a file.

    csv     client,seconds rows with that header line; several rows of a client are several observations
    npz     arrays client (names) and seconds, (n,) or (n, observations)

Where the file has the names of the world's clients, each gets its own seconds; else clients take the rows in turns. Of
several observations one is drawn per round, from a keyed stream.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import NotNegative
from fedcohort.core.rng import uniform_at
from fedcohort.errors import DataError, check
from fedcohort.types import Arrays, Index, Work
from fedcohort.worlds import keyed_draws
from fedcohort.worlds.latency import (
    Constant,
    Double,
    FixedExponential,
    FlashRLLatency,
    Latency,
    Lognormal,
    Pareto,
    Physical,
    ShiftedExponential,
)
from fedcohort.worlds.section import table
from fedcohort.worlds.trace import rows_by_name

FORMS = "a csv with the columns client and seconds, or an npz with these arrays"


@dataclass(frozen=True)
class GivenLatency(Latency):
    """Seconds measured on your own fleet, from the file `path` (docs/worlds.md describes its forms).

    They are those of a whole round, training and both transfers, whatever is trained; with `passes` given they hold for
    that many passes over the client's samples. Other work, such as a probe (a third of a pass), changes in proportion.

    >>> GivenLatency(path="fleet.csv").to_dict()
    {'kind': 'given', 'path': 'fleet.csv', 'passes': 0.0}
    """

    kind: ClassVar[str] = "given"

    path: str = ""
    passes: NotNegative = 0.0

    def check(self) -> None:
        """The file must be named; it is read when the world is built."""
        check(self.path != "", "path = ''", "given latency needs a file", f"set path to {FORMS}")

    def bind(self, clients: int, seed: int, truth: Mapping[str, NDArray[Any]]) -> Arrays:
        """The observations of every client, one after the other."""
        names, seen = load_seconds(self.path)
        row = rows_by_name(self.path, names, truth["name"].tolist() if "name" in truth else [])
        if row is None:
            row = keyed_draws.order(seed, "given-latency", clients) % len(names)
        mine = [seen[int(r)] for r in row]
        first = np.concatenate([[0], np.cumsum([len(m) for m in mine])]).astype(np.int64)
        return {"given_first": first, "given_seconds": np.concatenate(mine)}

    def seconds(self, seed: int, index: int, clients: Index, work: Work, fixed: Arrays) -> Double:
        """One of the client's observations."""
        first, many = fixed["given_first"][clients], np.diff(fixed["given_first"])[clients]
        drawn = np.minimum((uniform_at(seed, "latency", index, clients) * many).astype(np.int64), many - 1)
        return np.asarray(fixed["given_seconds"][first + drawn] * self._share(work), np.float64)

    def expected(self, clients: Index, work: Work, fixed: Arrays) -> Double:
        """Their mean."""
        total = np.add.reduceat(fixed["given_seconds"], fixed["given_first"][:-1])
        return np.asarray((total / np.diff(fixed["given_first"]))[clients] * self._share(work), np.float64)

    def _share(self, work: Work) -> Double:
        return np.asarray(work.passes, np.float64) / (self.passes or work.plain)


LATENCIES: dict[str, type[Latency]] = table(
    Constant, ShiftedExponential, FixedExponential, Lognormal, Pareto, FlashRLLatency, Physical, GivenLatency
)


def load_seconds(path: str | Path) -> tuple[list[str], list[Double]]:
    """The names in a file of seconds, and the observations of each; a mistake in it is a DataError that names it."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"latency file {str(path)!r}", "there is no such file", f"give {FORMS}")
    rows: dict[str, list[float]] = {}
    for at, (name, seconds) in enumerate(_npz(file) if file.suffix.lower() == ".npz" else _csv(file)):
        if not (np.isfinite(seconds) and seconds >= 0):
            rule = f"entry {at + 1} ({name}) takes {seconds} seconds"
            raise DataError(f"latency file {str(path)!r}", rule, "seconds are finite and not negative")
        rows.setdefault(name, []).append(seconds)
    if not rows:
        raise DataError(f"latency file {str(path)!r}", "it has no rows", f"give {FORMS}")
    return list(rows), [np.array(seen, np.float64) for seen in rows.values()]


def _csv(file: Path) -> list[tuple[str, float]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
        lines = text.splitlines()
        rows = list(csv.DictReader(lines, delimiter=max(",;\t", key=(lines or [""])[0].count)))
        return [(str(row["client"]).strip(), float(row["seconds"])) for row in rows]
    except KeyError:
        has = ", ".join(rows[0]) if rows else "nothing"
        rule = f"its columns must be client and seconds; it has {has}"
        raise DataError(f"latency file {str(file)!r}", rule, "rename its columns in the first line") from None
    except (OSError, UnicodeDecodeError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"latency file {str(file)!r}", f"it cannot be read ({error})", f"give {FORMS}") from None


def _npz(file: Path) -> list[tuple[str, float]]:
    try:
        with np.load(file, allow_pickle=False) as found:
            names, seconds = found["client"], np.asarray(found["seconds"], np.float64)
        table = seconds.reshape(len(names), -1)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"latency file {str(file)!r}", f"it cannot be read ({error})", f"give {FORMS}") from None
    return [(str(name), float(s)) for name, row in zip(names.tolist(), table, strict=True) for s in row]
