"""Give a session again what it was asked and told, from what was written down. The only place that does so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedcohort.core.columns import pack_slots, part, unpack_slots
from fedcohort.errors import JournalDamaged
from fedcohort.rounds.session import Session
from fedcohort.storage.journal_reader import Record, damaged
from fedcohort.storage.salvage import KINDS
from fedcohort.types import Array, Arrays, Cohort, Index, Probed, Round, RoundResult, Signals

SESSION, PROBE, SIGNAL = "session.", "probe.", "signal."


def ask_again(
    session: Session,
    arrays: Mapping[str, Array],
    meta: Mapping[str, Any],
    profiles: Mapping[str, Array] | None = None,
    answers: Mapping[str, Array] | None = None,
) -> Cohort:
    """Ask with what was known then; the cohort that this selector chooses now.

    `arrays` and `meta` are those of an ask record; `answers` are probe columns that the record has only digests of.
    """
    total = int(meta["population"])
    available = np.arange(total) if bool(arrays["everybody"]) else unpack_slots(arrays["available"], total)
    columns = {**part(arrays, PROBE), **(answers or {})}

    def probe(clients: Index, names: frozenset[str]) -> Probed:
        return Probed(arrays.get("probed", clients[:0]), Signals({n: columns[n] for n in names if n in columns}))

    return session.ask(
        available,
        population=total,
        clock=float(meta["clock"]),
        profiles=profiles,
        probe=probe,
        size=int(meta["size"]),
    )


def tell_again(
    session: Session, index: int, arrays: Mapping[str, Array], meta: Mapping[str, Any], whole: Mapping[str, Array]
) -> None:
    """Tell what was told then. `whole` are signal columns (and the model) that the record has only digests of."""
    session.tell(
        result_from(
            index,
            {**arrays, **{SIGNAL + k: v for k, v in whole.items() if k != "model"}},
            meta["score"],
            whole.get("model"),
        ),
        meta["metrics"],
        {int(k): v for k, v in meta["reasons"].items()},
    )


def result_from(index: int, arrays: Mapping[str, Array], score: float | None, model: Array | None) -> RoundResult:
    """A round's result from its columns."""
    columns = {k: v for k, v in part(arrays, SIGNAL).items() if not k.endswith(".sha256")}
    return RoundResult(
        index=index,
        clients=arrays["clients"],
        outcome=arrays["outcome"],
        duration=arrays["duration"],
        signals=Signals(columns),
        score=float("nan") if score is None else float(score),
        model=model,
    )


def ask_columns(asked: Round) -> tuple[Arrays, dict[str, Any]]:
    """What was known when a round was asked for, as :func:`ask_again` takes it (whole vectors included)."""
    everybody = asked.available.size == asked.population
    arrays: Arrays = {"everybody": np.array(everybody)}
    arrays["available"] = np.empty(0, np.int64) if everybody else pack_slots(asked.available, asked.population)
    if asked.probed is not None:
        arrays["probed"] = asked.probed.clients
        arrays.update({PROBE + k: np.asarray(v) for k, v in asked.probed.signals.columns().items()})
    return arrays, {"clock": asked.clock, "size": asked.size, "population": asked.population}


def result_columns(result: RoundResult) -> Arrays:
    """A round's result as columns, as :func:`result_from` takes them."""
    arrays: Arrays = {"clients": result.clients, "outcome": result.outcome, "duration": np.asarray(result.duration)}
    arrays.update({SIGNAL + k: np.asarray(v) for k, v in result.signals.columns().items()})
    return arrays


class Known:
    """What the selector read beside the records: here profile columns that never change. Flower has one of its own."""

    def __init__(self, profiles: Mapping[str, Array] | None = None) -> None:
        self._profiles = dict(profiles or {})

    def note(self, kind: str, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """A record went by."""

    def profiles(self, population: int) -> Arrays:
        """Profile columns for a population of this size."""
        del population
        return self._profiles

    def whole(self, index: int, arrays: Arrays) -> Arrays:
        """The model-sized columns of which this record has only digests, under the same names."""
        del index, arrays
        return {}


def replay(session: Session, records: Iterable[Record], known: Known) -> list[Index]:
    """Let a fresh session choose again all that a journal holds; raises JournalDamaged at the first difference."""
    cohorts: list[Index] = []
    for record in records:
        arrays, meta = record.unpack()
        if record.kind not in KINDS:
            raise damaged(record.journal, f"record {record.seq} is of the unknown kind {record.kind!r}")
        known.note(record.kind, arrays, meta)
        if record.kind == "state":  # records before it are lost; the choices behind it follow from this state
            session.load_state_dict(part(arrays, SESSION))
        if record.kind == "ask":
            whole = known.whole(record.round, arrays)
            cohort = ask_again(session, arrays, meta, known.profiles(int(meta["population"])), part(whole, PROBE))
            if not np.array_equal(cohort.clients, arrays["clients"]):
                raise JournalDamaged(
                    f"round {record.round}",
                    f"seed and journal give the cohort {cohort.clients[:12]}, the journal has {arrays['clients'][:12]}",
                    "do not trust this run",
                )
            cohorts.append(cohort.clients)
        elif record.kind == "tell":
            whole = known.whole(record.round, arrays)
            tell_again(session, record.round, arrays, meta, {**part(whole, SIGNAL), **_model(whole)})
    return cohorts


def _model(whole: Arrays) -> Arrays:
    return {"model": whole["model"]} if "model" in whole else {}
