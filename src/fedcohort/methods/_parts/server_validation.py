"""The labelled validation data that a server may hold, and how well models do on them."""

from __future__ import annotations

import numpy as np

from fedcohort.core.stats import cross_entropy, log_softmax
from fedcohort.errors import BadParameter
from fedcohort.methods.base import Double
from fedcohort.protocols import ServerEvaluator
from fedcohort.types import Index, Real

LARGEST_LOSS = 1e6  # of a model that was never fit to be averaged


def validation_evaluator(evaluator: ServerEvaluator | None, name: str) -> ServerEvaluator:
    """The evaluator, if it has labelled validation data; otherwise the error that says what to do."""
    if evaluator is None:
        raise BadParameter(
            f"method {name!r} on a task that gives methods no labelled validation data",
            "it compares class logits on such data, which a loss of one's own or targets that are not classes rule out",
            "train on class numbers with the default loss, or choose a method that needs none such as fedavg",
        )
    if evaluator.size("validation") == 0:
        raise BadParameter(
            f"method {name!r} on a task without a server validation split",
            "it compares models on labelled data held at the server (never the test set)",
            "hold out a validation split in the task, or choose a method that needs none such as fedavg",
        )
    return evaluator


def accuracy(logits: Real, labels: Index) -> Double:
    """Share of right answers of each model: logits (k, n, classes)."""
    right: Double = (logits.argmax(axis=2) == labels).mean(axis=1, dtype=np.float64)
    return right


def logits_of(evaluator: ServerEvaluator, params: Real, split: str, buffers: Real | None) -> Real:
    """Logits of k models, each with the statistics that were trained with it, where the model has any."""
    if buffers is None or not buffers.size:
        return evaluator.logits(params, split)
    return evaluator.logits(params, split, buffers)


def gradient_of(
    evaluator: ServerEvaluator, params: Real, split: str, rows: Index, target: Real, buffers: Real | None
) -> Real:
    """The gradient of one model towards soft targets, at its own statistics (b,) where the model has any."""
    if buffers is None or not buffers.size:
        return evaluator.gradient(params, split, rows, target)[1]
    return evaluator.gradient(params, split, rows, target, buffers)[1]


def mean_loss(params: Real, evaluator: ServerEvaluator, buffers: Real | None = None) -> float:
    """Cross-entropy of one model on the validation data; LARGEST_LOSS where it is larger or not a number."""
    with np.errstate(over="ignore", invalid="ignore"):
        own = None if buffers is None else buffers[None]
        logits = np.asarray(logits_of(evaluator, params[None], "validation", own)[0], np.float64)
        found = float(cross_entropy(log_softmax(logits), evaluator.labels("validation")).mean())
    return min(found, LARGEST_LOSS) if np.isfinite(found) else LARGEST_LOSS
