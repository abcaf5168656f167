"""Where clients live: what the round engine asks of the simulator (virtual clock) and of Flower (real clock).

A backend reports who is available, answers probes, sends work out and delivers what comes of it. It decides nothing:
how many are asked, when a round closes, which replies are accepted and what becomes of them is the engine's business.
`fedcohort.testing.BackendContract` tests a backend of your own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcohort.protocols import ClientEvaluator, ServerEvaluator
from fedcohort.types import Array, Arrays, Cohort, Index, Mask, Model, Plan, Probed, RoundResult, Updates


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The work that a cohort is sent out with. Rows of `plan` follow `cohort.clients`."""

    index: int  # round
    model: Model
    cohort: Cohort
    plan: Plan
    needs: frozenset[str]  # signals that the selector reads in this round
    again: bool = False  # an earlier process had sent it out and did not live to see the end


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What has come of some dispatched clients: a reply, or the certainty that there will be none.

    `outcome` is OK where a reply is here (it still has to be validated), FAILED where none will come, REJECTED where
    the reply could not even be read. `updates` and the columns of `signals` have one row for each OK, in this order.
    """

    clients: Index
    outcome: NDArray[np.int8]
    seconds: NDArray[np.float64]  # since each was sent out, by the server's clock
    updates: Updates
    signals: Arrays = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)  # client -> why FAILED or REJECTED
    elapsed: float = 0.0  # seconds since the last dispatch
    timed_out: bool = False  # the time that was given is over

    @classmethod
    def nothing(cls, *, elapsed: float = 0.0, timed_out: bool = False) -> Arrivals:
        """Nobody arrived."""
        return cls(_NOBODY, np.empty(0, np.int8), np.empty(0), no_updates(), {}, {}, elapsed, timed_out)


@dataclass(frozen=True, slots=True)
class Fates:
    """What is known of clients that a round no longer waited for."""

    lost: Mapping[int, str] = field(default_factory=dict)  # of this round, known at once never to come: client -> why
    came: int = 0  # how many came after all (of this round or an earlier one), each counted once
    gone: int = 0  # how many are lost for good, those in `lost` included


class Backend(Protocol):
    """Where clients live."""

    @property
    def clock(self) -> float:
        """Seconds since the start of the run, virtual or real."""
        ...

    @property
    def population(self) -> int:
        """How many clients are registered."""
        ...

    @property
    def samples(self) -> Index:
        """Number of samples of every registered client (0 where it is not known)."""
        ...

    @property
    def provides(self) -> frozenset[str]:
        """Every signal that a selector can read here."""
        ...

    @property
    def last_layer(self) -> slice | Mask | None:
        """Which parameters are the last layer, where that is known."""
        ...

    @property
    def server_evaluator(self) -> ServerEvaluator | None:
        """What methods may compute at the server, if anything."""
        ...

    @property
    def client_evaluator(self) -> ClientEvaluator | None:
        """What a method may compute on a simulated client, if anything."""
        ...

    @property
    def repeatable(self) -> bool:
        """Whether the same questions get the same answers again: true of a simulator, false of real clients."""
        ...

    def available(self, index: int) -> Index:
        """Sorted slots that can be asked now; a real backend may wait for somebody to be there."""
        ...

    def profiles(self, names: frozenset[str]) -> Arrays:
        """Profile columns, one row per slot."""
        ...

    def probe(self, index: int, model: Model, clients: Index, names: frozenset[str]) -> Probed:
        """Ask these clients for probe signals; those that do not answer are left out. Costs time."""
        ...

    def plan(self, index: int, cohort: Cohort) -> Plan:
        """How this cohort trains before the method changes it."""
        ...

    def dispatch(self, work: Dispatch) -> None:
        """Send the work out. Returns at once."""
        ...

    def replies(self, until: float, enough: int) -> Arrivals:
        """Wait until `enough` replies are here, nobody is out any more, or the clock says `until`; fewer may return."""
        ...

    def review(self, updates: Updates) -> Mapping[int, str]:
        """Reasons against replies that do not fit what the others send; asked before a round closes, maybe again."""
        ...

    def give_up(self, late: Index, *, timed_out: bool) -> Fates:
        """Nobody waits for these clients any more (`timed_out`: they had their time). What is known of their fates."""
        ...

    def finish(self, *, idle: bool, pause: float) -> None:
        """A synchronous round is over; let `pause` seconds pass, and a while where nobody could be asked (`idle`)."""
        ...

    def evaluate(self, index: int, model: Model, *, last: bool) -> tuple[float, dict[str, Any]]:
        """The score that a selector may learn from (validation data), and what else was measured of the model."""
        ...

    def describe(self, result: RoundResult) -> dict[str, Any]:
        """Further columns of this round's row: at least `seconds`. The last call before the round is made durable."""
        ...

    def under_way(self) -> Index:
        """Clients that were dispatched and have neither arrived nor been given up."""
        ...

    def state_dict(self) -> Arrays:
        """What a new process needs to carry on from here."""
        ...

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`state_dict`."""
        ...

    def told(self, result: RoundResult) -> None:
        """The round is in the journal and the selector has learned from it."""
        ...


def no_updates(params: int = 0) -> Updates:
    """No rows."""
    return Updates(_NOBODY, np.empty((0, params), np.float32), np.empty(0), _NOBODY)


_NOBODY = np.empty(0, np.int64)
