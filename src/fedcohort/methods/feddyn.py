"""FedDyn: dynamic regularisation makes the local optima agree with the global one.

    Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough, Venkatesh Saligrama.
    Federated Learning Based on Dynamic Regularization. ICLR 2021. https://arxiv.org/abs/2111.04263

Client k keeps g_k, the gradient of its loss where it last stopped, and minimises from the broadcast w

    F_k(v) - <g_k, v> + (alpha / 2) |v - w|^2                                                            (1)
    g_k+ = g_k - alpha (w_k - w)                                                                         (2)

With R those that returned and N all clients:

    h+ = h - (alpha / N) sum_R (w_k - w)                                                                 (3)
    w+ = (1 / |R|) sum_R w_k - h+ / alpha                                                                (4)

(1) is a correction -g_k and a proximal weight alpha on every gradient. By (2) and (3) h is the mean of all g_k.

Departures from the paper
    * g_k is kept at the server and changed only when the upload was accepted; h is computed as the mean of the g_k,
      which is (3), and stays true when the population grows.
    * All clients count alike, as in the paper's equations; the released code scales alpha by a client's samples.
    * (2) holds where (1) was solved to the end. After a few steps it is only an estimate, with any solver, Adam too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fedcohort.core.constraints import CountOrZero, Positive
from fedcohort.errors import checked
from fedcohort.methods._parts.client_rows import ClientRows, finite_rows
from fedcohort.methods.base import Buffers, MethodBase, Step, multiplicity, normalised, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Index, Model, Plan, Real, Updates


class FedDyn(MethodBase):
    """Linear and proximal terms at the client that change each time it trains.

    Args:
        alpha: strength of the regularisation [alpha].
        memory_limit: bytes of the vectors g_k held in memory; beyond, they go to a file.
        spill_folder: folder of that file; None: the system's temporary folder.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> FedDyn(alpha=0.5).aggregate(*example_round([[1.0], [3.0]])).model.params
    array([4.], dtype=float32)
    """

    name: ClassVar[str] = "feddyn"
    exempt: Mapping[str, str] = MappingProxyType(
        {"single_client": "h carries the step further, eq. 4", "idle_later": "h remembers earlier rounds"}
    )

    prefix = "feddyn."
    state: ClientRows  # g_k; their mean is h

    @checked
    def __init__(
        self,
        *,
        alpha: Positive = 0.01,  # [alpha]
        memory_limit: CountOrZero = 2**31,  # bytes of g_k held in memory; beyond, they go to disk
        spill_folder: str | None = None,
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        self.alpha = alpha
        self.state = ClientRows(self.name, memory_limit=memory_limit, folder=spill_folder)

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Eq. 1."""
        correction: Real = -self.state.read(np.asarray(clients, np.int64), model.params.size)
        if plan.correction is not None:
            correction = correction + plan.correction
        return replace(plan, correction=correction, prox=self.alpha)

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 2, 3, 4."""
        width = model.params.size
        fresh = self.state.read(updates.clients, width)
        for row, delta in zip(fresh, updates.delta, strict=True):
            row[:] = self.state.cast(row.astype(np.float64) - self.alpha * delta.astype(np.float64))
        kept = finite_rows(fresh)
        if not kept.any():
            return Step(np.zeros(width), kept)
        rows = updates.rows(kept)
        self.state.write(rows.clients, fresh[kept], np.ones(len(rows)))
        self.state.mass = float(max(context.population, 1))
        mean = weighted_sum(normalised(multiplicity(rows, context)), rows.delta)
        return Step(mean - self.state.mean(width) / self.alpha, kept)
