"""The round engine: asks, dispatches through a backend, validates, closes, aggregates, tells. There is exactly one.

::

    engine = RoundEngine(session, method, backend, RoundPolicy(cohort_size=10, deadline=120.0), model)
    row = engine.round()                       # the round's numbers; engine.model has moved

It owns over-selection, closing, `min_replies`, back-off, validation, the server's own signals, what a method may know,
and the call of tell; a backend (the simulator, Flower) only carries work out and replies in.

Synchronous rounds close at `close_after` accepted replies (by default `cohort_size`), when everybody has answered, or
at the deadline. With fewer than `min_replies` accepted the round is abandoned: the model stays, and a pause follows
that doubles while rounds keep failing.

Asynchronous rounds (`buffer_size`): `cohort_size` clients are always out, and the model moves at every `buffer_size`-th
accepted update, whichever model it was computed on; an update says by how many versions that model is out of date
(`Updates.extras["staleness"]`).
    * A selector hears of a client when its part has ended, so a result may have rows of several cohorts; everybody
      that was asked is told once, and nobody is asked again while out.
    * `deadline` is how long one client may take.
    * A round that can no longer get enough updates ends when a client fails: its place in the cohort is given to
      somebody else, and updates that are here already wait for the next one.

Replies are aggregated in ascending client order: the order of arrival cannot change a bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedcohort.core.columns import part, prefixed
from fedcohort.core.plain_text import shown
from fedcohort.errors import BadParameter
from fedcohort.protocols import Method
from fedcohort.rounds.aggregation import aggregate, server_signals
from fedcohort.rounds.backend import Arrivals, Backend, Dispatch, Fates
from fedcohort.rounds.history import History, read_history
from fedcohort.rounds.outstanding import Landed, Outstanding, with_extras
from fedcohort.rounds.over_selection import BackOff, OverSelection
from fedcohort.rounds.policy import RoundPolicy
from fedcohort.rounds.recovery import Closing, Recovery, asked_again
from fedcohort.rounds.sent_models import REBUILT, SentModels, reads_models, whole
from fedcohort.rounds.session import Session
from fedcohort.rounds.usage import Usage
from fedcohort.rounds.validation import Limits
from fedcohort.signals import of_side
from fedcohort.types import SENT, STALENESS, Arrays, Cohort, Index, Model, Outcome, Plan, Probed, RoundResult, Signals


@dataclass(slots=True)
class OpenRound:
    """A round under way."""

    work: Dispatch
    measured: frozenset[str]  # what the method wants clients to report
    start: float  # the clock when the work was sent out
    probed: int = 0
    elapsed: float = 0.0  # seconds since the work was sent out
    timed_out: bool = False
    owed: Index = field(default_factory=lambda: np.empty(0, np.int64))  # clients that are waited for: `use_floor`


class RoundEngine:
    """One selector and one method at work on the clients of one backend."""

    def __init__(
        self,
        session: Session,
        method: Method,
        backend: Backend,
        policy: RoundPolicy,
        model: Model,
        *,
        limits: Limits | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        if policy.buffer_size and not method.asynchronous:
            raise BadParameter(
                f"method {method.name} with buffer_size",
                "it reads its own state as it was when the client left, and that has changed since",
                "use fedbuff, or leave buffer_size out (scaffold(option='I') can do it)",
            )
        self.session, self.method, self.backend, self.policy, self.model = session, method, backend, policy, model
        self.limits, self.recovery = limits or Limits(), recovery or Recovery()
        self.over_selection, self.back_off = OverSelection(policy.over_select), BackOff(policy.back_off)
        self.out, self.version = Outstanding(), 0
        self.sent = SentModels()  # asynchronous, where somebody looks at uploaded models
        self.history, self.usage = History(backend.population), Usage()
        self.refused: Counter[str] = Counter()  # reason codes of everything that was not accepted
        self.ended = ""  # why the last round ended
        self.open_round: OpenRound | None = None
        self.stops: Callable[[float], bool] = lambda score: False  # whether a round of this score is the last one
        self._again = False  # the open round's cohort is one that an earlier process had asked

    def round(self, *, last: bool = False) -> dict[str, Any]:
        """One round, from ask to tell; its numbers. `last` asks for a final evaluation."""
        rnd = self.open()
        while (why := self.due()) is None:
            until, enough = self._wait_for(rnd)
            self.receive(self.backend.replies(until, enough))
        return self.close(why, last=last)

    def open(self) -> OpenRound:
        """Choose a cohort, commit it to the journal, and send it out."""
        index, backend = self.session.index, self.backend
        self.recovery.before(self.session)
        probed = Counter[str]()
        cohort = self._ask(probed)
        left = self._asked_before(cohort)
        whole = asked_again(np.concatenate([left, cohort.clients]), self.session.journal) if left.size else cohort
        plan, measured = self._prepared(index, whole)
        self._send(Dispatch(index, self.model, whole, plan, self._needs, again=self._again or left.size > 0))
        self.open_round = OpenRound(
            Dispatch(index, self.model, cohort, plan, self._needs), measured, backend.clock, probed["clients"]
        )
        self.open_round.owed = cohort.clients[self.usage.owed(cohort.clients, self.policy.use_floor)]
        return self.open_round

    def receive(self, arrivals: Arrivals) -> None:
        """Take what has arrived: each reply is validated on its own."""
        assert self.open_round is not None
        self.open_round.elapsed, self.open_round.timed_out = arrivals.elapsed, arrivals.timed_out
        self.refused.update(self.out.take(arrivals, self.limits, self.model.buffers))
        if self.policy.buffer_size and arrivals.timed_out:
            self._expire()

    def due(self) -> str | None:
        """Why the open round ends now; None when it continues."""
        assert self.open_round is not None
        running = int(self.out.running.sum())
        if self.policy.buffer_size:
            return self._buffer_due(running)
        if running and self._enough(self._replies_wanted()) and not self._owing():
            return "enough-replies"
        if not running:
            return "all-answered"
        return "deadline" if self.open_round.timed_out else None

    def close(self, why: str, *, last: bool = False) -> dict[str, Any]:
        """End the open round: aggregate, evaluate, make it durable, and tell the selector."""
        rnd, self.open_round, self.ended = self.open_round, None, why
        assert rnd is not None
        self._review()
        before, size = whole(self.model), self.model.params.size
        landed, info, fates = self._buffered(rnd, why) if self.policy.buffer_size else self._synchronous(rnd)
        sent = self.sent.of(landed.version, before) if self._needs & REBUILT else before
        landed.signals.update(server_signals(self._needs, landed, sent, size, self.backend))
        self.sent.forget(self.out.rows)
        self._learn(landed, fates, rnd.timed_out)
        score, measured = self.backend.evaluate(rnd.work.index, self.model, last=last)
        last = last or self.stops(score)
        result = RoundResult(
            index=rnd.work.index,
            clients=landed.cohort.clients,
            outcome=landed.outcome,
            duration=landed.seconds,
            signals=Signals(landed.signals),
            score=score,
            probed=self.session.asked.probed if self.session.asked else None,
            model=self.model.params if "model" in self._needs else None,
        )
        row = self._row(rnd, result, measured, info)
        reasons = {client: shown(why) for client, why in landed.reasons.items()}
        closing = Closing(result, row, reasons, self.out.reasons)
        self.recovery.save(self.session, self.state_dict, closing, repeatable=self.backend.repeatable, last=last)
        return self._tell(closing)  # the journal is told when the end of the round is durable

    def resume(self) -> int:
        """Go back to where an earlier process stopped; how many rounds are done."""
        backend, session = self.backend, self.session
        profiles = backend.profiles(of_side(self._needs, "profile")) if backend.repeatable else None
        found = self.recovery.load(session, profiles)
        if found is None:
            return 0
        state, closing = found
        if session.journal is not None:
            self.history = read_history(session.journal, backend.population, upto=session.index)
            self.usage = self.history.usage()
        self.load_state_dict(state, closing.out)
        model = self.model.params if "model" in self._needs else None
        self._tell(replace(closing, result=replace(closing.result, model=model)))
        return session.index

    def _tell(self, closing: Closing) -> dict[str, Any]:
        """Let journal, selector and history know of a round."""
        result = closing.result
        self.session.tell(result, closing.row, closing.reasons)
        used = result.clients[result.outcome == Outcome.OK]
        self.history.append(closing.row, result.clients, closing.reasons, used)
        self.usage.add(result.clients, used)
        self.history.population = self.backend.population
        self.backend.told(result)
        return closing.row

    # -- asking ----------------------------------------------------------------------------------------------------

    @property
    def _size(self) -> int:
        return int(self.model.params.size)

    @property
    def _wanted(self) -> int:
        """Replies wanted in the round that is open or comes next."""
        return self.policy.wanted(self.session.index, self.backend.population)

    @property
    def _needs(self) -> frozenset[str]:
        """What the selector reads in this round: one that stops measuring (FedACS) needs less later."""
        return self.session.selector.needs

    def _ask(self, probed: Counter[str]) -> Cohort:
        """The cohort of this round; after a crash the one that the journal has."""
        backend, index = self.backend, self.session.index
        available = backend.available(index)
        found = self.recovery.recall(index, self.session.journal)
        self._again = found is not None
        if found is not None:
            return found.ask(self.session)
        profiles = backend.profiles(of_side(self._needs, "profile"))
        self.recovery.keep_ask(index, profiles, None)

        def probe(clients: Index, names: frozenset[str]) -> Probed:
            answers = backend.probe(index, self.model, clients, names)
            probed["clients"] = int(clients.size)
            self.recovery.keep_ask(index, profiles, answers)
            return answers

        size = max(self.policy.cohort_size - int(self.out.running.sum()), 0) if self.policy.buffer_size else None
        return self.session.ask(
            available,
            population=backend.population,
            clock=backend.clock,
            profiles=profiles,
            probe=probe,
            size=self.over_selection.ask_for(self._wanted) if size is None else size,
        )

    def _asked_before(self, cohort: Cohort) -> Index:
        """Those that an earlier process had sent out and whom nobody is waiting for now: they are asked again."""
        if not self.recovery.resumed:
            return np.empty(0, np.int64)
        self.recovery.resumed = False
        return np.setdiff1d(np.setdiff1d(self.session.out, cohort.clients), self.out.clients)

    def _prepared(self, index: int, cohort: Cohort) -> tuple[Plan, frozenset[str]]:
        """How this cohort trains, and which of what it measures the method wants to hear."""
        usual = self.backend.plan(index, cohort)
        plan = self.method.prepare(usual, self.model, cohort.clients)
        reported = usual.objective if plan.objective != usual.objective else None  # as probes do: the task's own
        return replace(plan, measure=plan.measure | of_side(self._needs, "client"), reported=reported), plan.measure

    def _send(self, work: Dispatch) -> None:
        self.backend.dispatch(work)
        if work.cohort.clients.size:
            self.out.depart(work.cohort, work.plan, self.backend.clock, self.version)
            if self.policy.buffer_size and (work.needs & REBUILT or reads_models(self.method)):
                self.sent.keep(self.version, work.model)

    # -- closing ---------------------------------------------------------------------------------------------------

    def _wait_for(self, rnd: OpenRound) -> tuple[float, int]:
        """Until when to wait, and for how many replies."""
        if self.policy.buffer_size:
            left = self.out.rows["departed"][self.out.running]
            return float(left.min()) + self.policy.deadline, self.policy.buffer_size - self.out.accepted
        return rnd.start + self.policy.deadline, max(self._replies_wanted() - self.out.accepted, 1)

    def _replies_wanted(self) -> int:
        """Accepted replies at which the open round closes."""
        return self.policy.waits_for(len(self.out), self._wanted)

    def _owing(self) -> bool:
        """Whether somebody is still at work who would otherwise be used too seldom."""
        assert self.open_round is not None
        return bool(np.isin(self.out.clients[self.out.running], self.open_round.owed).any())

    def _buffer_due(self, running: int) -> str | None:
        if not len(self.out):
            return "nobody-out"
        if self._enough(self.policy.buffer_size):
            return "buffer-full"
        lost = ~self.out.running & (self.out.rows["outcome"] != Outcome.OK)
        if lost.any() and self.out.accepted + running < self.policy.buffer_size:
            return "place-free"
        return None if running else "all-answered"

    def _expire(self) -> None:
        """Asynchronous: those that have had their time are late."""
        over = self.out.running & (self.out.rows["departed"] + self.policy.deadline <= self.backend.clock)
        late = self.out.expire(over, np.full(len(self.out), self.policy.deadline))
        self.out.fail(self.backend.give_up(late, timed_out=True).lost)

    def _enough(self, replies: int) -> bool:
        """Whether so many are accepted, also by the review: a reply that it refuses must not close the round."""
        if self.out.accepted >= replies:
            self._review()
        return self.out.accepted >= replies

    def _review(self) -> None:
        """Refuse what does not fit the other replies; a copy of them is made only where there are several batches."""
        found = self.out.replies
        self.out.reject(self.backend.review(found[0][0] if len(found) == 1 else self.out.waiting(self._size)))

    def _synchronous(self, rnd: OpenRound) -> tuple[Landed, dict[str, float], Fates]:
        out, idle = self.out, not len(self.out)
        late = out.expire(out.running, np.full(len(out), rnd.elapsed))
        fates = self.backend.give_up(late, timed_out=rnd.timed_out)
        out.fail(fates.lost)
        enough = idle or out.accepted >= self.policy.min_replies
        self.backend.finish(idle=idle, pause=self.back_off.pause(not enough))
        landed = replace(out.land(np.ones(len(out), np.bool_), self._size), cohort=rnd.work.cohort)
        landed = replace(landed, updates=self.usage.weighted(landed.updates, self.policy.weight_by_use))
        return landed, self._aggregate(rnd, landed, rnd.work.plan, enough=enough), fates

    def _buffered(self, rnd: OpenRound, why: str) -> tuple[Landed, dict[str, float], Fates]:
        out, ended = self.out, ~self.out.running
        landed = out.land(ended & (out.rows["outcome"] != Outcome.OK) if why == "place-free" else ended, self._size)
        if why == "nobody-out":
            self.backend.finish(idle=True, pause=0.0)
            return landed, {}, Fates()
        ages = (self.version - landed.version).astype(np.float64)
        extras: Arrays = {STALENESS: ages}
        if reads_models(self.method):
            sent = self.sent.of(landed.version, whole(self.model))[..., : self._size]
            extras[SENT] = np.broadcast_to(sent, landed.updates.delta.shape)
        landed = replace(landed, updates=with_extras(landed.updates, extras))
        rates = np.unique(landed.lr)  # with which these were sent out; one number where they are the same
        plan = replace(rnd.work.plan, lr=landed.lr if rates.size > 1 else float(rates[0]), correction=None)
        before = self.model.params
        info = self._aggregate(rnd, landed, plan, enough=len(landed.updates) > 0)
        info.pop("abandoned", None)  # no update has come: there is no round to give up
        moved = not np.array_equal(before, self.model.params)  # FedDF moves it also while its inner FedBuff waits
        self.version += max(int(info.get("method.moves", moved)), int(moved))
        info |= {"in_flight": float(len(out)), "version": float(self.version)}
        return landed, info | ({STALENESS: float(ages.mean())} if ages.size else {}), Fates()

    def _aggregate(self, rnd: OpenRound, landed: Landed, plan: Plan, *, enough: bool) -> dict[str, float]:
        seed, index = self.session.seed, rnd.work.index
        self.model, info = aggregate(
            self.method, self.model, landed, plan, rnd.measured, self.backend, seed, index, enough=enough
        )
        return info

    def _learn(self, landed: Landed, fates: Fates, timed_out: bool) -> None:
        """What became of those that were asked, for the drop-out that over-selection follows."""
        failed, late = (int((landed.outcome == o).sum()) for o in (Outcome.FAILED, Outcome.LATE))
        gone = failed - len(fates.lost) + fates.gone + (late if timed_out else 0)
        self.over_selection.learn(landed.outcome.size - failed - late + fates.came, gone)

    def _row(
        self, rnd: OpenRound, result: RoundResult, measured: dict[str, Any], info: dict[str, float]
    ) -> dict[str, Any]:
        """The round's numbers (JSON has no NaN: what was not measured is left out)."""
        row = {
            "round": float(rnd.work.index),
            "clock": self.backend.clock,
            "score": result.score,
            "asked": float(result.clients.size),
            **{o.name.lower(): float((result.outcome == o).sum()) for o in Outcome},
            "probed": float(rnd.probed),
            **self.backend.describe(result),
            **measured,
            **info,
        }
        return {k: v for k, v in row.items() if not (isinstance(v, float) and not math.isfinite(v))}

    # -- what survives ---------------------------------------------------------------------------------------------

    def state_dict(self) -> Arrays:
        """Model, method, backend and what was learned of the drop-out; the session is stored apart."""
        arrays: Arrays = {
            "model.params": self.model.params,
            "model.buffers": self.model.buffers,
            "model.counters": self.model.counters,
            "rounds": np.array([self.over_selection.lost, self.over_selection.seen, self.back_off.count]),
            "version": np.array(self.version),
        }
        arrays.update(prefixed("method.", self.method.state_dict()))
        arrays.update(prefixed("backend.", self.backend.state_dict()))
        if self.backend.repeatable:
            arrays.update(prefixed("out.", self.out.state_dict(self._size)))
            arrays.update(prefixed("sent.", self.sent.state_dict()))
        return arrays

    def load_state_dict(self, arrays: Arrays, reasons: dict[int, str]) -> None:
        """Inverse of :meth:`state_dict`; `reasons` are of those that are out."""
        self.method.load_state_dict(part(arrays, "method."))
        self.backend.load_state_dict(part(arrays, "backend."))
        self.model = Model(**part(arrays, "model."))
        self.sent.load_state_dict(part(arrays, "sent."))
        self.over_selection.lost, self.over_selection.seen = (float(v) for v in arrays["rounds"][:2])
        self.back_off.count, self.version = int(arrays["rounds"][2]), int(arrays["version"])
        self.out.load_state_dict(part(arrays, "out."), reasons)
