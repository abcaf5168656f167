"""The round engine: plan, replies, closing. Knows no transport and no clock of its own.

::

    engine = RoundEngine(session, Policy(size=10, deadline=120.0), clock=time.monotonic)
    cohort = engine.plan(available)            # None: pausing, or nobody there. The cohort is in the journal already
    reason = engine.reply(message)             # None: accepted
    closed = engine.due()                      # None: still open
    engine.settle(closed, score)               # after the accepted replies became a model; told and journalled

Every round ends: when `size` replies are accepted, when everybody has answered, or at the deadline. With fewer than
`quorum` accepted it is abandoned with a reason: the model stays as it is, and a pause follows that doubles while rounds
go on failing. A server that comes back finds its open round in the journal and abandons it (`recover`).
Replies are handed out in ascending client order: the order of arrival cannot change a bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import OutOfTurn, check
from fedcohort.rounds.over_selection import ADAPTIVE, TARGET, BackOff, OverSelection
from fedcohort.rounds.replay import replay_ask, replay_tell
from fedcohort.rounds.session import Probe, Session
from fedcohort.rounds.validation import Expected, Limits, validate_reply
from fedcohort.storage.journal import Record
from fedcohort.types import Array, Arrays, Cohort, Outcome, RoundResult, Signals


@dataclass(frozen=True, slots=True)
class Policy:
    """When a round ends and how many are asked."""

    size: int  # accepted replies wanted
    deadline: float  # seconds after which nobody is waited for
    quorum: int = 1  # fewer accepted replies than this: abandoned
    over_select: str | float = ADAPTIVE
    target: float = TARGET  # share of rounds that should reach their size
    back_off: float = 1.0  # seconds of the first pause
    max_back_off: float = 3600.0

    def __post_init__(self) -> None:
        check(self.size >= 1, f"size = {self.size}", "a round wants at least one reply", "use 1 or more")
        finite = 0.0 < self.deadline < math.inf
        check(finite, f"deadline = {self.deadline}", "it must be positive and finite, for every round ends", "use 120")
        good = 1 <= self.quorum <= self.size
        check(good, f"quorum = {self.quorum}", f"it must be between 1 and {self.size}", "use half of size, say")


@dataclass(frozen=True, slots=True)
class Closed:
    """How a round ended. `accepted` is in ascending client order and empty when the round was abandoned."""

    index: int
    reason: str  # size-reached, all-answered, deadline, below-quorum, server-restarted
    abandoned: bool
    accepted: tuple[dict[str, Any], ...]
    outcome: NDArray[np.int8]  # one row per asked client, ascending
    duration: NDArray[np.float64]
    reasons: Mapping[int, str] = field(default_factory=dict)


class RoundEngine:
    """One session's rounds, driven by events. `params` and `signals` say what a reply must hold."""

    def __init__(
        self,
        session: Session,
        policy: Policy,
        *,
        clock: Callable[[], float],
        params: int | None = None,
        signals: Mapping[str, int] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.session, self.policy, self.clock = session, policy, clock
        self.over_selection = OverSelection(policy.over_select, policy.target)
        self.back_off = BackOff(policy.back_off, policy.max_back_off)
        self.not_before = -math.inf
        self.refused: Counter[str] = Counter()  # reason codes of everything that was not accepted
        self._form = (params, dict(signals or {}), limits or Limits())
        self._open: _Open | None = None
        self._came = self._lost = 0  # fates that became known since the last round was settled
        self._pending: dict[tuple[int, int], float] = {}  # (round, client) -> when it counts as lost

    @property
    def open(self) -> bool:
        """Whether a round is open."""
        return self._open is not None

    def plan(
        self,
        available: ArrayLike,
        *,
        population: int | None = None,
        profiles: Mapping[str, Array] | None = None,
        probe: Probe | None = None,
    ) -> Cohort | None:
        """Open the next round; the cohort to send to, journalled. None while pausing or with nobody there."""
        if self._open is not None:
            raise OutOfTurn("plan", f"round {self.session.index} is open", "let it end first")
        now = self.clock()
        if now < self.not_before or np.size(np.asarray(available)) == 0:
            return None
        size = self.over_selection.ask_for(self.policy.size)
        cohort = self.session.ask(
            available, population=population, clock=now, profiles=profiles, probe=probe, size=size
        )
        params, signals, limits = self._form
        asked = frozenset(cohort.clients.tolist())
        self._open = _Open(cohort, now, Expected(self.session.index, asked, params, signals, limits))
        return cohort

    def reply(self, reply: Any) -> str | None:
        """Take a reply from anybody: None when it was accepted, else the reason code."""
        now = self.clock()
        if self._open is None or now > self._open.start + self.policy.deadline:
            reason: str | None = "round-over"
        else:
            reason = validate_reply(reply, self._open.expected, self._open.accepted)
        if reason is None and self._open is not None:
            self._open.accepted[reply["client"]] = (reply, now)
            return None
        self.refused[str(reason).partition(":")[0]] += 1
        self._note(reply, str(reason))
        return reason

    def failed(self, client: int, reason: str) -> None:
        """The transport says that this client will not answer in the open round."""
        if self._open is not None and client in self._open.expected.asked and client not in self._open.accepted:
            self._open.gone[client] = reason

    def due(self) -> Closed | None:
        """How the open round ends now; None when it goes on (or none is open)."""
        now, round_ = self.clock(), self._open
        self._expire(now)
        if round_ is None:
            return None
        answered = len(round_.accepted)
        if answered >= self.policy.size:
            return self._closed(round_, "size-reached")
        if answered + len(round_.gone.keys() - round_.accepted.keys()) >= round_.cohort.clients.size:
            return self._closed(round_, "all-answered")
        if now >= round_.start + self.policy.deadline:
            return self._closed(round_, "deadline")
        return None

    def wait(self) -> float:
        """Seconds until something happens by itself: the deadline of the open round, or the end of the pause."""
        until = self.not_before if self._open is None else self._open.start + self.policy.deadline
        return max(until - self.clock(), 0.0)

    def settle(self, closed: Closed, score: float = math.nan, metrics: Mapping[str, Any] | None = None) -> None:
        """The accepted replies have become a model (or the round was abandoned): tell the session, free the engine."""
        round_ = self._open
        if round_ is None or closed.index != self.session.index:
            raise OutOfTurn("settle", "this round is not the open one", "settle what `due` returned")
        clients = np.sort(round_.cohort.clients)
        values = {r["client"]: r["signals"] for r, _ in round_.accepted.values()}
        columns = {n: _column(clients, values, n, w) for n, w in self._form[1].items()}
        result = RoundResult(closed.index, clients, closed.outcome, closed.duration, Signals(columns), score)
        notes = {**(metrics or {}), "ended": closed.reason, "asked": int(clients.size)}
        self.session.tell(result, notes, closed.reasons)
        self._learn(round_, closed)
        self._open = None
        self.not_before = self.clock() + self.back_off.pause(closed.abandoned)

    def state_dict(self) -> Arrays:
        """The measured drop-out and the failures in a row; only between rounds."""
        return {
            "over_selection": np.array([self.over_selection.lost, self.over_selection.seen]),
            "failures": np.array(self.back_off.count),
        }

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.over_selection.lost, self.over_selection.seen = (float(v) for v in arrays["over_selection"])
        self.back_off.count = int(arrays["failures"])

    def recover(self, records: Iterable[Record], profiles: Mapping[str, Array] | None = None) -> int:
        """Replay the journal from where the session stands; an open round is abandoned. How many were (0 or 1).

        Where that cannot be written (a full disk), a StoreError says so and the call can be made again.
        """
        for record in records:
            if record.round != self.session.index:
                continue
            if record.kind == "tell":
                replay_tell(self.session, record)
                self._open = None
            elif record.kind == "ask" and self._open is None:
                cohort = replay_ask(self.session, record, profiles)
                self._open = _Open(cohort, self.clock(), Expected(record.round, frozenset()))
        if self._open is None:
            return 0
        many = self._open.cohort.clients.size
        late, zero = np.full(many, Outcome.LATE, np.int8), np.zeros(many)
        self.settle(Closed(self.session.index, "server-restarted", True, (), late, zero))
        return 1

    def _closed(self, round_: _Open, reason: str) -> Closed:
        clients = np.sort(round_.cohort.clients)
        abandoned = len(round_.accepted) < self.policy.quorum
        waited = min(self.clock() - round_.start, self.policy.deadline)
        outcome, duration = np.full(clients.size, Outcome.LATE, np.int8), np.full(clients.size, max(waited, 0.0))
        reasons = {c: r for c, r in round_.gone.items() if c not in round_.accepted}
        for at, client in enumerate(clients.tolist()):
            if client in round_.accepted:
                outcome[at] = Outcome.FILTERED if abandoned else Outcome.OK
                duration[at] = max(round_.accepted[client][1] - round_.start, 0.0)
            elif client in round_.gone:
                outcome[at] = Outcome.FAILED
            elif client in round_.rejected:
                outcome[at], reasons[client] = Outcome.REJECTED, round_.rejected[client]
        kept = () if abandoned else tuple(round_.accepted[c][0] for c in sorted(round_.accepted))
        reason = "below-quorum" if abandoned else reason
        return Closed(self.session.index, reason, abandoned, kept, outcome, duration, reasons)

    def _note(self, reply: Any, reason: str) -> None:
        """Into the sender's record, if the sender can be told and was asked."""
        client = reply.get("client") if type(reply) is dict else None
        if type(client) is not int:
            return
        round_ = self._open
        if round_ is not None and client in round_.expected.asked and reason not in ("duplicate", "stale-round"):
            round_.rejected.setdefault(client, reason)
        said = reply.get("round")
        if type(said) is int and self._pending.pop((said, client), None) is not None:
            self._came += 1  # after all

    def _learn(self, round_: _Open, closed: Closed) -> None:
        """Fates that are known now; those cut off by an early close stay pending until their deadline."""
        if closed.reason == "server-restarted":
            return
        late = np.sort(round_.cohort.clients)[closed.outcome == Outcome.LATE].tolist()
        gone = int((closed.outcome == Outcome.FAILED).sum())
        came = int(closed.outcome.size) - len(late) - gone
        over = self.clock() >= round_.start + self.policy.deadline
        if not over:
            until = round_.start + self.policy.deadline
            self._pending.update({(closed.index, client): until for client in late})
        self.over_selection.learn(self._came + came, self._lost + gone + (len(late) if over else 0))
        self._came = self._lost = 0

    def _expire(self, now: float) -> None:
        """Those whose deadline is over are lost; the deadlines are in the order of the rounds."""
        while self._pending:
            key, until = next(iter(self._pending.items()))
            if now < until:
                break
            del self._pending[key]
            self._lost += 1


@dataclass(slots=True)
class _Open:
    """The round that is open."""

    cohort: Cohort
    start: float
    expected: Expected
    accepted: dict[int, tuple[dict[str, Any], float]] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)


def _column(clients: NDArray[np.int64], values: Mapping[int, Mapping[str, Any]], name: str, width: int) -> Array:
    """One signal of everybody that was asked, NaN where it was not told."""
    out = np.full((clients.size, width) if width else clients.size, np.nan, np.float32 if width else np.float64)
    for at, client in enumerate(clients.tolist()):
        if client in values and name in values[client]:
            out[at] = values[client][name]
    return out
