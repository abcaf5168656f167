"""Which engine trains this model: the fastest that can, and a line in the log that says which and why."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Any

from fedcohort.engines.interface import ENGINES, ClientData, Engine
from fedcohort.engines.networks import Network
from fedcohort.errors import MissingExtra, TrainingError, UnknownName

KINDS = ("auto", *ENGINES)

_log = logging.getLogger("fedcohort.engine")

Modeled = Network | Callable[[], Any]


def choose(model: Modeled, data: ClientData, kind: str = "auto", workers: int = 0) -> Engine:
    """An engine for this `model` (a network, or a function that makes a torch module) on the `data` of these clients.

    `kind` is the name of an engine; "auto" takes `fused` for networks that qualify, else `torch_workers`. An engine
    that cannot take the model raises TrainingError with the layer's name. `workers=0` means one per processor.

    >>> import numpy as np
    >>> from fedcohort.engines import mlp
    >>> from fedcohort.types import Part
    >>> part = Part(np.array([0, 2]), index=np.arange(2), label=np.array([0, 1]), clean=np.array([0, 1]))
    >>> engine = choose(mlp(3, classes=2), ClientData(np.zeros((2, 3), np.float32), part, part, classes=2), "numpy")
    >>> engine.name, engine.n_params
    ('numpy', 8)
    """
    if kind not in KINDS:
        raise UnknownName.among("engine", kind, KINDS)
    if kind == "auto":
        return _auto(model, data, workers)
    engine = _make(kind, model, data, workers)
    _log.info("engine: %s (as requested)", kind)
    return engine


def _auto(model: Modeled, data: ClientData, workers: int) -> Engine:
    try:
        engine = _make("fused", model, data, workers)
    except (TrainingError, MissingExtra) as no:
        reason = f"fused cannot train it: {no.value}, {no.rule}"
    else:
        _log.info("engine: fused (every layer is a convolution, ReLU, max-pool, flatten or linear layer)")
        return engine
    try:
        engine = _make("torch_workers", model, data, workers)
    except MissingExtra:
        if not isinstance(model, Network):
            raise
        engine = _make("numpy", model, data, workers)
        _log.info("engine: numpy (%s; torch is not installed)", reason)
        return engine
    _log.info("engine: torch_workers (%s)", reason)
    return engine


def _make(kind: str, model: Modeled, data: ClientData, workers: int) -> Engine:
    if kind == "fused":
        if importlib.util.find_spec("numba") is None:
            raise MissingExtra("the fused engine", "needs numba", "install it with: pip install numba")
        from fedcohort.engines.fused import FusedEngine

        return FusedEngine(_network(kind, model), data, workers)
    if kind == "numpy":
        from fedcohort.engines.numpy_engine import NumpyEngine

        return NumpyEngine(_network(kind, model), data)
    if kind == "torch_reference":
        from fedcohort.engines.torch_reference import ReferenceEngine

        return ReferenceEngine(model, data)
    from fedcohort.engines.torch_workers.workers_engine import WorkersEngine

    return WorkersEngine(model, data, workers)


def _network(kind: str, model: Modeled) -> Network:
    if isinstance(model, Network):
        return model
    name = getattr(model, "__name__", type(model).__name__)
    raise TrainingError(f"model {name}", f"the {kind} engine takes networks described as layers", "use torch_workers")
