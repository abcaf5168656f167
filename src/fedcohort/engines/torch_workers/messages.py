"""What the torch_workers engine and its processes send each other: JSON and arrays, never pickled objects.

A message is the length of its bytes (8, big-endian) and an npz archive with a JSON text among its arrays. The samples
are not sent: all processes map the same memory. Nor are the updates, where `shared_buffers` has memory for them.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines import networks as models
from fedcohort.engines.interface import ClientData
from fedcohort.engines.layer_text import from_plain, to_plain
from fedcohort.engines.recipe import Modeled, Recipe
from fedcohort.engines.shared_buffers import write_rows
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Objective, Part, Plan, Updates

Arrays = dict[str, NDArray[Any]]


def send(stream: IO[bytes], text: Mapping[str, Any], arrays: Arrays) -> None:
    """Write one message."""
    buffer = io.BytesIO()
    words = np.frombuffer(json.dumps(text).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, __text__=words, **arrays)
    data = buffer.getvalue()
    stream.write(struct.pack(">Q", len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], Arrays]:
    """Read one message; EOFError if the other side is gone."""
    size = stream.read(8)
    data = stream.read(struct.unpack(">Q", size)[0]) if len(size) == 8 else b""
    if not data:
        raise EOFError("the other side closed the stream")
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    return json.loads(arrays.pop("__text__").tobytes()), arrays


def describe(model: Modeled) -> dict[str, Any] | None:
    """How another process can make this model: its layers, or an importable function and plain arguments."""
    if isinstance(model, models.Network):
        return {"network": to_plain(model)}
    if isinstance(model, Recipe):
        return None
    function = model.func if isinstance(model, functools.partial) else model
    args, options = (model.args, model.keywords) if isinstance(model, functools.partial) else ((), {})
    described = {
        "module": getattr(function, "__module__", "__main__"),
        "name": getattr(function, "__qualname__", "<lambda>"),
        "args": list(args),
        "options": dict(options),
    }
    if described["module"] == "__main__" or "<" in described["name"]:
        return None
    try:
        json.dumps(described)
    except TypeError:
        return None
    return described


def build(described: Mapping[str, Any]) -> models.Network | Callable[[], Any]:
    """Inverse of :func:`describe`."""
    if "network" in described:
        return from_plain(described["network"])
    found: Any = importlib.import_module(described["module"])
    for name in described["name"].split("."):
        found = getattr(found, name)
    return functools.partial(found, *described["args"], **described["options"])


class Shared:
    """Arrays that several processes map: files, in memory where the system has a folder for that."""

    def __init__(self, arrays: Arrays) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - made for this
        self._folder = tempfile.TemporaryDirectory(prefix="fedcohort-", dir=memory)
        self.path = self._folder.name
        for name, array in arrays.items():
            np.save(Path(self.path) / f"{name}.npy", array, allow_pickle=False)

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()


def attach(path: str) -> Arrays:
    """The arrays that another process shares, mapped read-only."""
    return {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in Path(path).glob("*.npy")}


_PART = [f.name for f in fields(Part)]


def data_arrays(data: ClientData) -> Arrays:
    """The arrays of all clients' data, under flat names."""
    both = {"train": data.train, "validation": data.validation}
    own = {} if data.target is None else {"target": data.target}
    return {"x": data.x, **own} | {f"{p}.{name}": getattr(part, name) for p, part in both.items() for name in _PART}


def data_of(arrays: Arrays, classes: int) -> ClientData:
    """Inverse of :func:`data_arrays`."""
    train, validation = (Part(*(arrays[f"{p}.{name}"] for name in _PART)) for p in ("train", "validation"))
    return ClientData(arrays["x"], train, validation, classes, arrays.get("target"))


def pack_plan(
    plan: Plan, model: Model, clients: Index, rows: Index, place: str | None = None
) -> tuple[dict[str, Any], Arrays]:
    """The instruction to train the clients at these rows of a cohort; `place` is shared memory for their updates."""
    m = clients.size
    text = {
        "batch_size": plan.batch_size, "momentum": plan.momentum, "weight_decay": plan.weight_decay,
        "optimiser": plan.optimiser, "objective": asdict(plan.objective), "prox": plan.prox, "seed": plan.seed,
        "round": plan.round, "measure": sorted(plan.measure),
        "reported": None if plan.reported is None else asdict(plan.reported), "place": place,
    }  # fmt: skip
    arrays: Arrays = {"params": np.asarray(model.params), "buffers": model.buffers, "counters": model.counters}
    arrays |= {"rows": rows, "clients": clients[rows], "epochs": plan.epochs_of(m)[rows], "lr": plan.lr_of(m)[rows]}
    if plan.correction is not None:
        arrays["correction"] = np.asarray(plan.correction if plan.correction.ndim == 1 else plan.correction[rows])
    for k in clients[rows].tolist():
        if plan.sample_weight and k in plan.sample_weight:
            arrays[f"weight.{k}"] = np.asarray(plan.sample_weight[k])
    return text, arrays


def unpack_plan(text: dict[str, Any], arrays: Arrays) -> tuple[Model, Index, Plan]:
    """Inverse of :func:`pack_plan`."""
    weights = {int(name[7:]): value for name, value in arrays.items() if name.startswith("weight.")}
    objectives = {n: None if text[n] is None else Objective(**text[n]) for n in ("objective", "reported")}
    text = {**text, **objectives, "measure": frozenset(text["measure"])}
    del text["place"]
    plan = Plan(
        epochs=arrays["epochs"], lr=arrays["lr"], correction=arrays.get("correction"),
        sample_weight=weights or None, **text,
    )  # fmt: skip
    return Model(arrays["params"], arrays["buffers"], arrays["counters"]), arrays["clients"], plan


def carry_out(engine: Any, text: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """Train as an instruction says. The updates go to the place it names if that is on this machine, else back."""
    said, found = pack_trained(engine.train(*unpack_plan(text, arrays)))
    if text["place"] is not None and write_rows(text["place"], arrays["rows"], found["delta"]):
        del found["delta"]
    return said, found


def pack_trained(out: Trained) -> tuple[dict[str, Any], Arrays]:
    """A worker's answer."""
    u = out.updates
    arrays: Arrays = {"delta": u.delta, "weight": u.weight, "steps": u.steps, "failed": out.failed}
    arrays |= {name: value for name, value in (("buffers", u.buffers), ("counters", u.counters)) if value is not None}
    arrays |= {f"extras.{name}": np.asarray(value) for name, value in u.extras.items()}
    arrays |= {f"signals.{name}": value for name, value in out.signals.items()}
    return {"reasons": {str(k): why for k, why in out.reasons.items()}}, arrays


def merge(
    clients: Index, answers: Iterable[tuple[Index, dict[str, Any], Arrays]], delta: NDArray[np.float32] | None = None
) -> Trained:
    """One answer from the workers' answers, rows in the order of the clients.

    `delta` is memory for the updates; answers without updates have written them there.
    """
    whole: Arrays = {} if delta is None else {"delta": delta}
    reasons: dict[int, str] = {}
    for rows, text, arrays in answers:
        reasons |= {int(k): why for k, why in text["reasons"].items()}
        for name, part in arrays.items():
            if name not in whole:
                whole[name] = np.empty((clients.size, *part.shape[1:]), part.dtype)
            whole[name][rows] = part
    extras, signals = (
        {name[len(kind) :]: value for name, value in whole.items() if name.startswith(kind)}
        for kind in ("extras.", "signals.")
    )
    updates = Updates(
        clients, whole["delta"], whole["weight"], whole["steps"], whole.get("buffers"), whole.get("counters"),
        extras,
    )  # fmt: skip
    return Trained(updates, signals, whole["failed"], reasons)
