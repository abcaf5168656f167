"""CMFL: leave out updates that point against the shared direction.

    Luping Wang, Wei Wang, Bo Li. CMFL: Mitigating Communication Overhead for Federated Learning. ICDCS 2019.
    (The paper was not at hand; the formulas follow descriptions of it. The second form is the one that FedACS compares
    itself with.)

With the update D_k of client k, a reference direction u and P parameters, client k is relevant if

    e_k = (1 / P) #{ j : sign(D_kj) = sign(u_j) }  >=  v_t                                               (1)
    v_t = v_0 / sqrt(t)  or  v_0,    t = 1, 2, ...                                                       (2)

    previous_global   u = w_t - w_{t-1}: the paper; a client could test itself and save the upload
    current_mean      u = mean of this round's updates, own one included: FedACS

Departures from the paper
    * Parameters that neither the client nor the reference moved (dead units, frozen layers) carry no information and
      are not counted in (1); zeros="agree" counts them as agreement.
    * The filter sits at the server, so a rejected client has paid for download, training and upload.
    * If nobody is relevant the most relevant one is kept; without a reference (first round, no movement) all are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Share
from fedcohort.core.table import Table, ragged
from fedcohort.errors import checked
from fedcohort.methods._parts.inner_method import MethodWrapper
from fedcohort.methods.base import Double
from fedcohort.methods.fedavg import FedAvg
from fedcohort.protocols import Aggregation, Method
from fedcohort.types import Mask, Model, Real, Updates

PAPER: dict[str, Any] = {"reference": "previous_global", "schedule": "inv_sqrt", "v0": 0.8, "zeros": "drop"}
FEDACS: dict[str, Any] = {"reference": "current_mean", "schedule": "constant", "v0": 0.7, "zeros": "agree"}


@dataclass
class CMFLState(Table):
    """What the server remembers between rounds."""

    previous: NDArray[np.float32] = ragged(np.float32)  # w_t - w_{t-1}; empty before the first round


class CMFL(MethodWrapper):
    """Leave out updates whose signs disagree with a reference direction, then let the inner method combine the rest.

    Args:
        inner: the method that combines the rest; None: FedAvg.
        reference: direction to agree with; None: previous_global [u].
        schedule: of the threshold; None: inv_sqrt.
        v0: threshold of agreement; None: 0.8 [v_0].
        zeros: whether a coordinate that does not move is left out or agrees; None: drop.
        preset: "fedacs" sets what is None to the values of the FedACS authors.

    >>> from fedcohort.testing import example_round
    >>> CMFL(preset="fedacs").aggregate(*example_round([[1.0, 2.0], [3.0, 1.0], [-1.0, -1.0]])).accepted
    array([ True,  True, False])
    """

    name: ClassVar[str] = "cmfl"
    state: CMFLState

    @checked
    def __init__(
        self,
        *,
        inner: Method | None = None,
        reference: Annotated[str, Choice("previous_global", "current_mean")] | None = None,  # [u] previous_global
        schedule: Annotated[str, Choice("inv_sqrt", "constant")] | None = None,  # inv_sqrt
        v0: Share | None = None,  # [v_0] 0.8
        zeros: Annotated[str, Choice("drop", "agree")] | None = None,  # drop
        preset: Annotated[str, Choice("fedacs")] | None = None,
    ) -> None:
        given = {"reference": reference, "schedule": schedule, "v0": v0, "zeros": zeros}
        chosen = {**(PAPER if preset is None else FEDACS), **{k: v for k, v in given.items() if v is not None}}
        super().__init__(inner=FedAvg(form="uniform") if inner is None and preset == "fedacs" else inner)
        self.reference, self.schedule = str(chosen["reference"]), str(chosen["schedule"])
        self.v0, self.zeros = float(chosen["v0"]), str(chosen["zeros"])
        self.state = CMFLState()

    def choose(self, model: Model, updates: Updates, context: Aggregation) -> tuple[Mask, dict[str, float]]:
        """Eq. 1 and 2."""
        del model
        everybody = np.ones(len(updates), np.bool_)
        direction = updates.delta.mean(axis=0, dtype=np.float64)
        if self.reference == "previous_global":
            direction = self.state.previous.astype(np.float64)
        if not direction.any():
            return everybody, {"cmfl_kept": float(len(updates)), "cmfl_threshold": 0.0}
        threshold = self.v0 / math.sqrt(context.index + 1) if self.schedule == "inv_sqrt" else self.v0
        share = relevance(updates.delta, direction, drop_zeros=self.zeros == "drop")
        kept = share >= threshold
        if not kept.any():
            kept = np.arange(share.size) == int(share.argmax())
        return kept, {
            "cmfl_kept": float(kept.sum()),
            "cmfl_threshold": threshold,
            "cmfl_relevance": float(share.mean()),
        }

    def refine(
        self, before: Model, after: Model, kept: Updates, context: Aggregation
    ) -> tuple[Model, dict[str, float]]:
        """Remember how the model moved, and leave it as it is."""
        del kept, context
        if self.reference == "previous_global":
            self.state.previous = np.asarray(after.params - before.params, np.float32)
        return after, {}


def relevance(delta: Real, direction: Double, *, drop_zeros: bool) -> Double:
    """Eq. 1 for every row; 1 for a row in which no parameter counts."""
    want = np.sign(direction).astype(np.int8)
    share = np.ones(len(delta))
    for k, row in enumerate(delta):
        have = np.sign(row).astype(np.int8)
        agree = int(np.count_nonzero(have == want))
        silent = want.size - int(np.count_nonzero(have | want)) if drop_zeros else 0
        if want.size > silent:
            share[k] = (agree - silent) / (want.size - silent)
    return share
