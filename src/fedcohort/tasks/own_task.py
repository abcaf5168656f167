"""Tasks on data of your own: a small perceptron on a Dataset, or on a file named in a text.

csv:clinic.csv(target=ill, client=site, hidden=32)      columns of a table; also parquet:FILE
npz:sites.npz(lr=0.05)                                  arrays x, y and client
"""

from __future__ import annotations

import difflib
import hashlib
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedcohort.core.spec_string import file_of
from fedcohort.data.dataset import Dataset, check_file
from fedcohort.engines.networks import Flatten, Network, mlp
from fedcohort.errors import DataError, UnknownName, check
from fedcohort.tasks.catalogue import DATA_OPTIONS, PLAN_OPTIONS, plan_with
from fedcohort.tasks.classification import ClassificationSpec
from fedcohort.types import Plan

FROM_ARRAYS = "make one with Dataset.from_arrays(x, y), from_csv, from_pandas, from_torch ..."
TABLE: dict[str, Any] = {"target": "", "client": "", "drop": (), "features": (), "standardise": True}
HIDDEN = (64,)
LOCAL = Plan(lr=0.1, epochs=2)  # the local training where nothing else is said


def task_on(data: Dataset, *, hidden: int | tuple[int, ...] = HIDDEN, **more: Any) -> ClassificationSpec:
    """A task on a dataset: a perceptron on the flattened inputs; `more` are options of local training and of cuts."""
    check(isinstance(data, Dataset), f"data of type {type(data).__name__}", "this is not a Dataset", FROM_ARRAYS)
    one = f"data {data.name!r} with {data.classes} class" + (f" ({data.class_names[0]})" if data.class_names else "")
    check(data.classes > 1, one, "there is nothing to tell apart", "check which column or array holds the labels")
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    for width in widths:
        whole = isinstance(width, int) and width >= 1
        check(whole, f"hidden = {hidden}", "widths are whole numbers from 1", "give e.g. (64,)")
    cuts = {key: more.pop(key) for key in DATA_OPTIONS if key in more}
    for key in more:
        if key not in PLAN_OPTIONS:
            raise UnknownName.among("option of a task", key, ("hidden", *PLAN_OPTIONS, *DATA_OPTIONS))
    inner = mlp(math.prod(data.shape), *widths, classes=data.classes)
    model = inner if len(data.shape) == 1 else Network(tuple(data.shape), (Flatten(), *inner.layers))
    return ClassificationSpec(data.name, data, model, plan_with(LOCAL, **more), about=repr(data), **cuts)


def from_file(name: str, arguments: dict[str, Any]) -> ClassificationSpec:
    """The task on a file, e.g. ("csv:clinic.csv", {"target": "ill"})."""
    known = options(name)
    for key in arguments:
        if key not in known:
            raise UnknownName.among(f"option of {name}", key, known)
    columns = {key: value for key, value in arguments.items() if key in TABLE}
    rest = {key: value for key, value in arguments.items() if key not in TABLE}
    return task_on(read_file(name, columns), **rest)


def read_file(name: str, columns: dict[str, Any]) -> Dataset:
    """The dataset in a file: "csv:FILE", "npz:FILE", "parquet:FILE", or a path with one of these endings."""
    kind, path = file_of(name), file_path(name)
    if not path.is_file():
        raise _no_file(path)
    if kind == "npz":
        return check_file(path.stem, path)
    return (Dataset.from_csv if kind == "csv" else Dataset.from_parquet)(path, **columns)


def _no_file(path: Path) -> DataError:
    """The error for a file that is not there, with the nearest one that is."""
    bare = Path(str(path).partition("(")[0])
    remedy = "check the path; it is looked up from where you are"
    if bare != path and bare.is_file():
        remedy = f"a bracket behind {bare} is not closed, or a value in it is not one word, number or 'text'"
    elif path.parent.is_dir():
        there = [p.name for p in path.parent.iterdir() if p.suffix in (".csv", ".npz", ".parquet")]
        near = difflib.get_close_matches(path.name, there, n=2, cutoff=0.6)
        remedy = f"did you mean {' or '.join(str(path.with_name(n)) for n in near)}" if near else remedy
    return DataError(f"{path}", "there is no such file", remedy)


def file_path(name: str) -> Path:
    """The path behind "csv:FILE"."""
    return Path(name.partition(":")[2].strip()).expanduser()


def options(name: str) -> dict[str, Any]:
    """What the text of a file may set, with the defaults."""
    cuts = {f: ClassificationSpec.__dataclass_fields__[f].default for f in DATA_OPTIONS if f != "root"}
    plan = {f: getattr(LOCAL, f) for f in PLAN_OPTIONS}
    return {**(TABLE if file_of(name) != "npz" else {}), "hidden": HIDDEN, **plan, **cuts}


def content_digest(name: str) -> str:
    """sha256 of the file: the same data in another place are the same run, changed data are another one."""
    path = file_path(name)
    if not path.is_file():
        raise _no_file(path)
    about = path.stat()
    return _digest(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=64)
def _digest(path: Path, changed: int, size: int) -> str:
    del changed, size  # the file as it was then
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
