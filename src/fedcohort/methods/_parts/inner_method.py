"""A method around another one: leave some rows out, let the inner method combine the rest, then perhaps refine.

The inner method never sees what was left out, so state that it keeps per client and at the server (SCAFFOLD's
variates) changes for both or for neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.methods.base import GuardedMethod
from fedcohort.methods.fedavg import FedAvg
from fedcohort.protocols import Aggregated, Aggregation, Exempting, Method, ModelReader, ProfileReader
from fedcohort.types import SENT, Arrays, Index, Mask, Model, Plan, Updates

INNER = "inner."  # prefix of the inner method's state


class MethodWrapper(GuardedMethod):
    """Delegates to `inner` (FedAvg by default). Subclasses override `choose`, `refine`, or both."""

    def __init__(self, *, inner: Method | None = None) -> None:
        self.inner: Method = FedAvg() if inner is None else inner
        if isinstance(self.inner, Exempting):
            self.exempt = self.inner.exempt  # what cannot hold inside cannot hold here
        self.asynchronous = self.inner.asynchronous
        self.needs = self.inner.needs if isinstance(self.inner, ProfileReader) else frozenset()
        self.reads_models |= isinstance(self.inner, ModelReader) and self.inner.reads_models

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """The inner method's client half."""
        return self.inner.prepare(plan, model, clients)

    def apply(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        """Choose, combine, refine."""
        kept, info = self.choose(model, updates, context)
        if not kept.any():
            return Aggregated(model, kept, info)
        inside = updates.rows(kept)
        done = self.inner.aggregate(model, inside, self.narrowed(context, inside))
        accepted = np.zeros(len(updates), np.bool_)
        accepted[kept] = done.accepted
        if not done.accepted.any():
            return Aggregated(done.model, accepted, {**done.info, **info})
        refined, more = self.refine(model, done.model, inside.rows(done.accepted), context)
        return Aggregated(refined, accepted, {**done.info, **info, **more})

    def choose(self, model: Model, updates: Updates, context: Aggregation) -> tuple[Mask, dict[str, float]]:
        """Which rows the inner method gets, and numbers worth logging. All of them here."""
        del model, context
        return np.ones(len(updates), np.bool_), {}

    def narrowed(self, context: Aggregation, kept: Updates) -> Aggregation:
        """What the inner method may know of the round. Everything here."""
        del kept
        return context

    def refine(
        self, before: Model, after: Model, kept: Updates, context: Aggregation
    ) -> tuple[Model, dict[str, float]]:
        """What happens to the inner method's model. Nothing here."""
        del before, kept, context
        return after, {}

    def state_dict(self) -> Arrays:
        """Its own state, and the inner method's under a prefix."""
        inside = {INNER + name: value for name, value in self.inner.state_dict().items()}
        return {**super().state_dict(), **inside}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`; refuses what does not fit and then changes nothing."""
        inside = {name.removeprefix(INNER): value for name, value in arrays.items() if name.startswith(INNER)}
        fresh = self.loaded({name: value for name, value in arrays.items() if not name.startswith(INNER)})
        self.inner.load_state_dict(inside)
        self.state = fresh


def local_params(model: Model, updates: Updates) -> NDArray[np.float32]:
    """The clients' models (m, p): the parameters that each was sent plus its update."""
    return np.asarray(updates.extras.get(SENT, model.params) + updates.delta, np.float32)
