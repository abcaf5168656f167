"""Distillation at the server: soft targets, Adam with a cosine schedule, and where the public data come from.

Used by FedDF and RHFL. Public data are a split of the server evaluator and never the test set.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice
from fedcohort.core.stats import softmax
from fedcohort.errors import BadParameter, UnknownName
from fedcohort.methods._parts.server_validation import gradient_of
from fedcohort.protocols import ServerEvaluator
from fedcohort.types import Index, Real

Double = NDArray[np.float64]
Source = Annotated[str, Choice("unlabelled", "noise", "none")]
Missing = Annotated[str, Choice("average", "raise")]
AGREED = 1e-10  # KL in nats below which two models agree up to rounding: Adam would only amplify noise
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run of Adam; with `cosine` the step size falls to zero along half a cosine."""

    lr: float = 1e-3
    steps: int = 500
    batch_size: int = 128
    clip: float = 5.0  # largest gradient norm
    cosine: bool = True
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


class Adam:
    """Adam on one flat vector, in double precision."""

    def __init__(self, schedule: Schedule, size: int) -> None:
        self.schedule, self.taken = schedule, 0
        self.first, self.second = np.zeros(size), np.zeros(size)

    def step(self, gradient: Real) -> Double:
        """The change of the parameters."""
        s = self.schedule
        g = gradient.astype(np.float64)
        norm = float(np.linalg.norm(g))
        if norm > s.clip:
            g *= s.clip / norm
        lr = s.lr * (0.5 * (1.0 + math.cos(math.pi * self.taken / max(s.steps, 1))) if s.cosine else 1.0)
        self.taken += 1
        self.first = s.beta1 * self.first + (1 - s.beta1) * g
        self.second = s.beta2 * self.second + (1 - s.beta2) * g * g
        mean = self.first / (1 - s.beta1**self.taken)
        spread = np.sqrt(self.second / (1 - s.beta2**self.taken))
        change: Double = -lr * mean / (spread + s.epsilon)
        return change


def distil(
    evaluator: ServerEvaluator,
    split: str,
    start: Real,
    target: Real,
    schedule: Schedule,
    rng: np.random.Generator,
    *,
    watch: Callable[[Double, int], bool] | None = None,
    buffers: Real | None = None,
) -> Double:
    """Move parameters towards soft targets (n, classes) on a split; stops where a gradient is not finite.

    `watch(params, steps)` ends it by returning True. `buffers` (b,) are the model's own; they stay as they are.
    """
    params, adam = start.astype(np.float64), Adam(schedule, start.size)
    batches = Batches(len(target), schedule.batch_size, rng)
    for step in range(1, schedule.steps + 1):
        rows = batches.next()
        gradient = gradient_of(evaluator, params.astype(np.float32), split, rows, target[rows], buffers)
        if not np.isfinite(gradient).all():
            log.warning("distillation stopped after %d steps: the gradient is not finite", step - 1)
            break
        params += adam.step(gradient)
        if watch is not None and watch(params, step):
            break
    return params


class Batches:
    """Rows without end: one permutation after another."""

    def __init__(self, n: int, size: int, rng: np.random.Generator) -> None:
        self.n, self.size, self.rng, self.at = n, min(size, n), rng, n
        self.order: Index = np.empty(0, np.int64)

    def next(self) -> Index:
        """The next batch; the last one of a permutation may be short."""
        if self.at >= self.n:
            self.order, self.at = self.rng.permutation(self.n).astype(np.int64), 0
        rows = self.order[self.at : self.at + self.size]
        self.at += self.size
        return rows


def probabilities(logits: Real) -> Double:
    """Softmax over classes in double precision."""
    return np.asarray(softmax(logits.astype(np.float64)), np.float64)


def divergence(target: Real, probability: Real) -> float:
    """Mean KL(target || probability) in nats over samples."""
    tiny = np.finfo(np.float64).tiny
    t, p = np.asarray(target, np.float64), np.maximum(np.asarray(probability, np.float64), tiny)
    ratio = np.log(np.maximum(t, tiny)) - np.log(p)
    return max(float((t * ratio).sum(axis=-1).mean()), 0.0)


class PublicData:
    """Which split of the evaluator to distil on, and what to do without one."""

    def __init__(self, source: str, missing: str, name: str) -> None:
        self.source, self.missing, self.name = source, missing, name
        self.logged = False  # the log says it once, `info` every round

    def split(self, evaluator: ServerEvaluator | None) -> str | None:
        """The split, or None: plain averaging because no data were asked for or none are there."""
        if self.source == "none":
            return None
        if evaluator is not None and self._held(evaluator):
            return self.source
        if self.missing == "raise":
            raise BadParameter(
                f"method {self.name!r} with source {self.source!r}",
                "the task holds no such data at the server",
                "reserve an unlabelled split in the task, or use missing='average'",
            )
        if not self.logged:
            log.warning("%s: no %s data at the server, so there is no distillation", self.name, self.source)
            self.logged = True
        return None

    def _held(self, evaluator: ServerEvaluator) -> bool:
        """Whether the evaluator has this split; one that refuses the name does not have it."""
        try:
            return evaluator.size(self.source) > 0
        except UnknownName:
            return False
