"""Which engine trains this model, and where: the fastest that can, and a line in the log that says which and why."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass, replace
from typing import Any

from fedcohort.engines.image_moves import check_images
from fedcohort.engines.interface import ENGINES, ClientData, Engine
from fedcohort.engines.networks import Network
from fedcohort.engines.recipe import Modeled, network_of, recipe_of
from fedcohort.errors import BadParameter, MissingExtra, TrainingError, UnknownName

KINDS = ("auto", *ENGINES)
ON_DEVICES = ("torch_reference", "torch_vmap")

_log = logging.getLogger("fedcohort.engine")


@dataclass(frozen=True, slots=True)
class Where:
    """On what an engine runs."""

    workers: int = 0  # threads or processes; 0: one per processor
    device: str = "auto"  # of :data:`~fedcohort.engines.interface.DEVICES`
    precision: str = "float32"  # of forward passes, on a device

    @property
    def asked(self) -> bool:
        """Whether it names something that only engines with a device have."""
        return self.device not in ("auto", "cpu") or self.precision != "float32"


def choose(
    model: Modeled,
    data: ClientData,
    kind: str = "auto",
    workers: int = 0,
    *,
    device: str = "auto",
    precision: str = "float32",
) -> Engine:
    """An engine for this `model` (a network, a function that makes a torch module, or a recipe) on the `data`.

    `kind` is the name of an engine. "auto" takes `fused` on the CPU for networks, and for modules that can be
    translated to one; else `torch_vmap` if there is a GPU, else `torch_workers`. A `device` by name other than the CPU
    takes `torch_vmap` there. "ray" spreads what "auto" would take over the cluster of RAY_ADDRESS. An engine that
    cannot take the model raises TrainingError with the layer's name. `workers=0` means one per processor.

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
    where = Where(workers, device, precision)
    if device != "auto":
        from fedcohort.engines.torch_device import known

        known(device)
    if kind not in ("auto", "ray", *ON_DEVICES) and where.asked:
        value = f"device = {device!r}, precision = {precision!r} with engine {kind}"
        raise BadParameter(value, "it computes on the CPU in float32", f"use engine = {' or '.join(ON_DEVICES)}")
    if recipe_of(model).moves is not None:
        check_images(data.x.shape)
    if not (isinstance(model, Network) or (network_of(model) is not None and recipe_of(model).native)):
        from fedcohort.engines.torch_checks import dry_run

        dry_run(model, data)
    if kind == "auto":
        return _auto(model, data, where)
    engine = _make(kind, model, data, where)
    _log.info("engine: %s%s (as requested)", kind, _place(engine))
    return engine


def _place(engine: Any) -> str:
    return f" on {engine.device}" if engine.name in ON_DEVICES else ""


def _auto(model: Modeled, data: ClientData, where: Where) -> Engine:
    if where.asked:
        engine = _make("torch_vmap", model, data, where)
        _log.info("engine: torch_vmap%s (the device or precision was asked for)", _place(engine))
        return engine
    try:
        network, how = _as_network(model, data)
        engine = _make("fused", replace(recipe_of(model), model=network), data, where)
    except (TrainingError, MissingExtra) as no:
        reason = f"fused cannot train it: {no.value}, {no.rule}"
    else:
        _log.info("engine: fused (%s)", how)
        return engine
    try:
        gpu = where.device == "auto" and _there_is_a_gpu()
        engine = _make("torch_vmap" if gpu else "torch_workers", model, data, where)
    except MissingExtra:
        if network_of(model) is None or not recipe_of(model).plain:
            raise
        engine = _make("numpy", model, data, where)
        _log.info("engine: numpy (%s; torch is not installed)", reason)
        return engine
    _log.info("engine: %s%s (%s)", engine.name, _place(engine), reason)
    return engine


def _as_network(model: Modeled, data: ClientData) -> tuple[Network, str]:
    """The model as a network, and in words why it is one; TrainingError where it is none."""
    recipe = recipe_of(model)
    if not recipe.native or data.target is not None:
        own = [n for n in ("loss", "optimiser", "augmentation") if getattr(recipe, n) is not None] or ["target"]
        raise TrainingError(f"its own {' and '.join(own)}", "that is for the torch engines", "use torch_workers")
    if isinstance(recipe.model, Network):
        return recipe.model, "every layer is one that it knows"
    from fedcohort.engines.module_translation import translate
    from fedcohort.engines.torch_modules import module_of

    return translate(
        module_of(recipe.model), tuple(data.x.shape[1:])
    ), "the module was translated: every layer is one that it knows"


def _there_is_a_gpu() -> bool:
    from fedcohort.engines.torch_device import resolve

    return resolve("auto") != "cpu"


def _make(kind: str, model: Modeled, data: ClientData, where: Where) -> Engine:
    if kind == "fused":
        if importlib.util.find_spec("numba") is None:
            raise MissingExtra("the fused engine", "needs numba", "install it with: pip install numba")
        from fedcohort.engines.fused import FusedEngine

        return FusedEngine(_network(kind, model, data), data, where.workers, recipe_of(model).moves)
    if kind == "numpy":
        from fedcohort.engines.numpy_engine import NumpyEngine

        if recipe_of(model).moves is not None:
            raise TrainingError("engine numpy", "it cannot augment images", "use fused")
        return NumpyEngine(_network(kind, model, data), data)
    if kind == "ray":
        from fedcohort.engines.ray_engine import RayEngine

        return RayEngine(model, data, _auto(model, data, replace(where, workers=0)), choose, where.workers)
    if kind == "torch_reference":
        from fedcohort.engines.torch_reference import ReferenceEngine

        return ReferenceEngine(model, data, where.device, where.precision)
    if kind == "torch_vmap":
        from fedcohort.engines.torch_vmap import VmapEngine

        return VmapEngine(model, data, where.device, where.precision)
    from fedcohort.engines.torch_workers.workers_engine import WorkersEngine

    return WorkersEngine(model, data, where.workers)


def _network(kind: str, model: Modeled, data: ClientData) -> Network:
    """The network that an engine without torch can train."""
    if isinstance(model, Network):
        return model
    try:
        return _as_network(model, data)[0]
    except TrainingError as no:
        rule = f"it cannot train this torch model ({no.value}: {no.rule})"
        raise TrainingError(f"engine {kind}", rule, "use torch_workers, torch_vmap or torch_reference") from None
