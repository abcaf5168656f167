"""The metrics of a run in the store, by name: what `fedcohort compare` and the reports read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.stats import js_divergence
from fedcohort.errors import BadParameter, ConfigError, UnknownName
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.contents import CONTENTS
from fedcohort.experiment.metrics import run_metrics as metrics
from fedcohort.experiment.metrics.run_metrics import NOT_REACHED
from fedcohort.experiment.runs import build_world_for, read
from fedcohort.experiment.store import client_accuracy
from fedcohort.protocols import World
from fedcohort.registry.lookup import make_task_spec, make_world_spec
from fedcohort.registry.own_objects import GIVEN, names_module
from fedcohort.rounds.history import History
from fedcohort.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedcohort.worlds.built_world import BuiltWorld

Value = float | None


@dataclass
class RunRecord:
    """A run to be measured."""

    config: RunConfig
    history: History
    clients: NDArray[np.float64] | None = None  # accuracy of the final model on every client
    target: float | None = None
    target_metric: str = "accuracy"  # the column that has to reach the target
    folder: Path | None = None  # where the run is, for what only its journal knows
    contents: Mapping[str, str] = field(default_factory=dict)  # digests of what its texts only name
    started: float = 0.0  # when, in seconds since 1970
    finished: bool = True

    @cached_property
    def world(self) -> BuiltWorld:
        """The world the run took place in, built again: what an oracle knows. Nothing is imported for it."""
        for text in (self.config.world, self.config.task):
            if names_module(text) or text.startswith(GIVEN):
                raise ConfigError(f"{text}", "reports do not import what a run folder names", "look at other metrics")
        return build_world_for(make_world_spec(self.config.world), make_task_spec(self.config.task), self.config.seed)

    def total(self, column: str) -> float:
        """Sum of a column over rounds."""
        return float(np.nansum(self.history.column(column)))

    def reached(self) -> metrics.Reached | None:
        """When the target was reached."""
        if self.target is None:
            return None
        return metrics.reached(self.history.column(self.target_metric), self.target, self.history.clock)

    def participation(self) -> metrics.Participation:
        """How evenly clients were asked."""
        return metrics.participation(self.history.participation())

    def regret(self, reward: NDArray[np.float64]) -> Value:
        """Final regret per client asked, against the best that were available."""
        clock = self.history.clock
        starts = np.r_[0.0, clock[:-1]]
        there = [self.world.available(t, float(s)) for t, s in enumerate(starts)]
        found = metrics.regret(reward, self.history.cohorts, there)
        return float(found[-1]) if found.size else None


def record(folder: Path) -> RunRecord:
    """A run folder to be measured."""
    found = read(folder)
    return placed(RunRecord(found.config, found.history, client_accuracy(folder)), folder)


def placed(made: RunRecord, folder: Path) -> RunRecord:
    """The same, with what the folder tells: whether and when it was run, and on which files, modules and objects."""
    files = RunFolder(folder)
    first = files.versions if files.versions.exists() else files.journal  # the first is written at the start only
    contents = files.reader().header.get(CONTENTS, {})
    return replace(made, folder=folder, contents=contents, started=first.stat().st_mtime, finished=files.finished)


def correct_labels(world: World) -> NDArray[np.float64]:
    """Oracle: the share of correct labels of every client; 0 where it owns nothing."""
    part = world.train
    owner = np.repeat(np.arange(part.sizes.size), part.sizes)
    right = np.bincount(owner, weights=(part.label == part.clean).astype(np.float64), minlength=part.sizes.size)
    return np.asarray(right / np.maximum(part.sizes, 1), np.float64)


def evenness(world: World) -> NDArray[np.float64]:
    """Oracle: 1 - Jensen-Shannon divergence between a client's true label mix and everybody's; 0 without samples."""
    part = world.train
    owner = np.repeat(np.arange(part.sizes.size), part.sizes)
    cells = np.bincount(owner * world.classes + part.clean, minlength=part.sizes.size * world.classes)
    table = cells.reshape(part.sizes.size, world.classes).astype(np.float64)
    mix, whole = table / np.maximum(part.sizes, 1)[:, None], table.sum(axis=0) / max(table.sum(), 1.0)
    return np.where(part.sizes > 0, 1.0 - js_divergence(mix, whole[None, :]), 0.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by name: what it is, whether more is better, and whether it needs a target."""

    name: str
    about: str
    better: int  # +1: higher, -1: lower
    compute: Callable[[RunRecord], Value]
    needs_target: bool = False
    missing: str = "-"  # how a value that is not there is written


def _of(record: Any, name: str) -> Value:
    found = None if record is None else getattr(record, name)
    return None if found is None else float(found)


def _terminal(s: RunRecord, column: str = "accuracy") -> Value:
    return metrics.terminal(s.history.column(column), metrics.terminal_rounds(s.config.rounds))


_ALL = (
    Metric("terminal", "test accuracy, mean of the last 50 rounds (a fifth of a shorter run)", 1, _terminal),
    Metric("best", "highest test accuracy (peeks)", 1, lambda s: _of(metrics.best(s.history.accuracy), "value")),
    Metric(
        "early_stop",
        "test accuracy at the best validation round",
        1,
        lambda s: _of(metrics.early_stop(s.history.column("score"), s.history.accuracy), "value"),
    ),
    Metric("final", "test accuracy of the last model", 1, lambda s: metrics.final(s.history.accuracy)),
    Metric(
        "drop", "stability drop: peak minus final accuracy", -1, lambda s: metrics.stability_drop(s.history.accuracy)
    ),
    Metric(
        "rounds_to_target",
        "rounds until the target accuracy",
        -1,
        lambda s: _of(s.reached(), "rounds"),
        True,
        NOT_REACHED,
    ),
    Metric(
        "time_to_target",
        "virtual seconds until the target",
        -1,
        lambda s: _of(s.reached(), "seconds"),
        True,
        NOT_REACHED,
    ),
    Metric("seconds", "virtual seconds of the whole run", -1, lambda s: metrics.final(s.history.clock)),
    Metric("loss", "test loss, mean of the last rounds", -1, lambda s: _terminal(s, "loss")),
    Metric("macro_f1", "mean F1 over classes, last rounds", 1, lambda s: _terminal(s, "macro_f1")),
    Metric("f1", "F1 of class 1 (two classes), 0 / 0 counts 0, last rounds", 1, lambda s: _terminal(s, "f1")),
    Metric("bytes_down", "bytes sent to clients for training", -1, lambda s: s.total("bytes_down")),
    Metric("bytes_up", "bytes of updates", -1, lambda s: s.total("bytes_up")),
    Metric("bytes_probes", "bytes of probes, both ways", -1, lambda s: s.total("bytes_probes")),
    Metric("bytes_signals", "bytes of signals sent with the updates", -1, lambda s: s.total("bytes_signals")),
    Metric(
        "bytes",
        "all bytes",
        -1,
        lambda s: sum(s.total(f"bytes_{c}") for c in ("down", "up", "probes", "signals")),
    ),
    Metric("jain", "Jain's index of how often clients were asked", 1, lambda s: s.participation().jain),
    Metric("coverage", "share of clients asked at least once", 1, lambda s: s.participation().coverage),
    Metric(
        "never_used", "share of clients asked repeatedly but never used", -1, lambda s: s.history.usage().never_share
    ),
    Metric(
        "max_min",
        "most often / least often asked (-: somebody was not)",
        -1,
        lambda s: s.participation().ratio,
    ),
    Metric("client_mean", "mean accuracy over clients", 1, lambda s: _spread(s, "mean")),
    Metric("client_variance", "variance of accuracy over clients", -1, lambda s: _spread(s, "variance")),
    Metric("client_worst", "mean accuracy of the worst tenth of clients", 1, lambda s: _spread(s, "worst_tenth")),
    Metric(
        "regret_noise",
        "regret in correct labels against the cleanest",
        -1,
        lambda s: _regret(s, correct_labels),
    ),
    Metric("regret_skew", "regret in evenness against the least skewed", -1, lambda s: _regret(s, evenness)),
)
METRICS: dict[str, Metric] = {m.name: m for m in _ALL}
TIMES = ("time_to_target", "seconds")  # those in virtual seconds


def _regret(s: RunRecord, reward: Callable[[World], NDArray[np.float64]]) -> Value:
    try:
        return s.regret(reward(s.world))
    except ConfigError:  # a world of somebody's own, which only a run imports
        return None


def _spread(s: RunRecord, name: str) -> Value:
    return None if s.clients is None else _of(metrics.spread(s.clients), name)


def check_goal(target: float | None) -> None:
    """Refuse a target that no accuracy can reach."""
    if target is not None and not 0 < target <= 1:
        raise BadParameter(f"target = {target:g}", "an accuracy lies between 0 and 1", "use e.g. 0.8")


def metric(name: str) -> Metric:
    """The metric of this name; unknown ones are answered with the nearest."""
    if name not in METRICS:
        raise UnknownName.among("metric", name, METRICS)
    return METRICS[name]


def measure(what: RunRecord, names: tuple[str, ...] = ()) -> dict[str, Value]:
    """Some metrics of a run (all that need no target, where none are named). None: not reached, or not measured."""
    chosen = names or tuple(m.name for m in _ALL if what.target is not None or not m.needs_target)
    return {name: metric(name).compute(what) for name in chosen}
