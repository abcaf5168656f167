"""SCAFFOLD: control variates take the drift out of local training.

    Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich, Ananda Theertha Suresh.
    SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML 2020. https://arxiv.org/abs/1910.06378

The server keeps c, and one c_k per client. Every local gradient is corrected,

    g <- g - c_k + c                                                                                     (1)

and after tau_k steps with rate eta, from w to y_k, the client's variate becomes

    option I     c_k+ = full gradient of F_k at w                                                        (2)
    option II    c_k+ = c_k - c + (w - y_k) / (eta |a_k|_1)                                              (3)

With R those that returned and N all clients:

    w+ = w + eta_g mean_R (y_k - w)            c+ = c + (1 / N) sum_R (c_k+ - c_k)                       (4)
    w+ = w + eta_g sum_R q_k (y_k - w)         c+ = c + sum_R p_k (c_k+ - c_k)                           (5)

(4) is `weighting="uniform"`, the paper's, and its fixed point is the optimum of the plain mean of all F_k, whoever is
selected how often; (5) is `weighting="data"` and goes to the optimum of sum p_k F_k. What decides is the weights in c.

(1) adds c - mean_S c_k to the mean of a cohort's gradients. For a uniform sample that is zero on average, however old
the c_k are. For any other it is a step of its own: those asked may have older c_k than the others, or c may be short
because clients that were never asked are zeros in it. `reference="cohort"` corrects by

    g <- g - c_k + mean_{j in S} c_j                                                                     (6)

whose corrections add up to nothing over any cohort. `unknown="left out"` keeps (1) for the clients K that have a c_k,
leaves the gradients of the others as they are, and takes for c

    c = sum_K p_k c_k / sum_K p_k                                                                        (7)

docs/methods/scaffold.md has what both change, and the smallest case.

Departures from the paper
    * (3) divides by eta |a_k|_1 and not by eta tau_k: the same for plain SGD, and the only thing that converges with
      momentum (methods/_parts/local_solver.py).
    * c_k is kept at the server and changed only when the upload was accepted: a client that changed it first and was
      then lost would leave c and the c_k apart for ever. So c = sum of weights * c_k holds after every round.
    * c is stored as that sum, so it stays true when the population grows.
    * A client that took no step says nothing about its gradient: option II leaves it out.
    * (6) and (7) are ours; the default is the paper's (1).
    * Adam: (3) is undefined and refused. (2) is accepted: (1) then corrects the gradient before Adam sees it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Choice, CountOrZero, Positive
from fedcohort.errors import BadParameter, MissingSignal, check, checked
from fedcohort.methods._parts.client_rows import ClientRows, Rows, finite_rows
from fedcohort.methods._parts.local_solver import path_lengths
from fedcohort.methods.base import Buffers, Double, MethodBase, Step, Weighting, shares, total_samples, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Index, Mask, Model, Plan, Real, Updates

GRADIENT = "full_gradient"


class Scaffold(MethodBase):
    """Local training corrected by control variates, which the server holds for every client.

    Args:
        option: how a control variate is renewed: "I" (eq. 2) or "II" (eq. 3).
        weighting: "uniform" (eq. 4) or "data" (eq. 5).
        server_lr: factor on the step of the server [eta_g].
        memory_limit: bytes of control variates held in memory; beyond, they go to a file.
        spill_folder: folder of that file; None: the system's temporary folder.
        buffers: what becomes of float buffers: averaged, or as the server has them.
        reference: what stands for the mean gradient: "all" (c, eq. 1) or "cohort" (eq. 6; option "I" only).
        unknown: what clients without a variate are: "zero", as in the paper, or "left out" (eq. 7).

    >>> from fedcohort.testing import example_round
    >>> Scaffold(weighting="data").aggregate(*example_round([[0.0], [4.0]], weight=[3, 1])).model.params
    array([1.], dtype=float32)
    """

    name: ClassVar[str] = "scaffold"
    state: ClientRows  # c_k and their weighted sum

    @checked
    def __init__(
        self,
        *,
        option: Annotated[str, Choice("I", "II")] = "II",
        weighting: Weighting = "uniform",
        server_lr: Positive = 1.0,  # [eta_g]
        memory_limit: CountOrZero = 2**31,  # bytes of c_k held in memory; beyond, they go to disk
        spill_folder: str | None = None,
        buffers: Buffers = "average",
        reference: Annotated[str, Choice("all", "cohort")] = "all",
        unknown: Annotated[str, Choice("zero", "left out")] = "zero",
    ) -> None:
        super().__init__(buffers=buffers)
        fits = reference == "all" or option == "I"
        rule = "option II reads the mean of all clients off the update"
        check(fits, f"reference = {reference!r} with option = {option!r}", rule, 'use option="I"')
        fits = reference == "all" or unknown == "zero"
        rule = "the mean over the cohort is not one over all clients that have a variate"
        check(fits, f"unknown = {unknown!r} with reference = {reference!r}", rule, "use one of the two")
        self.reference, self.unknown = reference, unknown
        self.option, self.weighting, self.server_lr = option, weighting, server_lr
        self.asynchronous = option == "I"  # eq. 3 reads c as it was sent
        if server_lr != 1.0:
            self.exempt = {"single_client": "the server learning rate scales the step"}
        self.needs = frozenset({"samples"} if weighting == "data" else ())
        self.prefix = f"{self.name}-{weighting}."
        self.state = ClientRows(f"{self.name}-{weighting}", memory_limit=memory_limit, folder=spill_folder)

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Eq. 1 as a correction of every gradient; option I also asks for the full gradient."""
        self._check(plan)
        width = model.params.size
        correction: Real = -self.state.read(np.asarray(clients, np.int64), width)
        mean = self._c(width) if self.reference == "all" else -correction.mean(axis=0, dtype=np.float64)
        correction += mean.astype(np.float32)
        if self.unknown == "left out":
            correction[~self.state.written(clients)] = 0.0
        if plan.correction is not None:
            correction = correction + plan.correction
        measure = plan.measure | {GRADIENT} if self.option == "I" else plan.measure
        return replace(plan, correction=correction, measure=measure)

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 4 or 5; c_k and c move for exactly those rows that move w."""
        self._check(context.plan)
        fresh, kept = self._fresh(updates, context)
        if not kept.any():
            return Step(np.zeros(model.params.size), kept)
        rows = updates.rows(kept)
        share, by_data = shares(self.weighting, rows, context), self.weighting == "data"
        weight = samples_of(rows, context) if by_data else np.ones(len(rows))
        mass = total_samples(context) if by_data else float(context.population)
        self.state.write(rows.clients, fresh[kept], weight)
        self.state.mass = max(mass, 1.0)
        return Step(self.server_lr * weighted_sum(share, rows.delta), kept)

    def _fresh(self, updates: Updates, context: Aggregation) -> tuple[Rows, Mask]:
        """c_k+ by eq. 2 or 3, and which rows have a finite one."""
        if self.option == "I":
            if GRADIENT not in updates.extras:
                raise MissingSignal(
                    f"extras without {GRADIENT!r}",
                    "SCAFFOLD's option I needs the full gradient at the broadcast model",
                    'train with an engine that measures it, or use option="II"',
                )
            fresh = self.state.cast(np.asarray(updates.extras[GRADIENT], np.float64))
            return fresh, finite_rows(fresh)
        width = updates.delta.shape[1]
        length = path_lengths(updates, context)
        fresh = self.state.read(updates.clients, width)
        known = self.state.written(updates.clients) | (self.unknown == "zero")
        c = self._c(width).astype(np.float32).astype(np.float64)  # as it was sent
        for row, delta, far, had in zip(fresh, updates.delta, length, known, strict=True):
            if far > 0:
                row[:] = self.state.cast(row.astype(np.float64) - had * c - delta.astype(np.float64) / far)
        return fresh, finite_rows(fresh) & (length > 0)

    def _c(self, width: int) -> Double:
        """c of eq. 1, or of eq. 7 where clients without a variate are left out."""
        return self.state.mean(width) if self.unknown == "zero" else self.state.mean_written(width)

    def _check(self, plan: Plan) -> None:
        if plan.optimiser != "sgd" and self.option == "II":
            raise BadParameter(
                f"optimiser = {plan.optimiser!r}",
                "SCAFFOLD's option II reads the mean gradient off a linear local solver",
                'train with optimiser="sgd", or use option="I"',
            )


def samples_of(updates: Updates, context: Aggregation) -> Double:
    """n_k as registered, so that p_k is the same every round; as reported for slots that are not registered."""
    reported = np.asarray(updates.weight, np.float64)
    known = updates.clients < context.samples.size
    registered = (
        np.asarray(context.samples, np.float64)[np.where(known, updates.clients, 0)] if known.any() else reported
    )
    return np.where(known, registered, reported)
