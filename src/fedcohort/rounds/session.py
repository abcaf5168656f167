"""A session: a selector at work. It owns the seed, checks the contract on both sides, and writes the journal.

::

    session = Session(selector, cohort_size=10, seed=1)
    cohort = session.ask(available)          # checked, and journalled before anything is sent
    ...                                      # train, validate, aggregate: whoever runs the round
    session.tell(result)                     # one row per dispatched client, whatever its outcome
    session.close()

In an asynchronous session clients stay out over several rounds: `ask` never asks them a second time, and `tell` has one
row for each that has ended since, once.

With a journal of an earlier process, `ask` and `tell` of rounds that are already in it must give the same record
again, and are not written twice: going on after a crash is doing the lost rounds again.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort import signals as catalogue
from fedcohort.core.columns import pack_slots
from fedcohort.core.constraints import Count, CountOrZero
from fedcohort.core.pack import pack
from fedcohort.core.rng import generator
from fedcohort.core.table import TableError
from fedcohort.errors import (
    CohortError,
    JournalDamaged,
    MissingSignal,
    OutOfTurn,
    RunWarning,
    StateMismatch,
    check,
    checked,
)
from fedcohort.protocols import Prober, Selector
from fedcohort.rounds.missing_news import MissingNews
from fedcohort.rounds.policy import Privacy
from fedcohort.rounds.session_checks import (
    ask_size,
    check_needs,
    check_result,
    check_selector,
    checked_cohort,
    profile_columns,
    result_arrays,
    slots_of,
)
from fedcohort.storage.journal import Journal
from fedcohort.types import Array, Arrays, Cohort, Index, Probed, Round, RoundResult, Signals

Probe = Callable[[Index, frozenset[str]], Probed]


class Session:
    """A selector at work: one selector, one seed, one round after the other.

    `cohort_size` clients are asked per round; `journal` keeps what was asked and told; `provides` are the signals that
    can be had (None: any), up to the privacy level `max_privacy`; `asynchronous` lets clients stay out over rounds.

    >>> import numpy as np
    >>> from fedcohort import Outcome, RoundResult, Session, make_selector
    >>> session = Session(make_selector("uniform"), cohort_size=2, seed=0)
    >>> cohort = session.ask(available=np.arange(5))
    >>> outcome = np.array([Outcome.OK, Outcome.LATE], np.int8)
    >>> session.tell(RoundResult(session.index, cohort.clients, outcome, duration=np.array([1.5, 9.0])))
    >>> cohort.clients.size, session.index
    (2, 1)
    """

    @checked
    def __init__(
        self,
        selector: Selector,
        *,
        cohort_size: Count,
        seed: CountOrZero,
        journal: Journal | None = None,
        provides: frozenset[str] | None = None,
        max_privacy: Privacy = "P2",
        asynchronous: bool = False,
    ) -> None:
        self.selector, self.cohort_size, self.seed, self.journal = selector, cohort_size, seed, journal
        self.index, self._observed = 0, -1
        self._news = MissingNews(selector)
        self._asked: Round | None = None
        self.asynchronous = asynchronous
        self._out: Index = np.empty(0, np.int64)  # dispatched and not told yet
        self._closed = False
        self.attach(journal)
        check_selector(selector)
        check_needs(selector, provides, catalogue.PRIVACY_LEVELS.index(max_privacy))

    def attach(self, journal: Journal | None) -> None:
        """Write into this journal, and hold what is in it already against what is done again; before the first ask."""
        self.journal, self._written = journal, _written(journal)

    @property
    def asked(self) -> Round | None:
        """The round that was asked for and not told yet."""
        return self._asked

    @property
    def notes(self) -> list[str]:
        """What the selector learns from and was not told; each was a RunWarning, and `close` writes them down."""
        return list(self._news.notes)

    @property
    def out(self) -> Index:
        """Clients that were asked and not told yet."""
        return self._out

    def ask(
        self,
        available: ArrayLike,
        *,
        population: int | None = None,
        clock: float = 0.0,
        profiles: Mapping[str, Array] | None = None,
        probe: Probe | None = None,
        size: int | None = None,
    ) -> Cohort:
        """Choose the next cohort. `probe` answers a selector's question: (clients, signal names) -> answers."""
        self._in_turn(self._asked is None, "ask", "tell the result of the last round first")
        slots = np.unique(slots_of(available))
        if self._out.size:
            slots = np.setdiff1d(slots, self._out, assume_unique=True)
        total = int(population if population is not None else (slots[-1] + 1 if slots.size else 0))
        check(
            slots.size == 0 or (slots[0] >= 0 and slots[-1] < total),
            f"available slots up to {slots[-1] if slots.size else '-'}",
            f"slots must be between 0 and {total - 1}",
            "pass the population",
        )
        wanted = self.cohort_size if size is None else ask_size(size)
        columns = profile_columns(profiles, total, slots)
        rnd = Round(self.index, wanted, slots, total, clock, Signals(columns, self.selector.needs))
        if isinstance(self.selector, Prober):
            rnd = self._probed(rnd, probe)
        cohort = self.selector.select(rnd, generator(self.seed, "select", self.index))
        cohort = checked_cohort(cohort, rnd, type(self.selector).__name__)
        self._write("ask", _ask_arrays(rnd, cohort), {"clock": clock, "size": rnd.size, "population": total})
        self._asked, self._out = rnd, np.union1d(self._out, cohort.clients)
        return cohort

    def tell(
        self,
        result: RoundResult,
        metrics: Mapping[str, Any] | None = None,
        reasons: Mapping[int, str] | None = None,
    ) -> None:
        """Learn from the round that was asked for. Metrics, and reasons per client, go to the journal only."""
        self._in_turn(self._asked is not None, "tell", "ask for a cohort first")
        assert self._asked is not None
        result = result_arrays(result)
        check_result(result, self.index, self._out, all_of_them=not self.asynchronous)
        ordered = _ordered(result, self.selector.needs, self._asked.probed)
        why = {str(client): reason for client, reason in (reasons or {}).items()}
        meta = {"score": _json(result.score), "metrics": dict(metrics or {}), "reasons": why}
        arrays = {name: column.copy() for name, column in _tell_arrays(ordered).items()}
        if self._observed < self.index:  # not again where it was the journal that failed
            self._observe(ordered)
        for text in self._news.look(self.index, ordered.score, ordered.ok, ordered.signals.columns()):
            warnings.warn(text, RunWarning, stacklevel=2)
        self._write("tell", arrays, meta)
        self._asked, self._out = None, np.setdiff1d(self._out, result.clients)
        self.index += 1

    def _observe(self, result: RoundResult) -> None:
        """Before the journal has it: what the selector refuses was not told, and can be told again."""
        try:
            self.selector.observe(result)
        except KeyError as error:
            name = str(error.args[0]) if error.args else ""
            if name not in self.selector.needs or name in result.signals:
                raise
            raise MissingSignal(
                f"result of round {self.index} without {name!r}",
                f"selector {type(self.selector).__name__} reads it of whoever replied",
                f"tell RoundResult(..., signals=Signals({{{name!r}: one number per client}}))",
            ) from None
        self._observed = self.index

    def close(self, more: Mapping[str, Any] | None = None) -> None:
        """No more rounds. The journal says so, with whatever `more` is to be known; it stays readable."""
        if not self._closed:
            if self._asked is None:
                notes = [*self.notes, *(more or {}).get("notes", [])]
                said = {**(more or {}), **({"notes": notes} if notes else {})}
                self._write("close", {}, {"rounds": self.index, **said})
            self._closed = True

    def state_dict(self) -> Arrays:
        """The round and what the selector learned; only between rounds."""
        self._in_turn(self._asked is None, "state_dict", "tell the result of the open round first")
        own = {"index": np.array(self.index), **({"out": self._out} if self.asynchronous else {})}
        return {**own, **{f"selector.{k}": v for k, v in self.selector.state_dict().items()}}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        own = {k.removeprefix("selector."): v for k, v in arrays.items() if k.startswith("selector.")}
        if set(arrays) - {f"selector.{k}" for k in own} != {"index", *(["out"] if self.asynchronous else [])}:
            raise StateMismatch(f"keys {sorted(arrays)}", "this is not the state of a session", "load another file")
        try:
            self.selector.load_state_dict(own)
        except TableError as error:
            name = type(self.selector).__name__
            raise StateMismatch(f"state of {name}", str(error), "use the selector and version that saved it") from None
        self.index, self._asked = int(arrays["index"]), None
        self._observed = self.index - 1
        self._out = np.asarray(arrays["out"], np.int64).copy() if self.asynchronous else np.empty(0, np.int64)
        self._news = MissingNews(self.selector)
        self._news.recall(self.journal, self.index)

    def _probed(self, rnd: Round, probe: Probe | None) -> Round:
        assert isinstance(self.selector, Prober)
        wanted = np.unique(np.asarray(self.selector.probe(rnd, generator(self.seed, "probe", self.index)), np.int64))
        if wanted.size == 0:
            return rnd
        if not np.isin(wanted, rnd.available).all():
            raise CohortError(
                f"probe of {wanted[:10]}", "only available clients can be probed", "choose from available"
            )
        if probe is None:
            raise MissingSignal(
                f"selector {type(self.selector).__name__}", "it probes clients and nobody answers here", "pass probe="
            )
        answers = probe(wanted, catalogue.of_side(self.selector.needs, "probe"))
        answers = Probed(answers.clients, answers.signals.restrict(self.selector.needs))
        return Round(rnd.index, rnd.size, rnd.available, rnd.population, rnd.clock, rnd.profiles, answers)

    def _in_turn(self, ok: bool, what: str, remedy: str) -> None:
        if self._closed:
            raise OutOfTurn(what, "the session is closed", "start a new one")
        if not ok:
            raise OutOfTurn(what, "ask and tell take turns", remedy)

    def _write(self, kind: str, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        if self.journal is None:
            return
        known = self._written.pop((kind, self.index), None)
        if known is None:
            self.journal.append(kind, self.index, arrays, meta)
        elif known != hashlib.sha256(pack(arrays, meta)).digest() and kind != "close":
            raise JournalDamaged(
                f"{kind} of round {self.index}",
                "doing the round again gave another record than the journal holds",
                "resume with the program, data and seed that started the run, or remove its folder and begin again",
            )


def _written(journal: Journal | None) -> dict[tuple[str, int], bytes]:
    if journal is None:
        return {}
    return {(r.kind, r.round): hashlib.sha256(r.body).digest() for r in journal.records() if r.kind != "open"}


def _ordered(result: RoundResult, needs: frozenset[str], probed: Probed | None) -> RoundResult:
    """Rows in ascending client order, signals blanked where nobody replied and restricted to what was declared."""
    order = np.argsort(result.clients, kind="stable")
    silent = ~result.replied[order]
    columns = {}
    for name, column in result.signals.columns().items():
        if name not in needs:
            continue
        value = np.array(column[order])
        value[silent] = np.nan if value.dtype.kind == "f" else 0
        columns[name] = value
    return RoundResult(
        index=result.index,
        clients=result.clients[order].astype(np.int64),
        outcome=result.outcome[order].astype(np.int8),
        duration=np.asarray(result.duration, np.float64)[order],
        signals=Signals(columns, needs),
        score=float(result.score),
        probed=probed,
        model=result.model if "model" in needs else None,
    )


def _ask_arrays(rnd: Round, cohort: Cohort) -> Arrays:
    arrays: Arrays = {"clients": cohort.clients}
    everybody = rnd.available.size == rnd.population
    arrays["available"] = np.empty(0, np.int64) if everybody else pack_slots(rnd.available, rnd.population)
    arrays["everybody"] = np.array(everybody)
    arrays.update({f"directive.{k}": np.asarray(v) for k, v in cohort.directives.items()})
    arrays.update({f"why.{k}": np.asarray(v) for k, v in cohort.why.items()})
    if cohort.inclusion is not None:
        arrays["inclusion"] = np.asarray(cohort.inclusion)
    if rnd.probed is not None:
        arrays["probed"] = rnd.probed.clients
        arrays.update({f"probe.{k}": v for k, v in _light(rnd.probed.signals.columns()).items()})
    return arrays


def _tell_arrays(result: RoundResult) -> Arrays:
    arrays: Arrays = {"clients": result.clients, "outcome": result.outcome, "duration": result.duration}
    arrays.update({f"signal.{k}": v for k, v in _light(result.signals.columns()).items()})
    return arrays


def _light(columns: Mapping[str, Array]) -> Arrays:
    """Model-sized vectors go into the journal as digests: the server can make them again, and they are large."""
    out: Arrays = {}
    for name, value in columns.items():
        if value.ndim > 1 and catalogue.get(name).bytes <= 0 and name != "insight":
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
            out[f"{name}.sha256"] = np.frombuffer(digest, np.uint8)
        else:
            out[name] = value
    return out


def _json(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
