"""What a page shows of a run, as JSON-able values. Read-only, cheap, and safe while the run is going.

====================  ==============================================================================================
summary(folder)       id, configuration, state, rounds done and to do, newest accuracy and clock
curves(folder)        accuracy, loss and so on per round; thinned, or only what came since a round
cohort_map(folder)    who was asked in which round with what outcome, and clients in several orders
client(folder, slot)  when it was asked, what became of it, and the parts of the score it was chosen by
====================  ==============================================================================================
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.columns import unpack_slots
from fedcohort.errors import FedcohortError, check
from fedcohort.report.traits import order, same_words, tells_apart, traits_of
from fedcohort.rounds.history import client_names
from fedcohort.storage.journal_reader import JournalReader, Record
from fedcohort.storage.run_folder import RunFolder
from fedcohort.types import Arrays, Outcome

Slots = NDArray[np.int64]
OUTCOMES = (*(o.name for o in Outcome), "not back yet")
WAITING = len(Outcome)  # asked, and the round is still open
POINTS = 2000  # of a curve
ROWS = 2000  # clients of a cohort map
VISITS = 500  # rounds of one client


def summary(folder: Path) -> dict[str, Any]:
    """One line about a run. Damage is reported in `error`, not raised."""
    files = RunFolder(folder)
    out: dict[str, Any] = {"id": folder.name, "config": {}, "state": files.state(), "rounds": 0, "total": None}
    out |= {"accuracy": None, "clock": None, "round_of_accuracy": None, "error": None}
    try:
        journal = files.reader()
        out["config"] = _config(journal.header)
        out["total"] = out["config"].get("rounds")
        out |= _newest(journal.newest(), int(out["config"].get("evaluate_every", 1)))
    except FedcohortError as error:
        if not folder.is_dir():
            raise
        out |= {"state": "damaged", "error": str(error)}
    return out


def curves(
    folder: Path, since: int = 0, limit: int = POINTS, columns: Sequence[str] = ("accuracy", "loss", "score")
) -> dict[str, Any]:
    """Per-round numbers from round `since` on, at most about `limit` rounds, spikes of the accuracy kept.

    `next` is what to pass as `since` the next time.
    """
    check(limit >= 4, f"limit = {limit}", "a curve needs a few points", "use 4 or more")
    tells = [r for r in RunFolder(folder).reader().since(since) if r.kind == "tell"]
    rows = [(r.round, r.unpack()[1].get("metrics") or {}) for r in tells]
    index = np.array([at for at, _ in rows], np.int64)
    column = {n: np.array([_float(m.get(n)) for _, m in rows]) for n in ("clock", "seconds", "asked", *columns)}
    outcomes = {o.name.lower(): np.array([_float(m.get(o.name.lower(), 0)) for _, m in rows]) for o in Outcome}
    keep = thin(column.get("accuracy", column["clock"]), limit)
    shown = {name: plain(values[keep]) for name, values in {**column, **outcomes}.items()}
    return {"round": index[keep].tolist(), **shown, "next": int(index[-1]) + 1 if index.size else since}


def cohort_map(folder: Path, since: int = 0, rows: int = ROWS) -> dict[str, Any]:
    """Who was asked when. `asked[i]` are rows of `clients` in round `since + i`, `outcomes[i]` one digit for each.

    Of more clients than `rows` those asked most often are shown. `orders` lists rows from top to bottom; a
    trait that is the same for all of them gives no order.
    """
    journal = RunFolder(folder).reader()
    asked, outcome, population = _cohorts(journal.since(since))
    counts = np.zeros(population, np.int64)
    for cohort in asked.values():
        np.add.at(counts, cohort, 1)
    slots = np.sort(order(-counts)[:rows])
    place = np.full(population, -1, np.int64)
    place[slots] = np.arange(slots.size)
    kept = {t: place[c] >= 0 for t, c in asked.items()}
    traits, note = traits_of(_config(journal.header), population)
    own = {"asked": -counts[slots], **{n: v[slots] for n, v in traits.items()}}
    same = [n for n, v in own.items() if not tells_apart(v)]
    return {
        "first": since,
        "rounds": len(asked),
        "population": population,
        "clients": slots.tolist(),
        "names": _named(journal, slots.tolist()),
        "asked": [place[c][kept[t]].tolist() for t, c in asked.items()],
        "outcomes": ["".join(map(str, outcome[t][kept[t]])) for t in asked],
        "legend": list(OUTCOMES),
        "orders": {"slot": list(range(slots.size)), **{n: order(v).tolist() for n, v in own.items() if n not in same}},
        "traits": {"asked": counts[slots].tolist(), **{n: plain(v[slots]) for n, v in traits.items()}},
        "note": note or same_words(same),
        "next": max(asked) + 1 if asked else since,
    }


def _named(journal: JournalReader, slots: list[int]) -> list[str]:
    """How clients are called: their names in the data, or their slots."""
    names = client_names(journal)
    return [names[slot] if slot < len(names) else str(slot) for slot in slots]


def _cohorts(records: Iterator[Record]) -> tuple[dict[int, Slots], dict[int, Slots], int]:
    """Sorted cohorts by round, the outcomes of their clients, and how many clients there are."""
    asked: dict[int, Slots] = {}
    outcome: dict[int, Slots] = {}
    out: dict[int, tuple[int, int]] = {}  # client -> round in which it was asked, and its place there
    population = 0
    for record in records:
        arrays, meta = record.unpack()
        who = arrays["clients"]
        if record.kind == "ask":
            population, who = max(population, int(meta["population"])), np.sort(who)
            asked[record.round], outcome[record.round] = who, np.full(who.size, WAITING)
            out.update({int(c): (record.round, at) for at, c in enumerate(who)})
            continue
        for c, what in zip(who.tolist(), arrays["outcome"].tolist(), strict=True):
            if c in out:  # in asynchronous runs it may have been asked before the first round that is shown
                when, at = out.pop(c)
                outcome[when][at] = what
    return asked, outcome, population


def client(folder: Path, slot: int, limit: int = VISITS) -> dict[str, Any]:
    """When a client was asked, what became of it, and why it was chosen: its score parts and the cohort's mean."""
    visits: dict[int, dict[str, Any]] = {}
    population = there = left = 0
    journal = RunFolder(folder).reader()
    for record in journal.since():
        arrays, meta = record.unpack()
        if record.kind == "ask":
            population = max(population, int(meta["population"]))
            there += bool(arrays["everybody"]) or slot in unpack_slots(arrays["available"], population)
        at = np.flatnonzero(arrays["clients"] == slot)
        if at.size:
            left = record.round if record.kind == "ask" else left  # in asynchronous runs it may be told later
            visits.setdefault(left, {"round": left}).update(visit(record.kind, arrays, meta, int(at[0])))
    check(0 <= slot < population, f"client {slot}", f"there are {population} clients", "name a slot from 0")
    traits, _ = traits_of(_config(journal.header), population)
    newest = [visits[t] for t in sorted(visits)][-limit:]
    return {
        "slot": slot,
        "name": _named(journal, [slot])[0],
        "traits": {n: plain(v[slot : slot + 1])[0] for n, v in traits.items()},
        "asked": len(visits),
        "available": there,
        "parts": list(dict.fromkeys(name for v in newest for name in v["why"])),
        "visits": newest,
    }


def visit(kind: str, arrays: Arrays, meta: Mapping[str, Any], row: int) -> dict[str, Any]:
    """What an ask or a tell says about the client in this row of it."""
    if kind == "tell":
        reason = (meta.get("reasons") or {}).get(str(int(arrays["clients"][row])))
        done = OUTCOMES[int(arrays["outcome"][row])]
        return {"outcome": done, "seconds": plain(arrays["duration"][row : row + 1])[0], "reason": reason}
    why = {name: _part(column, row) for name, column in score_parts(arrays).items()}
    return {
        "clock": meta.get("clock"),
        "why": why,
        "outcome": OUTCOMES[WAITING],
        "seconds": None,
        "reason": None,
    }


def score_parts(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """The parts of the score of those asked: whatever the selector told, and the inclusion probability if known."""
    found = {k.removeprefix("why."): v for k, v in arrays.items() if k.startswith("why.") and v.ndim == 1}
    if "inclusion" in arrays:
        found.setdefault("inclusion", arrays["inclusion"])
    return {name: np.asarray(column, np.float64) for name, column in found.items()}


def thin(values: NDArray[np.float64], limit: int) -> NDArray[np.int64]:
    """Positions to keep: all, or the first, the last, and the lowest and highest of each of limit / 2 stretches."""
    n = values.size
    if n <= limit:
        return np.arange(n)
    keep = {0, n - 1}
    edges = np.linspace(0, n, limit // 2).astype(np.int64)
    for low, high in itertools.pairwise(edges):
        part = values[low:high]
        if np.isfinite(part).any():
            keep |= {int(low + np.nanargmin(part)), int(low + np.nanargmax(part))}
        else:
            keep.add(int(low))
    return np.array(sorted(keep), np.int64)


def plain(values: ArrayLike, digits: int = 6) -> list[float | None]:
    """Numbers for JSON, rounded to significant digits; None where they are not finite."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in np.asarray(values, np.float64).tolist()]


def _newest(records: Iterator[Record], every: int) -> dict[str, Any]:
    """Rounds done and newest measured accuracy; looks back no further than an evaluation can be."""
    out: dict[str, Any] = {}
    for record in records:
        if record.kind != "tell":
            continue
        metrics = record.unpack()[1].get("metrics") or {}
        if not out:
            out = {"rounds": record.round + 1, "clock": metrics.get("clock")}
        if "accuracy" in metrics:
            return out | {"accuracy": metrics["accuracy"], "round_of_accuracy": record.round}
        if record.round < out["rounds"] - every:
            break
    return out


def _config(header: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run; a deployment's header has its keys at the top."""
    found = header.get("config")
    return dict(found) if isinstance(found, Mapping) else {k: v for k, v in header.items() if k != "version"}


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _part(column: NDArray[np.float64], row: int) -> dict[str, Any]:
    """A part of the score: of this client, the mean of its cohort, and how many of the cohort have more."""
    known = column[np.isfinite(column)]
    value = column[row]
    return {
        "value": plain([value])[0],
        "mean": plain([known.mean()])[0] if known.size else None,
        "above": int((known > value).sum()) if math.isfinite(value) else None,
        "of": int(column.size),
    }
