"""What survives a crash, and how a new process carries on. One rule for every backend.

    * A cohort is in the journal before anything is sent, so an open round is found there and the same cohort is
      dispatched again.
    * When a round has been aggregated, its result and the new state are made durable before the journal is told:
      a round that was closed is not trained again.
    * Nothing that was acknowledged is lost: what the journal holds is never asked or told differently.
    * A record that cannot be read ends no run: the journal is cut before it and the damaged file kept
      (`storage.salvage`); the run goes on from the newest checkpoint that was made before the damage.

A checkpoint holds the session as it was before the round, the state after it, and the result between the two, so one
file a round is enough. Where the same questions get the same answers again (the simulator) an open round is simply
asked again and compared with the journal; elsewhere what the selector read is kept in `asks` before it chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcohort.core.columns import part, prefixed
from fedcohort.core.pack import pack
from fedcohort.errors import JournalDamaged, StateMismatch, VersionMismatch
from fedcohort.rounds.replay import SESSION, ask_again, ask_columns, result_columns, result_from
from fedcohort.rounds.session import Session
from fedcohort.selectors.wrappers.base import NEUTRAL
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Array, Arrays, Cohort, Index, Probed, RoundResult

ASK, RESULT, PROFILE, PROBE = "ask.", "result.", "profile.", "probe."
DIRECTIVE, INCLUSION = "directive.", "inclusion"  # columns of an ask record


@dataclass(slots=True)
class Recalled:
    """An ask of an earlier process: the journal's record, and what the selector read."""

    arrays: Arrays
    meta: Mapping[str, Any]
    profiles: Arrays
    answers: Arrays

    def ask(self, session: Session) -> Cohort:
        """Commit the same cohort again."""
        return ask_again(session, self.arrays, self.meta, self.profiles, self.answers)


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of a round: what the selector and the journal are told."""

    result: RoundResult
    row: dict[str, Any]
    reasons: dict[int, str]
    out: dict[int, str]  # reasons of clients that wait to be told later


@dataclass
class Recovery:
    """The files of one run; without any, nothing is kept."""

    checkpoints: Snapshots | None = None
    asks: Snapshots | None = None  # only for backends that cannot repeat an answer
    every: int = 1  # rounds between two checkpoints
    identity: Mapping[str, Any] = field(default_factory=dict)  # what must be the same when a run is resumed
    resumed: bool = False
    _before: Arrays | None = None  # the session before the open round
    _profiles: Arrays = field(default_factory=dict)

    def before(self, session: Session) -> None:
        """A round begins."""
        self._before = session.state_dict() if self.checkpoints is not None else None

    def keep_ask(self, index: int, profiles: Arrays, probed: Probed | None) -> None:
        """Keep what the selector is about to read, before the cohort that it leads to is committed."""
        self._profiles = profiles
        if self.asks is None:
            return
        arrays: Arrays = {PROFILE + k: np.asarray(v) for k, v in profiles.items()}
        if probed is not None:
            arrays["probed"] = probed.clients
            arrays.update({PROBE + k: np.asarray(v) for k, v in probed.signals.columns().items()})
        if arrays:
            self.asks.save(index, arrays, {})

    def recall(self, index: int, journal: Journal | None) -> Recalled | None:
        """The ask that an earlier process committed for this round; looked for once, after a start."""
        if not self.resumed or self.asks is None or journal is None:
            return None
        found = next((r for r in journal.records(kind="ask") if r.round == index), None)
        if found is None:
            return None
        kept = self.asks.at(index)
        arrays, meta = found.unpack()
        self._profiles = part(kept[0], PROFILE) if kept else {}
        return Recalled(arrays, meta, self._profiles, part(kept[0], PROBE) if kept else {})

    def save(
        self, session: Session, state: Callable[[], Arrays], closing: Closing, *, repeatable: bool, last: bool
    ) -> None:
        """Make the end of a round durable, before the journal learns of it."""
        result = closing.result
        done = result.index + 1
        if self.checkpoints is None or self._before is None or (done % self.every and not last):
            return
        assert session.asked is not None
        known, meta = ask_columns(session.asked)
        arrays = {**state(), **prefixed(SESSION, self._before), **prefixed(ASK, known)}
        arrays.update(prefixed(RESULT, result_columns(result)))
        if not repeatable:
            arrays.update(prefixed(PROFILE, self._profiles))
        text: dict[str, Any] = {**self.identity, "ask": meta, "row": dict(closing.row)}
        text |= {"reasons": _texts(closing.reasons), "out": _texts(closing.out)}
        text["score"] = result.score if np.isfinite(result.score) else None
        if session.journal is not None:
            text["journal"] = [session.journal.length, session.journal.head.hex()]
        self.checkpoints.save(done, arrays, text)

    def load(self, session: Session, profiles: Mapping[str, Array] | None) -> tuple[Arrays, Closing] | None:
        """Bring the session to the end of the newest checkpoint's round, not told yet; the state and that end.

        `profiles` are those of a backend that can repeat them; others are in the checkpoint.
        """
        self.resumed = True
        found = self._checkpoint(session.journal, repeatable=profiles is not None)
        if found is None:
            return None
        arrays, meta = found
        if "ask" not in meta:
            rule = "an earlier version wrote it, with less in it than is needed to continue"
            raise VersionMismatch("snapshot", rule, "remove the snapshots to start from the beginning")
        self._check(session, arrays, meta)
        session.load_state_dict(part(arrays, SESSION))
        ask_again(session, part(arrays, ASK), meta["ask"], part(arrays, PROFILE) if profiles is None else profiles)
        result = result_from(session.index, part(arrays, RESULT), meta["score"], None)
        return arrays, Closing(result, meta["row"], _numbers(meta["reasons"]), _numbers(meta["out"]))

    def _checkpoint(self, journal: Journal | None, *, repeatable: bool) -> tuple[Arrays, dict[str, Any]] | None:
        """The checkpoint to go on from; where the journal was cut, the newest that was made before the damage.

        Where there is none, a run that can be repeated begins again (what is left of its journal is compared on the
        way), and a deployment goes on from its newest checkpoint: nobody can train those rounds again. The journal then
        gets the session's state as a record, so that all later choices can be replayed from there.
        """
        if self.checkpoints is None:
            return None
        newest = self.checkpoints.latest()
        if journal is None or not journal.just_cut or newest is None:
            return newest[1:] if newest else None
        for index, arrays, meta in self.checkpoints.newest():
            if held(journal, arrays, meta):
                self.checkpoints.set_aside(index)
                return arrays, meta
        if repeatable:
            self.checkpoints.set_aside(-1)
            return None
        _, arrays, meta = newest
        journal.append("state", -1, _before(arrays), {})
        return arrays, meta

    def _check(self, session: Session, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        for key, value in self.identity.items():
            if meta.get(key) != value:
                raise StateMismatch(
                    "snapshot", f"it was made with another {key}", "resume with the same data, settings and seed"
                )
        journal = session.journal
        if journal is not None and not held(journal, arrays, meta):
            raise JournalDamaged(
                f"journal {journal.path}",
                "it lacks records that were there when the snapshot was made",
                "restore it from a copy, or remove the snapshots to start from the beginning",
            )


def asked_again(clients: Index, journal: JournalReader | None) -> Cohort:
    """Clients of several asks as one cohort, each with what the selector directed when it was asked last."""
    given: dict[int, dict[str, float]] = {int(client): {} for client in clients}
    for record in journal.records("ask") if journal is not None else ():
        arrays, _ = record.unpack()
        columns = {n: c for n, c in arrays.items() if n == INCLUSION or n.startswith(DIRECTIVE)}
        for row, client in enumerate(arrays["clients"].tolist()):
            if client in given:
                given[client] = {n: float(c[row]) for n, c in columns.items()}
    table: Arrays = {}
    for name in sorted({name for row in given.values() for name in row}):
        usual = NEUTRAL.get(name.removeprefix(DIRECTIVE), np.nan)
        table[name] = np.array([row.get(name, usual) for row in given.values()])
    return Cohort(clients, part(table, DIRECTIVE), table.get(INCLUSION))


def held(journal: JournalReader, arrays: Arrays, meta: Mapping[str, Any]) -> bool:
    """Whether the journal still has what it had when this checkpoint was made, or goes on from its session's state."""
    if "journal" not in meta or journal.holds(int(meta["journal"][0]), bytes.fromhex(meta["journal"][1])):
        return True
    state = pack(_before(arrays), {})
    return any(record.body == state for record in journal.records("state"))


def _before(arrays: Arrays) -> Arrays:
    """The session as it was before the round of a checkpoint."""
    return {name: column for name, column in arrays.items() if name.startswith(SESSION)}


def _numbers(reasons: Mapping[str, str]) -> dict[int, str]:
    return {int(k): v for k, v in reasons.items()}


def _texts(reasons: Mapping[int, str]) -> dict[str, str]:
    return {str(k): v for k, v in reasons.items()}
