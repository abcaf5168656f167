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
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import check
from fedcohort.methods._parts.client_rows import ClientRows, finite_rows
from fedcohort.methods.base import Base, Step, multiplicity, normalised, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Arrays, Index, Model, Plan, Real, Updates


class FedDyn(Base):
    """Linear and proximal terms that move with every visit. The paper's symbol is given in brackets."""

    name: ClassVar[str] = "feddyn"
    exempt: Mapping[str, str] = MappingProxyType(
        {"single_client": "h carries the step further, eq. 4", "idle_later": "h remembers earlier rounds"}
    )

    def __init__(
        self,
        *,
        alpha: float = 0.01,  # [alpha]
        memory_limit: int = 2**31,  # bytes of g_k held in memory; beyond, they go to disk
        spill_folder: str | None = None,  # None: the system's temporary folder
        buffers: str = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        check(alpha > 0, f"alpha = {alpha}", "the regularisation must be positive", "use 0.01")
        self.alpha = alpha
        self.gradients = ClientRows(self.name, memory_limit=memory_limit, folder=spill_folder)  # g_k; their mean is h

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Eq. 1."""
        correction: Real = -self.gradients.read(np.asarray(clients, np.int64), model.params.size)
        if plan.correction is not None:
            correction = correction + plan.correction
        return replace(plan, correction=correction, prox=self.alpha)

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 2, 3, 4."""
        width = model.params.size
        fresh = self.gradients.read(updates.clients, width)
        for row, delta in zip(fresh, updates.delta, strict=True):
            row[:] = self.gradients.cast(row.astype(np.float64) - self.alpha * delta.astype(np.float64))
        kept = finite_rows(fresh)
        if not kept.any():
            return Step(np.zeros(width), kept)
        rows = updates.rows(kept)
        self.gradients.write(rows.clients, fresh[kept], np.ones(len(rows)))
        self.gradients.mass = float(max(context.population, 1))
        mean = weighted_sum(normalised(multiplicity(rows, context)), rows.delta)
        return Step(mean - self.gradients.mean(width) / self.alpha, kept)

    def state_dict(self) -> Arrays:
        """The g_k that exist, as (slots, rows), and their sum."""
        return self.gradients.state_dict()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.gradients.load_state_dict(arrays)
