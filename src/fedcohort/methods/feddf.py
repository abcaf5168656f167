"""FedDF: ensemble distillation. The server teaches the averaged model what the clients' models say together.

    Tao Lin, Lingjing Kong, Sebastian U. Stich, Martin Jaggi.
    Ensemble Distillation for Robust Model Fusion in Federated Learning. NeurIPS 2020.
    (The paper was not at hand; what follows is based on descriptions of its released code.)

Clients train as the inner method says (FedAvg). At the server, on unlabelled inputs x,

    student  v_0 = the inner method's model                                                              (1)
    minimise mean_x KL( softmax( (1 / m) sum_k g(x; w_k) ) || softmax(g(x; v)) )                         (2)

by Adam (1e-3, cosine to zero, gradient norm at most 5, temperature 1), teachers with equal weights. With labelled
validation data at the server the best student seen is kept, the start included, and patience ends it early.

Departures from the paper
    * 500 steps with a check every 50 and patience 200; preset="code" restores 10 000, 100 and 1 000.
    * Where student and ensemble already agree up to rounding (KL < 1e-10) nothing is done. So a linear model, one
      client, or clients that all returned the broadcast model are left exactly as the inner method has them.
    * The data are the evaluator's split `source`: "unlabelled", "noise" (for an evaluator that offers random inputs
      under this name), or "none". Without such data: missing="average" is the inner method alone, reported in `info`
      and in the log; missing="raise" refuses. The test set is never used.
    * drop_worst leaves out, from average and ensemble, models below 1.2 times chance on validation data; if all
      are, none is left out.
    * In asynchronous rounds the w_k are the clients' own models, each from the model that it was sent: old teachers for
      a student that begins with the inner method's model of now.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Count, CountOrZero, Interval, Positive
from fedcohort.errors import check, checked
from fedcohort.methods._parts.distillation import (
    AGREED,
    Missing,
    PublicData,
    Schedule,
    Source,
    distil,
    divergence,
    probabilities,
)
from fedcohort.methods._parts.inner_method import MethodWrapper, local_params
from fedcohort.methods._parts.server_validation import accuracy, logits_of, validation_evaluator
from fedcohort.methods.base import Double
from fedcohort.protocols import Aggregation, Method, ServerEvaluator
from fedcohort.types import Mask, Model, Real, Updates

CHANCE_FACTOR = 1.2


class FedDF(MethodWrapper):
    """Average by the inner method, then distil the cohort's mean logits into the average.

    Args:
        inner: the method that makes the start of the student; None: FedAvg.
        source: data to distil on.
        missing: without such data: the inner method alone, or an error.
        lr: learning rate of Adam, cosine to zero.
        steps: steps of distillation.
        batch_size: samples of a step.
        clip: largest norm of a gradient.
        check_every: steps between two looks at the student.
        patience: steps without progress that end it.
        drop_worst: leave out models near chance.
        preset: "code" sets steps and patience to those of the released code.

    >>> from fedcohort.testing import LinearEvaluator, example_round
    >>> model, updates, context = example_round(np.eye(3, 12), server_evaluator=LinearEvaluator())
    >>> FedDF(source="none").aggregate(model, updates, context).info
    {'feddf_distilled': 0.0}
    """

    name: ClassVar[str] = "feddf"
    reads_models = True

    @checked
    def __init__(
        self,
        *,
        inner: Method | None = None,
        source: Source = "unlabelled",
        missing: Missing = "average",
        lr: Positive = 1e-3,
        steps: CountOrZero = 500,
        batch_size: Count = 128,
        clip: Annotated[float, Interval(0, ends="(]")] = 5.0,
        check_every: Count = 50,
        patience: CountOrZero = 200,
        drop_worst: bool = False,
        preset: Annotated[str, Choice("code")] | None = None,
    ) -> None:
        if preset == "code":
            given = f"preset='code' with steps={steps}, check_every={check_every}, patience={patience}"
            plain = (steps, check_every, patience) == (500, 50, 200)
            check(plain, given, "the preset sets these three", "leave out the preset, or these")
            steps, check_every, patience = 10_000, 100, 1_000
        super().__init__(inner=inner)
        self.public, self.drop_worst = PublicData(source, missing, self.name), drop_worst
        self.schedule = Schedule(lr=lr, steps=steps, batch_size=batch_size, clip=clip)
        self.check_every, self.patience = check_every, patience

    def choose(self, model: Model, updates: Updates, context: Aggregation) -> tuple[Mask, dict[str, float]]:
        """Everybody, or with drop_worst those above 1.2 times chance."""
        everybody = np.ones(len(updates), np.bool_)
        if not self.drop_worst:
            return everybody, {}
        evaluator = validation_evaluator(context.server_evaluator, "feddf(drop_worst=True)")
        logits = logits_of(evaluator, local_params(model, updates), "validation", updates.buffers)
        good = accuracy(logits, evaluator.labels("validation")) >= CHANCE_FACTOR / evaluator.classes
        kept = good if good.any() else everybody
        return kept, {"feddf_dropped": float(len(updates) - kept.sum())}

    def refine(
        self, before: Model, after: Model, kept: Updates, context: Aggregation
    ) -> tuple[Model, dict[str, float]]:
        """Eq. 2, from eq. 1."""
        split = self.public.split(context.server_evaluator)
        if split is None or context.server_evaluator is None:
            return after, {"feddf_distilled": 0.0}
        evaluator = context.server_evaluator
        target = ensemble(evaluator, split, local_params(before, kept), kept.buffers)
        if target is None:
            return after, {"feddf_distilled": 0.0}
        own = after.buffers[None]
        start = divergence(target, probabilities(logits_of(evaluator, after.params[None], split, own)[0]))
        info = {
            "feddf_distilled": 1.0,
            "feddf_kl_start": start,
            "feddf_kl_end": start,
            "feddf_steps": 0.0,
            "feddf_classes": float(np.unique(target.argmax(axis=1)).size),  # classes the ensemble ever names
        }
        if start < AGREED or self.schedule.steps == 0:
            return after, info
        watch = EarlyStopping(evaluator, after, self.check_every, self.patience)
        last = distil(
            evaluator, split, after.params, target, self.schedule, context.rng, watch=watch, buffers=after.buffers
        )
        student = watch.result(last)
        info["feddf_steps"] = float(watch.steps)
        info["feddf_kl_end"] = divergence(target, probabilities(logits_of(evaluator, student[None], split, own)[0]))
        return replace(after, params=student), info


class EarlyStopping:
    """Early stopping on validation accuracy; without such data it only counts steps."""

    def __init__(self, evaluator: ServerEvaluator, start: Model, every: int, patience: int) -> None:
        self.evaluator, self.every, self.patience = evaluator, every, patience
        self.labelled = evaluator.size("validation") > 0
        self.steps, self.best_step = 0, 0
        self.buffers = start.buffers[None]
        self.best: NDArray[np.float32] = np.asarray(start.params, np.float32)
        self.best_score = self._score(self.best) if self.labelled else float("nan")

    def __call__(self, params: Double, steps: int) -> bool:
        """Compare every so often; True ends the distillation."""
        self.steps = steps
        if not self.labelled or steps % self.every:
            return False
        now = params.astype(np.float32)
        score = self._score(now)
        if score > self.best_score:
            self.best, self.best_score, self.best_step = now, score, steps
        return steps - self.best_step >= self.patience

    def result(self, last: Double) -> NDArray[np.float32]:
        """The best student seen, or the last one where nothing can be compared."""
        if not self.labelled:
            return last.astype(np.float32)
        if self.steps % self.every:
            final = last.astype(np.float32)
            if self._score(final) > self.best_score:
                return final
        return self.best

    def _score(self, params: Real) -> float:
        logits = logits_of(self.evaluator, params[None], "validation", self.buffers)
        return float(accuracy(logits, self.evaluator.labels("validation"))[0])


def ensemble(evaluator: ServerEvaluator, split: str, models: Real, buffers: Real | None = None) -> Double | None:
    """softmax of the mean logits of all models with finite logits; one model at a time, for memory."""
    total, count = np.zeros(()), 0
    for k in range(len(models)):
        own = None if buffers is None else buffers[k : k + 1]
        logits = logits_of(evaluator, models[k : k + 1], split, own)[0].astype(np.float64)
        if np.isfinite(logits).all():
            total, count = total + logits, count + 1
    return probabilities(total / count) if count else None
