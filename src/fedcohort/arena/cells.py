"""One cell of the arena: one selector on one problem with one seed, run and scored."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedcohort.arena import run_scores as scoring
from fedcohort.arena.oracle import ORACLE, REVISION, Oracle
from fedcohort.arena.problem_set import Problem, problem, run_digest
from fedcohort.arena.run_scores import RunScores
from fedcohort.data.dataset import data_root
from fedcohort.errors import BadParameter
from fedcohort.experiment import texts
from fedcohort.experiment.runs import build_world_for, versions
from fedcohort.experiment.sweep_worker import one_line
from fedcohort.protocols import Selector
from fedcohort.registry.lookup import make_method, make_selector, make_task_spec, make_world_spec
from fedcohort.registry.own_objects import names_module
from fedcohort.signals import privacy
from fedcohort.sim.simulation import Simulation
from fedcohort.tasks.spec import TaskSpec
from fedcohort.types import Model
from fedcohort.worlds.built_world import BuiltWorld

Factory = Callable[[BuiltWorld], Selector]
_TIMED = ("probe", "select", "observe")


@dataclass(frozen=True)
class Entry:
    """A competitor: its name on the board, and how to make a fresh one for a run."""

    name: str
    make: Factory
    identity: Any = None  # what stands for it in the digest of a run; None: its resolved text

    def digest(self, on: Problem, seed: int) -> str:
        """The digest of its run on a problem."""
        return run_digest(on, self.name, seed, self.identity)


def entry(given: str | type[Any] | Selector, name: str = "") -> Entry:
    """A competitor from a text of the catalogue, "module:Class(key=value)", a class, or an object.

    An object is copied for every run, so it must not have learned anything yet.

    >>> entry("oort(explore=0.5)").name
    'oort(explore=0.5)'
    """
    if isinstance(given, str):
        return _from_text(given)
    if isinstance(given, type):
        made: Callable[[], Any] = given
        label = name or given.__name__
    else:
        import copy

        state = copy.deepcopy(given)

        def made() -> Any:
            return copy.deepcopy(state)

        label = name or type(given).__name__
    _check_selector(label, made())
    return Entry(label, lambda world: made(), ["own", label])


def _from_text(text: str) -> Entry:
    if text == ORACLE:
        return Entry(ORACLE, Oracle, [ORACLE, REVISION])
    if not names_module(text):
        canonical = texts.canonical("selector", text)
        make_selector(canonical)  # every mistake in it shows here
        return Entry(canonical, lambda world: make_selector(canonical))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    make_selector(text)
    return Entry(text, lambda world: make_selector(text), ["own", text])


def _check_selector(label: str, made: Any) -> None:
    if not isinstance(made, Selector):
        lacking = [n for n in ("needs", "select", "observe", "state_dict", "load_state_dict") if not hasattr(made, n)]
        raise BadParameter(
            f"{label}",
            f"this is not a selector: it lacks {', '.join(lacking)}",
            "inherit from fedcohort.StatefulSelector",
        )


def play(who: Entry, on: Problem, seed: int) -> dict[str, Any]:
    """Run one cell; what goes wrong comes back in the row as `error`, and never stops the others."""
    row: dict[str, Any] = {"selector": who.name, "problem": on.name, "seed": seed, "digest": who.digest(on, seed)}
    began = time.perf_counter()
    try:
        found, curve, needs = _score(who, on, seed)
        row |= {"scores": found.data(), "curve": curve, "privacy": privacy(needs), "needs": sorted(needs)}
    except Exception as error:  # a competitor's code may raise anything
        row["error"] = one_line(error)
    return {**row, "wall": round(time.perf_counter() - began, 3), "versions": _versions()}


def play_by_name(selector: str, on: str, seed: int, version: str) -> dict[str, Any]:
    """As :func:`play`, for another process."""
    return play(entry(selector), problem(on, version), seed)


def _score(who: Entry, on: Problem, seed: int) -> tuple[RunScores, list[list[float]], frozenset[str]]:
    simulation, spent = _built(who, on, seed)
    needs = simulation.session.selector.needs
    model = simulation.model
    clock, accuracy = [0.0], [float("nan")]
    traffic, rounds = 0.0, 0
    for row in simulation.steps():
        if row["clock"] > on.horizon:
            break
        model, rounds = simulation.model, rounds + 1
        clock.append(float(row["clock"]))
        accuracy.append(float(row.get("accuracy", np.nan)))
        traffic += sum(float(row.get(f"bytes_{c}", 0.0)) for c in ("down", "up", "probes", "signals"))
    own = 1000.0 * spent[0] / simulation.session.index if simulation.session.index else None
    simulation.session.close()
    if rounds and np.isnan(accuracy[-1]):
        accuracy[-1] = float(simulation.task.evaluate(model, "test")["accuracy"])
    found = RunScores(
        anytime=scoring.anytime(clock, accuracy, on.horizon),
        final=scoring.final_accuracy(clock, accuracy, on.horizon),
        time_to_target=scoring.time_to_target(clock, accuracy, on.horizon, on.target),
        worst_tenth=_worst(simulation, model),
        traffic=traffic,
        own_ms=own,
        rounds=rounds,
    )
    return found, scoring.thinned(clock, accuracy, on.horizon), needs


def _worst(simulation: Simulation, model: Model) -> float | None:
    return scoring.worst_tenth(simulation.task.client_accuracy(model))


@lru_cache(maxsize=1)
def _task_spec(text: str, root: str) -> TaskSpec:
    """The task of a problem; its data are prepared once for all runs that follow each other on it."""
    return make_task_spec(text)


def _built(who: Entry, on: Problem, seed: int) -> tuple[Simulation, list[float]]:
    """The simulation, and a list with the seconds that the selector itself has used so far."""
    config = on.config(seed=seed)
    spec = _task_spec(config.task, str(data_root()))
    world = build_world_for(make_world_spec(config.world), spec, seed)
    task = spec.bind(world, engine=config.engine, workers=1)
    selector, spent = who.make(world), [0.0]
    for name in _TIMED:
        if hasattr(selector, name):
            setattr(selector, name, _timed(getattr(selector, name), spent))
    return Simulation(selector, make_method(config.method), world, task, config), spent


def _timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args)
        finally:
            spent[0] += time.perf_counter() - began

    return call


def _versions() -> dict[str, str]:
    return {k: v for k, v in versions().items() if k in ("fedcohort", "python", "numpy", "numba", "machine", "cpu")}
