"""Buffered asynchronous rounds: `cohort_size` clients are always out, the model moves at every `buffer_size`-th update.

A step asks as many clients as have come back, sends them the model as it is now, and lets virtual time pass until the
`buffer_size`-th valid update has arrived, whoever was sent out when. Those that arrived are aggregated and told; an
update says how many versions old the model is that it was computed on (`Updates.extras["staleness"]`), and a method
may weigh it by that (FedBuff). Nobody waits for the slow, and what they did is not lost.

What differs from rounds
    * A selector hears of a client when it ends, so a result may have rows of several cohorts; each client that was
      asked is told once. Who is still out at the end of the run is never told.
    * A client cannot be asked again while it is out.
    * A step without enough valid updates under way ends when somebody drops out: the seat is given away, and updates
      that are there already wait.
    * `deadline` is how long one client may take. Over-selection, min_replies and back-off are refused.
    * Clients train when they are sent out, in the simulator's own time; the bytes of a reply are counted then.
    * A method whose server half reads what was sent out with the model (SCAFFOLD's option II: c) is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedcohort.errors import BadParameter
from fedcohort.methods.fedbuff import STALENESS
from fedcohort.protocols import Method
from fedcohort.sim.in_flight import Flight, costing
from fedcohort.sim.simulation import IDLE, Probing, Simulation
from fedcohort.types import Arrays

FLIGHT = "flight."


class Asynchronous(Simulation):
    """One selector and one method on one task in one world, without rounds."""

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        check_method(self.method)
        self.flight = Flight()
        self.version = 0  # how often the model has moved

    def _round(self) -> dict[str, float]:
        index = self.session.index
        probing = Probing(self, index)
        cohort = self._ask(probing, self.settings.cohort_size - self.flight.running(self.clock))
        plan, asked = self._prepared(index, cohort)
        sent = self.federation.train(index, self.model, cohort, plan, self._needs, int(cohort.clients.size))
        began, self.clock = self.clock, self.clock + probing.seconds
        self.flight.depart(sent, cohort, plan, self.clock, self.version)
        if not len(self.flight):
            self.clock += IDLE
            return self._tell(index, costing(sent, self.clock - began, sent.traffic), probing, {})
        self.clock, here = self.flight.closing(self.settings.buffer_size, self.clock)
        replies, origin, rates = self.flight.land(here, self.version)
        ages = replies.updates.extras[STALENESS]
        trained = replace(plan, lr=rates if np.unique(rates).size > 1 else plan.lr, correction=None)
        before = self.model.params
        info = self._aggregate(index, origin, trained, asked, replies)
        info.pop("abandoned", None)  # no update has come: there is no round to give up
        self.version += int(info.get("method.moves", not np.array_equal(before, self.model.params)))
        info |= {"in_flight": float(len(self.flight)), "version": float(self.version)}
        if ages.size:
            info[STALENESS] = float(ages.mean())
        waited = self.clock - began - probing.seconds
        return self._tell(index, costing(replies, waited, sent.traffic), probing, info)

    def _state(self) -> tuple[Arrays, dict[str, Any]]:
        arrays, meta = super()._state()
        arrays["version"] = np.array(self.version)
        arrays.update({FLIGHT + name: column for name, column in self.flight.rows.items()})
        return arrays, {**meta, "flight": {str(client): reason for client, reason in self.flight.reasons.items()}}

    def _load(self, arrays: Arrays, meta: dict[str, Any]) -> None:
        super()._load(arrays, meta)
        rows = {k.removeprefix(FLIGHT): np.array(v) for k, v in arrays.items() if k.startswith(FLIGHT)}
        self.flight = Flight(rows, {int(client): reason for client, reason in meta["flight"].items()})
        self.version = int(arrays["version"])


def check_method(method: Method) -> None:
    """Refuse a method whose server half reads what it has just sent out."""
    if not getattr(method, "asynchronous", True):
        raise BadParameter(
            f"method {method.name} with buffer_size",
            "it reads its own state as it was when the client left, and that has changed since",
            "use fedbuff, or leave buffer_size out (scaffold(option='I') can do it)",
        )
