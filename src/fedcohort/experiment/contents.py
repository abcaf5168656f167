"""What the texts of a run only name, as digests: files and modules, and tasks and worlds that were given as objects.

A run folder keeps these digests. So a comparison can tell runs apart whose texts are the same, and a run that was
started with objects is continued with the same ones only.

Of a task that was given, the digest covers its samples, labels and owners, the plan of local training, the network with
the shapes of its tensors, and the names of functions (a loss, a metric, a function that makes a module). It does not
cover what such a function computes, the first weights of a module, or the inside of a class that is not a dataclass.
Selectors and methods that were given as objects have none: they may have learned since.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.experiment import texts
from fedcohort.experiment.config import RunConfig
from fedcohort.registry.own_objects import GIVEN

CONTENTS = "contents"  # the key in a journal's header
_NOT_DATA = ("about", "root")  # fields that change no result


def contents(config: RunConfig, given: Mapping[str, Any], built: Any) -> dict[str, str]:
    """Digests by kind (selector, method, world, task), of those whose text does not say everything itself.

    `given` are tasks and worlds that were given as objects; `built` is what is seen of the task once it is bound.

    >>> from fedcohort.tasks.quadratic import QuadraticSpec
    >>> contents(RunConfig(), {}, None)
    {}
    >>> list(contents(RunConfig(task="given:mine"), {"task": QuadraticSpec()}, None))
    ['task']
    """
    found = {kind: texts.content(kind, getattr(config, kind)) for kind in texts.KINDS}
    if config.task.startswith(GIVEN) and given.get("task") is not None:
        found["task"] = digest_of([_samples(given["task"]), given["task"], built])
    if config.world.startswith(GIVEN) and given.get("world") is not None:
        found["world"] = digest_of(texts.resolved_world(given["world"]))
    return {kind: digest for kind, digest in found.items() if digest}


def digest_of(value: Any) -> str:
    """sha256 of data: arrays, numbers, texts, containers and dataclasses; of anything else only its kind.

    >>> digest_of({"a": np.arange(3), "b": 1.0}) == digest_of({"a": np.array([0, 1, 2]), "b": 1.0})
    True
    """
    found = hashlib.sha256()
    for part in _parts(value):
        found.update(part)
    return found.hexdigest()


def _samples(task: Any) -> list[Any]:
    """What every task shows of its pool."""
    names = ("labels", "owners", "activities")
    return [getattr(task, name)() for name in names if callable(getattr(task, name, None))]


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    """The bytes that stand for a value, each part with its length, so that no two values share them."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, Path, np.generic)):
        yield _block(repr(value).encode())
    elif isinstance(value, np.ndarray):
        yield from _array(value)
    elif isinstance(value, (Mapping, list, tuple, set, frozenset)):
        yield from _several(kind, value)
    elif isinstance(value, partial):
        yield from _several(kind, [value.func, value.args, value.keywords])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _several(kind, _fields(value))
    elif callable(getattr(value, "state_dict", None)) and not isinstance(value, type):  # a torch module: its layers
        yield _block(f"{kind} {value!r}".encode())
    else:
        yield _block(f"{kind} {getattr(value, '__module__', '')} {getattr(value, '__qualname__', '')}".encode())


def _several(kind: str, values: Any) -> Iterator[bytes | memoryview]:
    yield _block(f"{kind} of {len(values)}".encode())
    if isinstance(values, (set, frozenset)):
        values = sorted(values, key=repr)
    for each in values.items() if isinstance(values, Mapping) else values:
        yield from _parts(each)


def _fields(value: Any) -> dict[str, Any]:
    """What a dataclass holds, also beside its fields; what it has computed since is left out."""
    own = vars(value) if hasattr(value, "__dict__") else {}
    names = dict.fromkeys([*(f.name for f in dataclasses.fields(value)), *own])
    made = (n for n in names if isinstance(getattr(type(value), n, None), cached_property))
    aside = {*_NOT_DATA, *made}
    return {name: getattr(value, name) for name in sorted(names) if name not in aside}


def _array(value: np.ndarray[Any, Any]) -> Iterator[bytes | memoryview]:
    yield _block(f"{value.dtype.str} {value.shape}".encode())
    if value.dtype.hasobject:
        yield _block(json.dumps(value.tolist(), default=repr).encode())
    elif value.nbytes:
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data  # without a copy


def _block(data: bytes) -> bytes:
    return f"{len(data)}:".encode() + data
