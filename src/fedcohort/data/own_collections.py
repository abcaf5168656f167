"""Collections of other libraries as the arrays of a dataset: torch, Hugging Face, and the partitioners of Flower.

Nothing of these libraries is imported: items are read as anything with a length and an index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedcohort.data.array_checks import rule
from fedcohort.data.own_tables import CLIENTS, TARGETS, Chosen, chosen_features, named_column
from fedcohort.errors import DataError, UnknownName
from fedcohort.types import Array


def torch_arrays(samples: Any, test: Any = None) -> dict[str, Any]:
    """What `Dataset.from_arrays` needs of a torch dataset, and of another one to test."""
    x, y = _pairs(samples)
    x_test, y_test = (None, None) if test is None else _pairs(test)
    return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}


def _pairs(samples: Any) -> tuple[Array, Array]:
    kind = type(samples).__name__
    indexed = hasattr(samples, "__getitem__") and hasattr(samples, "__len__")
    rule(indexed, f"a {kind}", "it has no length and no index", "give a map-style torch dataset")
    rule(len(samples) > 0, f"a {kind}", "it is empty", "give at least one sample")
    first = samples[0]
    pair = isinstance(first, (tuple, list)) and len(first) == 2
    rule(pair, f"items of {kind}", "an item is not a pair (x, y)", "return (x, label) from __getitem__")
    items = [samples[i] for i in range(len(samples))]
    return _stacked("x", [x for x, _ in items]), np.array([_label(y) for _, y in items])


def _label(value: Any) -> int | str:
    found = np.asarray(value)
    rule(found.size == 1, f"label {value!r}"[:80], "it is not one class", "give a class number or a word")
    out: int | str = found.reshape(-1)[0].item()
    return out


def _stacked(name: str, items: Sequence[Any]) -> Array:
    arrays = [np.asarray(item) for item in items]
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        raise DataError(f"{name} with samples of shape {some}", "they must all be alike", "resize or pad them first")
    out = np.stack(arrays)
    if out.ndim == 1:  # one number per sample
        out = out[:, None]
    return out[..., None] if out.ndim == 3 and out.dtype == np.uint8 else out  # grey images have no channel axis


def huggingface_arrays(samples: Any, target: str = "", client: str = "", features: Chosen = None) -> dict[str, Any]:
    """What `Dataset.from_arrays` needs of a `datasets.Dataset`; see `Dataset.from_huggingface`."""
    train, test = samples, None
    if isinstance(samples, Mapping):
        if "train" not in samples:
            raise UnknownName.among("split", "train", samples)
        train, test = samples["train"], samples.get("test")
    target, client, used = _chosen(train, target, client, features)
    out: dict[str, Any] = {"x": _features(train, used), "y": np.asarray(train[target])}
    if test is not None:
        out |= {"x_test": _features(test, used), "y_test": np.asarray(test[target])}
    if client:
        out |= {"client": np.asarray(train[client])}
        out |= {} if test is None else {"client_test": np.asarray(test[client])}
    return {**out, "class_names": _class_names(train, target)}


def partition_arrays(partitioner: Any, target: str = "", features: Chosen = None) -> dict[str, Any]:
    """What `Dataset.from_arrays` needs of a partitioner of flwr-datasets."""
    fits = hasattr(partitioner, "load_partition") and hasattr(partitioner, "num_partitions")
    rule(fits, f"a {type(partitioner).__name__}", "this is not a partitioner", "give one of flwr_datasets.partitioner")
    parts = {i: partitioner.load_partition(i) for i in range(int(partitioner.num_partitions))}
    parts = {i: part for i, part in parts.items() if len(part)}
    rule(bool(parts), "the partitioner", "all its partitions are empty", "assign a dataset to it first")
    first = next(iter(parts.values()))
    target, _, used = _chosen(first, target, "", features, owners=False)
    x = np.concatenate([_features(part, used) for part in parts.values()])
    y = np.concatenate([np.asarray(part[target]) for part in parts.values()])
    owner = np.repeat(list(parts), [len(part) for part in parts.values()])
    return {"x": x, "y": y, "client": owner, "class_names": _class_names(first, target)}


def _chosen(
    samples: Any, target: str, client: str, features: Chosen, *, owners: bool = True
) -> tuple[str, str, tuple[str, ...]]:
    """The columns of labels, of owners (or "") and of samples."""
    names = list(samples.column_names)
    target = named_column("target", target, names, TARGETS)
    rule(bool(target), f"columns {', '.join(names)}", "none of them is named as the labels", "give target='COLUMN'")
    client = named_column("client", client, [n for n in names if n != target], CLIENTS) if owners else ""
    roles = {client: "the client", target: "the target"}
    used = chosen_features(features, names, roles)
    return target, client, used or _sample_columns(samples, [n for n in names if n not in roles])


def _class_names(samples: Any, target: str) -> tuple[str, ...] | None:
    """Hugging Face keeps the names of classes beside their numbers."""
    known = getattr(getattr(samples, "features", {}).get(target), "names", None)
    return tuple(known) if known else None


def _sample_columns(samples: Any, names: Sequence[str]) -> tuple[str, ...]:
    """The column that holds images or lists; else all that hold numbers."""
    first = samples[0]
    wide = [n for n in names if np.asarray(first[n]).ndim > 0]
    plain = [n for n in names if np.asarray(first[n]).ndim == 0 and np.asarray(first[n]).dtype.kind in "biuf"]
    rule(len(wide) < 2, f"columns {', '.join(wide)}", "each of them could be the sample", "give features='COLUMN'")
    found = tuple(wide or plain)
    rule(bool(found), f"columns {', '.join(names)}", "none of them holds numbers", "give features='COLUMN'")
    return found


def _features(samples: Any, names: Sequence[str]) -> Array:
    for n in names:
        if n not in samples.column_names:
            raise UnknownName.among("column", n, samples.column_names)
    columns = [_stacked(n, list(samples[n])) for n in names]
    return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
