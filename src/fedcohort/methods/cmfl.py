"""CMFL: leave out updates that point against the shared direction.

    Luping Wang, Wei Wang, Bo Li. CMFL: Mitigating Communication Overhead for Federated Learning. ICDCS 2019.
    (The paper could not be read for this file; the formulas are those of the specification. The second form is the
    one that FedACS compares itself with.)

With the update D_k of client k, a reference direction u and P parameters, client k is relevant if

    e_k = (1 / P) #{ j : sign(D_kj) = sign(u_j) }  >=  v_t                                               (1)
    v_t = v_0 / sqrt(t)  or  v_0,    t = 1, 2, ...                                                       (2)

    previous_global   u = w_t - w_{t-1}: the paper; a client could test itself and save the upload
    current_mean      u = mean of this round's updates, own one included: FedACS

Departures from the paper
    * Parameters that neither the client nor the reference moved say nothing (dead units, frozen layers) and are not
      counted in (1); zeros="agree" counts them as agreement.
    * The filter sits at the server, so a rejected client has paid for download, training and upload.
    * If nobody is relevant the most relevant one is kept; without a reference (first round, no movement) all are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import StateMismatch, check
from fedcohort.methods._parts.inner_method import MethodWrapper
from fedcohort.methods.fedavg import FedAvg
from fedcohort.protocols import Aggregation, Method
from fedcohort.types import Arrays, Mask, Model, Real, Updates

Double = NDArray[np.float64]
REFERENCES = ("previous_global", "current_mean")
SCHEDULES = ("inv_sqrt", "constant")
ZEROS = ("drop", "agree")
PAPER: dict[str, Any] = {"reference": "previous_global", "schedule": "inv_sqrt", "v0": 0.8, "zeros": "drop"}
FEDACS: dict[str, Any] = {"reference": "current_mean", "schedule": "constant", "v0": 0.7, "zeros": "agree"}
PRESETS = ("fedacs",)


class CMFL(MethodWrapper):
    """Filter by agreement of signs, then let the inner method combine. Explicit parameters override the preset."""

    name: ClassVar[str] = "cmfl"

    def __init__(
        self,
        *,
        inner: Method | None = None,
        reference: str | None = None,  # [u] previous_global
        schedule: str | None = None,  # inv_sqrt
        v0: float | None = None,  # [v_0] 0.8
        zeros: str | None = None,  # drop
        preset: str | None = None,
    ) -> None:
        check(preset is None or preset in PRESETS, f"preset = {preset!r}", "CMFL has no such preset", "use 'fedacs'")
        given = {"reference": reference, "schedule": schedule, "v0": v0, "zeros": zeros}
        chosen = {**(PAPER if preset is None else FEDACS), **{k: v for k, v in given.items() if v is not None}}
        for key, known in (("reference", REFERENCES), ("schedule", SCHEDULES), ("zeros", ZEROS)):
            check(chosen[key] in known, f"{key} = {chosen[key]!r}", "no such choice", f"use one of {', '.join(known)}")
        check(0 <= chosen["v0"] <= 1, f"v0 = {chosen['v0']}", "a share lies in [0, 1]", "use 0.8")
        super().__init__(inner=FedAvg(form="uniform") if inner is None and preset == "fedacs" else inner)
        self.reference, self.schedule = str(chosen["reference"]), str(chosen["schedule"])
        self.v0, self.zeros = float(chosen["v0"]), str(chosen["zeros"])
        self.previous = np.empty(0, np.float32)  # w_t - w_{t-1}; empty before the first round

    def choose(self, model: Model, updates: Updates, context: Aggregation) -> tuple[Mask, dict[str, float]]:
        """Eq. 1 and 2."""
        del model
        everybody = np.ones(len(updates), np.bool_)
        direction = updates.delta.mean(axis=0, dtype=np.float64)
        if self.reference == "previous_global":
            direction = self.previous.astype(np.float64)
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
        """Remember how the model moved; the model itself stays."""
        del kept, context
        if self.reference == "previous_global":
            self.previous = np.asarray(after.params - before.params, np.float32)
        return after, {}

    def state_dict(self) -> Arrays:
        """The last movement of the model, and the inner method's state."""
        return {"previous": self.previous.copy(), **super().state_dict()}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        previous = arrays.get("previous")
        if previous is None or previous.ndim != 1 or previous.dtype != np.float32:
            raise StateMismatch(
                f"state with keys {sorted(arrays)}",
                "cmfl keeps one float32 vector 'previous' and its inner method's state",
                "load it into the method that wrote it",
            )
        super().load_state_dict({name: value for name, value in arrays.items() if name != "previous"})
        self.previous = previous.copy()


def relevance(delta: Real, direction: Double, *, drop_zeros: bool) -> Double:
    """Eq. 1 for every row. A row without a counted parameter contradicts nothing: 1."""
    want = np.sign(direction).astype(np.int8)
    share = np.ones(len(delta))
    for k, row in enumerate(delta):
        have = np.sign(row).astype(np.int8)
        agree = int(np.count_nonzero(have == want))
        silent = want.size - int(np.count_nonzero(have | want)) if drop_zeros else 0
        if want.size > silent:
            share[k] = (agree - silent) / (want.size - silent)
    return share
