"""What :class:`fedcohort.testing.MethodContract` checks with: bitwise comparisons, spoilt rows, read-only inputs."""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import StateMismatch
from fedcohort.protocols import Aggregated, Aggregation, Method, ServerEvaluator
from fedcohort.types import Arrays, Index, Model, Plan, Updates


def example_round(
    delta: ArrayLike,
    *,
    weight: ArrayLike = 1.0,
    steps: ArrayLike = 1,
    inclusion: float | None = None,
    server_evaluator: ServerEvaluator | None = None,
) -> tuple[Model, Updates, Aggregation]:
    """The arguments of `Method.aggregate` for a round to follow by hand: a model of zeros, and everybody returned.

    `delta` has one row per client; `weight` (samples), `steps` and `inclusion` (probability) hold for all of them or
    have one entry each.

    >>> model, updates, context = example_round([[1.0, 2.0], [3.0, 4.0]])
    >>> model.params, updates.clients, context.population
    (array([0., 0.], dtype=float32), array([0, 1]), 2)
    """
    rows = np.asarray(delta, np.float32)
    clients = np.arange(len(rows))
    samples = np.broadcast_to(np.asarray(weight, np.float64), clients.shape)
    taken = np.broadcast_to(np.asarray(steps, np.int64), clients.shape)
    context = Aggregation(
        index=0,
        plan=Plan(),
        population=clients.size,
        samples=samples.astype(np.int64),
        dispatched=clients,
        inclusion={} if inclusion is None else dict.fromkeys(clients.tolist(), inclusion),
        server_evaluator=server_evaluator,
    )
    return Model(np.zeros(rows.shape[1], np.float32)), Updates(clients, rows, samples, taken), context


def spoilt(name: str, value: float) -> Callable[[Updates, Index], Updates]:
    """A change that puts this value into some rows of one field of the updates."""

    def spoil(updates: Updates, rows: Index) -> Updates:
        array = np.array(getattr(updates, name))
        if array.ndim == 1:
            array[rows] = value
        else:
            array[rows, 0] = value
        changed: dict[str, Any] = {name: array}
        return replace(updates, **changed)

    return spoil


SPOILERS = (
    spoilt("delta", np.nan),
    spoilt("delta", np.inf),
    spoilt("delta", -np.inf),
    spoilt("weight", np.nan),
    spoilt("weight", np.inf),
    spoilt("weight", -1.0),
    spoilt("buffers", np.nan),
)


def check_form(made: Aggregated, model: Model, updates: Updates) -> None:
    """Types, shapes and finiteness of an answer."""
    new = made.model
    assert new.params.dtype == np.float32, f"parameters are {new.params.dtype}, not float32"
    assert new.params.shape == model.params.shape, "the number of parameters changed"
    assert np.isfinite(new.params).all(), "a parameter is not finite"
    assert new.buffers.shape == model.buffers.shape, "the number of buffers changed"
    assert np.isfinite(new.buffers).all(), "a buffer is not finite"
    assert new.counters.shape == model.counters.shape, "the number of counters changed"
    assert new.counters.dtype == np.int64, f"counters are {new.counters.dtype}, not int64"
    assert made.accepted.shape == (len(updates),), "acceptance has not one entry per row"
    assert made.accepted.dtype == np.bool_, f"acceptance is {made.accepted.dtype}, not bool"
    for key, value in made.info.items():
        assert np.isfinite(value), f"info[{key!r}] is {value}"


def same_bits(a: Any, b: Any) -> bool:
    """Same type, shape and bytes."""
    x, y = np.asarray(a), np.asarray(b)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def same_models(a: Model, b: Model, what: str) -> None:
    """Two models agree bit for bit."""
    for name in ("params", "buffers", "counters"):
        assert same_bits(getattr(a, name), getattr(b, name)), f"{what}: {name} differ"


def same_state(a: Mapping[str, NDArray[Any]], b: Mapping[str, NDArray[Any]], what: str) -> None:
    """Two mappings of arrays agree bit for bit."""
    assert set(a) == set(b), f"{what}: keys differ"
    for key in a:
        assert same_bits(a[key], b[key]), f"{what}: {key!r} differs"


def same_plan(a: Plan, b: Plan) -> None:
    """Two plans agree, arrays bit for bit."""
    for f in dataclasses.fields(Plan):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if f.name == "sample_weight" and x is not None and y is not None:
            same_state(x, y, "prepare, twice: sample_weight")
        elif isinstance(x, np.ndarray):
            assert same_bits(x, y), f"prepare, twice: {f.name} differs"
        else:
            assert x == y, f"prepare, twice: {f.name} is {x!r}, then {y!r}"


def copied(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Copies of all arrays."""
    return {key: np.array(value) for key, value in arrays.items()}


def through_a_file(arrays: Arrays) -> Arrays:
    """Written and read again, without pickle."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]  # savez has an option of another type
    file.seek(0)
    with np.load(file, allow_pickle=False) as found:
        return {key: found[key] for key in found.files}


def must_refuse(method: Method, arrays: Arrays) -> None:
    """Loading these arrays raises StateMismatch."""
    try:
        method.load_state_dict(arrays)
    except StateMismatch:
        return
    raise AssertionError(f"state with keys {sorted(arrays)} was not refused with StateMismatch")


def _frozen(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        array = array.copy()
        array.flags.writeable = False
    return array


def frozen_model(model: Model) -> Model:
    """A read-only copy."""
    return Model(_frozen(model.params), _frozen(model.buffers), _frozen(model.counters))


def frozen_updates(updates: Updates) -> Updates:
    """A read-only copy."""
    values = {f.name: _frozen(getattr(updates, f.name)) for f in dataclasses.fields(Updates)}
    return Updates(**{**values, "extras": {name: _frozen(value) for name, value in updates.extras.items()}})


def global_generators() -> tuple[bytes, int, int]:
    """The state of NumPy's and Python's global generators."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(state, dict)
    return state["state"]["key"].tobytes(), int(state["state"]["pos"]), hash(random.getstate())
