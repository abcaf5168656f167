"""Results of reproductions as files, `results/ID-SCALE.json`, which are checked when they are read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcohort.errors import ConfigError, StoreError
from fedcohort.storage.snapshots import write_durably

RESULTS = Path("results")
_NUMBER = (int, float, type(None))
_RESULT = {
    "study": str, "title": str, "scale": str, "seeds": list, "made": str, "average": str, "cells": list,
    "claims": list, "departures": list, "failed": dict,
}  # fmt: skip
_CELL = {
    "row": str, "column": str, "quantity": str, "digits": int, "missing": str, "published": _NUMBER, "mean": _NUMBER,
    "low": _NUMBER, "high": _NUMBER, "values": dict, "digests": dict,
}  # fmt: skip
_CLAIM = {
    "words": str, "verdict": str, "main": bool, "ours": bool, "seeds": int, "wins": int, "losses": int, "needs": int,
    "published": _NUMBER, "difference": _NUMBER, "low": _NUMBER, "high": _NUMBER,
}  # fmt: skip


def file_of(study: str, scale: str, folder: Path = RESULTS) -> Path:
    """Where the result of a study is kept."""
    return folder / f"{study.replace(':', '-')}-{scale}.json"


def picture_name(result: Mapping[str, Any]) -> str:
    """The file of a result's picture: STUDY.svg at laptop scale, STUDY-SCALE.svg at others."""
    scale = "" if result["scale"] == "laptop" else f"-{result['scale']}"
    return f"{result['study'].replace(':', '-')}{scale}.svg"


def save(found: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result down."""
    path = file_of(found["study"], found["scale"], folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, (json.dumps(found, indent=1) + "\n").encode())
    return path


def load(path: Path, *, claims: bool = True) -> dict[str, Any]:
    """A result that was written down; without `claims` those in it may be of an earlier version."""
    try:
        found = json.loads(path.read_text())
    except OSError:
        raise StoreError(f"{path}", "there is no such result", "run `fedcohort reproduce` first") from None
    except ValueError:
        found = None
    fault = _fault(found, ("cell", "claim") if claims else ("cell",))
    if not fault and path.name != file_of(found["study"], found["scale"]).name:
        fault = f"it is that of {found['study']} at scale {found['scale']}, which belongs into another file"
    if fault:
        remedy = "delete it or put it aside, and run `fedcohort reproduce` again"
        raise ConfigError(f"{path}", f"this is not the result of its reproduction: {fault}", remedy)
    return dict(found)


def _fault(found: Any, kinds: Sequence[str]) -> str:
    """What is wrong with the contents of a file, or nothing."""
    wrong = _lacks("the file", found, _RESULT)
    if wrong:
        return wrong
    optional = {key: int for key in ("goal", "done", "wanted") if key in found}
    faults = [_lacks("the file", found, optional)]
    for kind in kinds:
        keys = _CELL if kind == "cell" else _CLAIM
        faults += [_lacks(f"{kind} {at}", one, keys) for at, one in enumerate(found[f"{kind}s"])]
    if not any(faults):
        faults = [_numbers(f"cell {at}", cell) for at, cell in enumerate(found["cells"])]
        faults += ["seeds are not whole numbers"] * any(type(s) is not int or s < 0 for s in found["seeds"])
        faults += ["departures are not texts"] * any(not isinstance(one, str) for one in found["departures"])
    return next(filter(None, faults), "")


def _lacks(what: str, found: Any, keys: Mapping[str, Any]) -> str:
    if not isinstance(found, dict):
        return f"{what} is not a mapping"
    wrong = [key for key, kind in keys.items() if key not in found or not isinstance(found[key], kind)]
    return f"{what} has no sound {wrong[0]!r}" if wrong else ""


def _numbers(what: str, cell: Mapping[str, Any]) -> str:
    values, digests = cell["values"], cell["digests"]
    numbers = (*values.values(), *(cell[key] for key in ("published", "mean", "low", "high")), cell["digits"])
    sound = all(_is_number(v) for v in numbers) and cell["digits"] >= 0
    sound = sound and all(isinstance(d, str) for d in digests.values())
    sound = sound and all(seed.isdecimal() for seed in (*values, *digests))
    pairs = cell.get("against", [])
    sound = sound and isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    return "" if sound else f"{what} has no sound 'values', 'digests' or 'against'"


def _is_number(value: Any) -> bool:
    """Whether it is a finite number, or None."""
    return value is None or (isinstance(value, int | float) and type(value) is not bool and math.isfinite(value))


def rows_and_columns(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The rows and columns of a result, in the order of its cells."""
    return list(dict.fromkeys(c["row"] for c in cells)), list(dict.fromkeys(c["column"] for c in cells))
