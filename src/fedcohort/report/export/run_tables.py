"""Everything that was measured in runs, as four tables: rounds, evaluations, outcomes and clients.

    rounds       one row per run and round: every number of the journal
    evaluations  one row per run and evaluated round: what the model scored on test data, and when
    outcomes     one row per run, round and client asked: what became of it, how long it took, the signals it sent
    clients      one row per run and client: how often it was asked and with what outcome, accuracy of the final model

Tables are written as CSV, or as parquet with the extra `parquet`; `run` is the name of the run's folder.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.errors import MissingExtra
from fedcohort.experiment.runs import read
from fedcohort.experiment.store import client_accuracy
from fedcohort.rounds.history import client_names
from fedcohort.storage.run_folder import RunFolder
from fedcohort.types import Outcome

Row = dict[str, Any]
TABLES = ("rounds", "evaluations", "outcomes", "clients")
SCORES = ("accuracy", "loss", "macro_f1", "f1", "gap", "distance")
WHO = ("run", "selector", "method", "world", "task", "seed")


def run_tables(folders: Iterable[Path]) -> dict[str, list[Row]]:
    """The four tables of some runs, rows as dictionaries."""
    out: dict[str, list[Row]] = {name: [] for name in TABLES}
    for folder in folders:
        found = read(folder)
        plain = found.config.to_dict()
        who = {"run": folder.absolute().name, **{k: plain[k] for k in WHO[1:]}}
        key = {"run": who["run"]}
        rows = [{**who, **_round(row)} for row in found.history.rows]
        out["rounds"] += rows
        scored = [row for row in rows if any(_there(row.get(name)) for name in SCORES)]
        wanted = ("round", "clock", *SCORES)
        extra = sorted({n for row in scored for n in row if n.startswith("recall_")})
        out["evaluations"] += [{**who, **{n: row[n] for n in (*wanted, *extra) if n in row}} for row in scored]
        outcomes = _outcomes(folder)
        out["outcomes"] += [{**key, **row} for row in outcomes]
        out["clients"] += [{**key, **row} for row in _clients(folder, found.history.population, outcomes)]
    return out


def write_csv(tables: dict[str, list[Row]], folder: Path) -> list[Path]:
    """One CSV file per table."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in tables.items():
        path = folder / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns_of(rows), restval="")
            writer.writeheader()
            writer.writerows({k: "" if not _there(v) else v for k, v in row.items()} for row in rows)
        written.append(path)
    return written


def write_parquet(tables: dict[str, list[Row]], folder: Path) -> list[Path]:
    """One parquet file per table."""
    try:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]
        from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise MissingExtra.of("--parquet", "parquet") from None
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in tables.items():
        path = folder / f"{name}.parquet"
        columns = {c: [row.get(c) if _there(row.get(c)) else None for row in rows] for c in columns_of(rows)}
        parquet.write_table(pyarrow.table(columns), path)
        written.append(path)
    return written


def columns_of(rows: list[Row]) -> list[str]:
    """All keys of the rows, in the order in which they appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _round(row: Row) -> Row:
    return {"round": int(row["round"]), **{k: v for k, v in row.items() if k != "round"}}


def _there(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _outcomes(folder: Path) -> list[Row]:
    journal = RunFolder(folder).reader()
    names, out = client_names(journal), []
    for record in journal.records():
        if record.kind != "tell":
            continue
        arrays, meta = record.unpack()
        reasons = meta.get("reasons") or {}
        sent = {k.removeprefix("signal."): v for k, v in arrays.items() if k.startswith("signal.") and v.ndim == 1}
        single = {k: v for k, v in sent.items() if not k.endswith(".sha256")}  # of long vectors only a digest is kept
        for at, client in enumerate(arrays["clients"].tolist()):
            row: Row = {"round": record.round, "client": client, "name": _name(names, client)}
            row |= {"outcome": Outcome(int(arrays["outcome"][at])).name.lower()}
            row |= {"seconds": float(arrays["duration"][at]), "reason": reasons.get(str(client), "")}
            out.append(row | {k: float(v[at]) for k, v in single.items()})
    return out


def _clients(folder: Path, population: int, outcomes: list[Row]) -> list[Row]:
    names, accuracy = client_names(RunFolder(folder).reader()), client_accuracy(folder)
    kinds = [o.name.lower() for o in Outcome]
    rows: list[Row] = [
        {"client": c, "name": _name(names, c), "asked": 0, **dict.fromkeys(kinds, 0)} for c in range(population)
    ]
    taken: dict[int, list[float]] = {}
    for outcome in outcomes:
        row = rows[outcome["client"]]
        row["asked"] += 1
        row[outcome["outcome"]] += 1
        if _there(outcome["seconds"]):
            taken.setdefault(outcome["client"], []).append(outcome["seconds"])
    for client, row in enumerate(rows):
        row["mean_seconds"] = float(np.mean(taken[client])) if client in taken else None
        row["accuracy"] = None if accuracy is None else float(accuracy[client])
    return rows


def _name(names: tuple[str, ...], client: int) -> str:
    return names[client] if client < len(names) else str(client)
