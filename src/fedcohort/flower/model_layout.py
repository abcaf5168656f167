"""A Flower model (named arrays) as our flat model, and back: parameters, float buffers, integer counters.

Entries of the first model that are infinite (an attention mask has -inf) are constants: a client sends them back as
they are, and nothing is computed with them. The flat model and wrapped strategies have 0 there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedcohort.engines.trained_model import STATISTICS
from fedcohort.errors import check
from fedcohort.flower.wire import Refused, read_array
from fedcohort.types import Array as AnyArray
from fedcohort.types import Model


@dataclass(frozen=True)
class ModelLayout:
    """Names, shapes and types of the arrays of a model, in order."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype[np.generic]]
    last: tuple[str, ...]  # the arrays of the last layer
    constants: Mapping[str, AnyArray] = field(default_factory=dict)  # arrays with infinite entries, as they are sent

    @classmethod
    def of(cls, arrays: ArrayRecord, last_layer: tuple[str, ...] | None = None) -> ModelLayout:
        """The layout of the initial arrays; they come from the server itself and are trusted."""
        found = {str(k): a.numpy() for k, a in arrays.items()}
        check(bool(found), "initial_arrays", "the model has no arrays", "pass the initial model's parameters")
        for key, value in found.items():
            check(
                value.dtype.kind in "fiu",
                f"array {key!r} of {value.dtype}",
                "models consist of numbers",
                "convert it",
            )
        constants = {k: v for k, v in found.items() if v.dtype.kind == "f" and _infinite(v).any()}
        if last_layer is None:
            last_layer = _guess(found, constants)
        for key in last_layer:
            check(key in found, f"last_layer {key!r}", "the model has no such array", f"use some of {list(found)}")
        shapes, dtypes = {k: v.shape for k, v in found.items()}, {k: v.dtype for k, v in found.items()}
        return cls(shapes, dtypes, tuple(last_layer), constants)

    @property
    def params(self) -> list[str]:
        """Trainable float arrays."""
        return [k for k, d in self.dtypes.items() if d.kind == "f" and not k.endswith(STATISTICS)]

    @property
    def buffers(self) -> list[str]:
        """Float statistics that no gradient changes."""
        return [k for k, d in self.dtypes.items() if d.kind == "f" and k.endswith(STATISTICS)]

    @property
    def counters(self) -> list[str]:
        """Integer arrays."""
        return [k for k, d in self.dtypes.items() if d.kind != "f"]

    @property
    def last_layer(self) -> NDArray[np.bool_]:
        """Which parameters belong to the last layer."""
        parts = [np.full(math.prod(self.shapes[k]), k in self.last) for k in self.params]
        return np.concatenate(parts) if parts else np.zeros(0, np.bool_)

    @property
    def places(self) -> list[list[Any]]:
        """Name, shape and type of every array, in their order, as JSON keeps them."""
        return [[name, list(shape), self.dtypes[name].str] for name, shape in self.shapes.items()]

    @property
    def marks(self) -> dict[str, str]:
        """A digest for every array with constants: where they are, and their signs."""
        found = {k: np.where(_infinite(v), np.sign(v), 0).astype(np.int8) for k, v in self.constants.items()}
        return {k: hashlib.sha256(v.tobytes()).hexdigest()[:16] for k, v in found.items()}

    def without_constants(self, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """The arrays with 0 where constants are, to compute with."""
        zero = {k: np.where(_infinite(v), v.dtype.type(0), arrays[k]) for k, v in self.constants.items() if k in arrays}
        return {**arrays, **zero}

    def with_constants(self, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Inverse of :meth:`without_constants`, to send."""
        whole = {k: np.where(_infinite(v), v, arrays[k]) for k, v in self.constants.items() if k in arrays}
        return {**arrays, **whole}

    def read(self, record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
        """A client's arrays, each checked against this layout and cast to its type; raises Refused."""
        if set(record) != set(self.shapes):
            odd = sorted(set(map(str, record)) ^ set(self.shapes))[0]
            raise Refused(f"array-{'missing' if odd in self.shapes else 'unknown'}:{odd}")
        out: dict[str, NDArray[np.generic]] = {}
        for key, shape in self.shapes.items():
            value = read_array(record[key], key, shape=shape)
            if (value.dtype.kind == "f") != (self.dtypes[key].kind == "f"):
                raise Refused(f"array-dtype:{key}")
            with np.errstate(over="ignore", invalid="ignore"):
                out[key] = value.astype(self.dtypes[key], copy=False)
        for key, sent in self.constants.items():
            if (_infinite(sent) & (out[key] != sent)).any():
                raise Refused(f"constant-changed:{key}")
        return out

    def model(self, arrays: Mapping[str, AnyArray]) -> Model:
        """Named arrays as a flat model, with 0 for constants."""
        arrays = self.without_constants(arrays)
        with np.errstate(over="ignore"):
            return Model(
                _flat(arrays, self.params, np.float32),
                _flat(arrays, self.buffers, np.float32),
                _flat(arrays, self.counters, np.int64),
            )

    def named(self, model: Model) -> dict[str, NDArray[np.generic]]:
        """A flat model as named arrays, with the constants."""
        out: dict[str, NDArray[np.generic]] = {}
        for keys, flat in ((self.params, model.params), (self.buffers, model.buffers), (self.counters, model.counters)):
            at = 0
            for key in keys:
                size = math.prod(self.shapes[key])
                out[key] = flat[at : at + size].reshape(self.shapes[key]).astype(self.dtypes[key])
                at += size
        return self.with_constants({key: out[key] for key in self.shapes})


def _infinite(array: AnyArray) -> NDArray[np.bool_]:
    """Where an array is infinite in float32, as the flat model is: -1e300 is a mask, too."""
    with np.errstate(over="ignore"):
        found: NDArray[np.bool_] = np.isinf(array.astype(np.float32))
    return found


def refuse_nan(arrays: ArrayRecord) -> None:
    """The first model must be numbers: NaN is equal to nothing, so replies with it look broken."""
    for key, array in arrays.items():
        value = array.numpy()
        check(
            value.dtype.kind != "f" or not np.isnan(value).any(),
            f"array {str(key)!r} of the first model",
            "it has entries that are not a number, and so every reply would be refused",
            "train or initialise it, or leave it out (persistent=False)",
        )


def record(arrays: Mapping[str, AnyArray]) -> ArrayRecord:
    """Named NumPy arrays as a Flower record."""
    return ArrayRecord({k: Array(np.ascontiguousarray(v).reshape(np.shape(v))) for k, v in arrays.items()})


def _flat(arrays: Mapping[str, AnyArray], keys: list[str], dtype: type[np.generic]) -> NDArray[Any]:
    parts = [np.asarray(arrays[k]).reshape(-1).astype(dtype) for k in keys]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _guess(arrays: Mapping[str, AnyArray], constants: Mapping[str, AnyArray]) -> tuple[str, ...]:
    """The last matrix of the model without constants, and what comes after it (its bias)."""
    keys = list(arrays)
    matrices = [i for i, k in enumerate(keys) if np.ndim(arrays[k]) >= 2 and k not in constants]
    return tuple(keys[matrices[-1] :]) if matrices else tuple(keys[-1:])
