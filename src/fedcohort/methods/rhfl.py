"""RHFL: robust learning from noisy clients, with confidence-weighted distillation between them.

    Xiuwen Fang, Mang Ye. Robust Federated Learning with Noisy and Heterogeneous Clients. CVPR 2022.
    (The paper was not at hand; what follows is based on descriptions of its released code.)

Clients train with the symmetric loss

    L = 0.1 CE + 1.0 RCE,    log 0 = ln 1e-4 = -9.21                                                     (1)

and then, on public inputs, client k moves towards the others' predictions:

    minimise sum_{i != k} W_i KL(p_i || p_k)                                                             (2)
    q_k = (L_{t-1} - L_t) / L_t,  v_k = 1 / (K - 1) + 0.5 q_k / sum q,  W = softmax(v)                   (3)

RHFL has no global model. To compare it with methods that have one, this file builds one: the cohort starts from w,
trains by (1), the server runs (2) on copies of the w_k, and

    w+ = sum_k W_k w_k.                                                                                  (4)

mode="global" is evaluated by (4). mode="native" also reports the mean validation accuracy of the personal models after
(2) as `rhfl_personal_accuracy`. The two are not comparable: never put both in one table.

Departures from the paper
    * (4), and that everybody starts from w each round: engines broadcast one model.
    * (3) breaks where sum q is near zero or negative. confidence="stable" takes q_k = max(L_{t-1} - L_t, 0) / L_t, and
      all-zero q is uniform. confidence="code" is (3) as released, with uniform weights only where sum q vanishes.
    * L_t is the mean cross-entropy of the first local epoch, asked for as the signal "train_loss". A client without an
      earlier loss gets the median q of the others; if nobody has one, weights are uniform.
    * The p_i of (2) are those at the start of a public pass, not of every batch; one Adam per pass, not per batch.
    * The weights of the others are scaled to sum to one in (2); the released code's sum is smaller, which Adam cancels.
    * A copy that already agrees with its target (KL < 1e-10) stays as it is.
    * In asynchronous rounds the copies of (2) are the clients' own models, each from the model that it was sent; (4)
      then adds what they changed, by training and by (2), to the model of now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Choice, Count, CountOrZero, Interval, Positive
from fedcohort.core.rng import generator
from fedcohort.core.stats import softmax
from fedcohort.core.table import Table, column
from fedcohort.errors import checked
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
from fedcohort.methods._parts.inner_method import local_params
from fedcohort.methods._parts.server_validation import accuracy, logits_of, validation_evaluator
from fedcohort.methods.base import Buffers, Double, MethodBase, Step, multiplicity, normalised, weighted_sum
from fedcohort.protocols import Aggregation, ServerEvaluator
from fedcohort.types import Index, Mask, Model, Objective, Plan, Real, Updates


@dataclass
class RHFLState(Table):
    """What the server remembers of every client."""

    loss: Real = column(np.nan)  # L_{t-1}; NaN: never reported


class RHFL(MethodBase):
    """A symmetric loss at the client and confidence-weighted mutual distillation at the server, for noisy labels.

    Args:
        mode: "global" or "native" (see above).
        confidence: "stable" or "code" (see above) [W].
        ce: weight of cross-entropy in eq. 1 [alpha].
        rce: weight of reverse cross-entropy in eq. 1 [beta].
        floor: stands for log 0 in eq. 1 [A].
        gain: the factor 0.5 of eq. 3.
        source: public data to distil on.
        missing: without such data: the average alone, or an error.
        lr: learning rate of the distillation.
        batch_size: samples of a step of the distillation.
        passes: passes of the distillation over the data.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.types import Model, Plan
    >>> RHFL().prepare(Plan(), Model(np.zeros(2)), np.arange(3)).objective.rce
    1.0
    """

    name: ClassVar[str] = "rhfl"
    reads_models = True
    state: RHFLState

    @checked
    def __init__(
        self,
        *,
        mode: Annotated[str, Choice("global", "native")] = "global",
        confidence: Annotated[str, Choice("stable", "code")] = "stable",  # [W]
        ce: float = 0.1,  # [alpha]
        rce: float = 1.0,  # [beta]
        floor: Annotated[float, Interval(high=0, ends="[)")] = math.log(1e-4),  # [A] stands for log 0
        gain: float = 0.5,
        source: Source = "unlabelled",
        missing: Missing = "average",
        lr: Positive = 1e-3,
        batch_size: Count = 256,
        passes: CountOrZero = 1,
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        self.mode, self.confidence, self.gain = mode, confidence, gain
        self.objective = Objective(ce=ce, rce=rce, floor=floor)
        self.public = PublicData(source, missing, self.name)
        self.lr, self.batch_size, self.passes = lr, batch_size, passes
        self.state = RHFLState()

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Eq. 1, and a report of the training loss."""
        del model, clients
        return replace(plan, objective=self.objective, measure=plan.measure | {"train_loss"})

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 2 to 4."""
        weight, reports = self._confidence(updates, context)
        local = local_params(model, updates)
        split = self.public.split(context.server_evaluator) if self.passes else None
        moved, info = np.zeros(local.shape), {"rhfl_distilled": float(split is not None), "rhfl_loss_reports": reports}
        if split is not None and context.server_evaluator is not None and len(updates) > 1:
            moved, named = self._teach(context.server_evaluator, split, local, weight, context.rng, updates.buffers)
            info["rhfl_classes"] = float(named)
        share = normalised(weight * multiplicity(updates, context))
        info["rhfl_top_weight"] = float(share.max())
        if self.mode == "native":
            evaluator = validation_evaluator(context.server_evaluator, "rhfl(mode='native')")
            logits = logits_of(evaluator, (local + moved).astype(np.float32), "validation", updates.buffers)
            info["rhfl_personal_accuracy"] = float(accuracy(logits, evaluator.labels("validation")).mean())
        change = weighted_sum(share, updates.delta) + weighted_sum(share, moved)
        return Step(change, np.ones(len(updates), np.bool_), info)

    def _confidence(self, updates: Updates, context: Aggregation) -> tuple[Double, float]:
        """W of eq. 3 and how many reported a loss; remembers the losses."""
        self.state.grow(max(context.population, int(updates.clients.max()) + 1))
        unknown = np.full(len(updates), np.nan)
        now = np.asarray(updates.extras.get("train_loss", unknown), np.float64)
        before = self.state.loss[updates.clients].astype(np.float64)
        known = np.isfinite(now)
        self.state.loss[updates.clients[known]] = now[known]
        return confidence_weights(before, now, form=self.confidence, gain=self.gain), float(known.sum())

    def _teach(
        self,
        evaluator: ServerEvaluator,
        split: str,
        local: Real,
        weight: Double,
        rng: np.random.Generator,
        buffers: Real | None = None,
    ) -> tuple[Double, int]:
        """Eq. 2 for every copy: how far each one moves, and how many classes the cohort predicts altogether.

        All copies see the public batches in the same order.
        """
        seed = int(rng.integers(2**31))
        steps = -(-evaluator.size(split) // self.batch_size)
        schedule = Schedule(self.lr, steps, self.batch_size, clip=math.inf, cosine=False)
        copies, named = local.astype(np.float64), 0
        for index in range(self.passes):
            said = probabilities(logits_of(evaluator, copies.astype(np.float32), split, buffers))
            sound: Mask = np.asarray(np.isfinite(said).all(axis=(1, 2)))
            named = int(np.unique(said[sound].argmax(axis=2)).size)
            for k in np.flatnonzero(sound):
                voice = np.where(sound, weight, 0.0)
                voice[k] = 0.0
                total = float(voice.sum())
                if total <= 0:
                    continue
                target = np.tensordot(voice / total, np.where(sound[:, None, None], said, 0.0), axes=1)
                if divergence(target, said[k]) < AGREED:
                    continue
                order = generator(seed, "rhfl-public", index)
                own = None if buffers is None else buffers[k]
                copies[k] = distil(evaluator, split, copies[k], target, schedule, order, buffers=own)
        return copies - local, named


def confidence_weights(before: Double, now: Double, *, form: str, gain: float) -> Double:
    """Eq. 3 from two losses per client, NaN where unknown. One client has weight 1."""
    clients = now.size
    if clients == 1:
        return np.ones(1)
    known = np.isfinite(before) & np.isfinite(now)
    if not known.any():
        return np.full(clients, 1.0 / (clients - 1))
    fall = before[known] - now[known]
    tiny = np.finfo(np.float32).tiny
    q = np.empty(clients)
    q[known] = (fall if form == "code" else np.maximum(fall, 0.0)) / np.maximum(now[known], tiny)
    q[~known] = np.median(q[known])
    total = float(q.sum())
    if abs(total) < 1e-12:
        return np.full(clients, 1.0 / clients)
    return np.asarray(softmax(1.0 / (clients - 1) + gain * q / total), np.float64)
