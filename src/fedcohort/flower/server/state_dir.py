"""The state folder of a deployment: what survives the ServerApp.

::

    state_dir/
        journal.db     who was asked and what came of it; the roster
        snapshots/     a checkpoint after every round: model, selector, strategy, the round's result
        asks/          what the selector read in the open round (profiles, answers to its probe)
        roster/        who is behind which slot, for the day on which the journal is damaged
        vectors/       whole updates, where `keep_updates` asks for them

A process that ends anywhere is followed by one that carries on with the same round (`fedcohort.rounds.recovery`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort import __version__
from fedcohort.core.columns import as_bytes, from_bytes
from fedcohort.core.pack import pack
from fedcohort.errors import StateMismatch
from fedcohort.rounds.recovery import Recovery, held
from fedcohort.signals import MODEL_SIZED
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.storage.run_folder import StateFolder
from fedcohort.storage.snapshots import Snapshots, write_durably
from fedcohort.types import Arrays, RoundResult

ASYNCHRONOUS, ARRAYS, METHOD = "asynchronous", "arrays", "method"  # keys of a journal's header
CONSTANTS = "constants"  # another: digests of the infinite entries of the model, by array
LONGEST = 2**23  # bytes of texts in one roster record; a pack takes up to 2**24


class StateDir:
    """The state folder of one run; without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else StateFolder(folder)
        self.journal: Journal | None = None

    def open(self, header: Mapping[str, Any]) -> bool:
        """Open an earlier run's journal; False where there is none. Another run's folder is refused."""
        if self.folder is None:
            return False
        if not self.folder.begun:
            _check_unused(self.folder)
            return False
        self.journal = Journal.open(self.folder.journal, repair=True, lost=partial(_lost, self.folder))
        try:
            found = self.journal.check_version()
            open_keys = {ARRAYS, METHOD}  # may be missing: in older folders, and with check_shapes=False
            if not (ARRAYS in header and ARRAYS in found):
                open_keys.add(CONSTANTS)
            for key in dict.fromkeys((*header, ASYNCHRONOUS, CONSTANTS)):
                held, now = found.get(key), header.get(key)
                if held != now and not (key in open_keys and None in (held, now)):
                    raise StateMismatch(
                        f"state folder {self.folder.path}", _difference(key, held, now), "use another state_dir"
                    )
        except Exception:
            self.close()
            raise
        return True

    def create(self, header: Mapping[str, Any]) -> None:
        """Start a new journal."""
        if self.folder is not None:
            self.folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # nobody else on this machine reads it
            self.journal = Journal.create(self.folder.journal, {**header, "version": __version__})

    def recovery(self) -> Recovery:
        """Where checkpoints and asks are kept."""
        if self.folder is None:
            return Recovery()
        return Recovery(Snapshots(self.folder.snapshots), Snapshots(self.folder.asks))

    def write(self, kind: str, index: int, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """A record of our own (roster, profile, again) in the journal."""
        if self.journal is not None:
            self.journal.append(kind, index, arrays, meta)

    def write_roster(self, index: int, meta: Mapping[str, Any]) -> None:
        """Clients that registered or were refused: one record, or several where many came at once."""
        for part in _parts(meta):
            self.write("roster", index, {}, part)

    def records(self, kind: str) -> list[tuple[int, Arrays, dict[str, Any]]]:
        """(round, arrays, meta) of all records of a kind."""
        return [] if self.journal is None else [(r.round, *r.unpack()) for r in self.journal.records(kind)]

    def keep_roster(self, ids: Sequence[str], profiles: Sequence[Mapping[str, Any]]) -> None:
        """Keep all clients in a file of its own: the model and the selector's state are worth nothing without it."""
        if self.folder is not None:
            told = as_bytes({"ids": list(ids), "profiles": [dict(p) for p in profiles]})
            Snapshots(self.folder.roster).save(len(ids), {"clients": told}, {})

    def kept_roster(self, known: int) -> dict[str, Any] | None:
        """Clients behind the first `known` ones, as a roster record; None where the journal has them all."""
        found = Snapshots(self.folder.roster).latest() if self.folder is not None else None
        if found is None or found[0] <= known:
            return None
        told = from_bytes(found[1]["clients"])
        return {"ids": told["ids"][known:], "profiles": told["profiles"][known:], "refused": {}}

    def keep_vectors(self, result: RoundResult) -> None:
        """Keep the model-sized things that the selector reads in this round, in ascending client order."""
        if self.folder is None:
            return
        order = np.argsort(result.clients, kind="stable")
        arrays = {f"signal.{k}": v[order] for k, v in result.signals.columns().items() if k in MODEL_SIZED}
        if result.probed is not None:
            arrays.update({f"probe.{k}": v for k, v in result.probed.signals.columns().items() if k in MODEL_SIZED})
        if result.model is not None:
            arrays["model"] = result.model
        path = self.folder.vectors(result.index)
        path.parent.mkdir(exist_ok=True)
        write_durably(path, pack(arrays))

    def close(self) -> None:
        """Give the folder back."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None


def _parts(meta: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A roster record as records whose texts are short enough for a pack; what else it says is in each of them."""
    rows, size = [*zip(meta["ids"], meta["profiles"], strict=True)], 0
    part: dict[str, Any] = {**meta, "ids": [], "profiles": [], "refused": {}}
    for name, told in (*rows, *meta["refused"].items()):
        length = len(json.dumps([name, told]))
        if size and size + length > LONGEST:
            yield part
            part, size = {**meta, "ids": [], "profiles": [], "refused": {}}, 0
        if isinstance(told, str):
            part["refused"][name] = told
        else:
            part["ids"].append(name)
            part["profiles"].append(told)
        size += length
    yield part


def _lost(folder: StateFolder, journal: JournalReader) -> tuple[int, str] | None:
    """The first record after the newest checkpoint that can be read, where rounds were closed since; and why.

    The model after these rounds is gone, and they cannot be repeated: they are done anew. The other way round, where
    the checkpoint knows of records that are gone (SQLite leaves out what it cannot read in a WAL): where they began.
    """
    closed = max((record.round for record in journal.records(kind="tell")), default=-1) + 1
    newest = Snapshots(folder.snapshots).latest()
    if newest is not None and closed <= newest[0]:
        if journal.just_cut or held(journal, *newest[1:]):
            return None
        return _open_ask(journal, newest[0] - 1), f"the checkpoint of round {newest[0]} knows of records that are gone"
    if closed == 0:
        return None
    if newest is None:
        raise StateMismatch(
            f"state folder {folder.path}",
            f"{closed} rounds are done and no checkpoint can be read",
            "restore a backup, or use another state_dir",
        )
    return _open_ask(
        journal, newest[0]
    ), f"the checkpoint of round {closed} cannot be read, and rounds from {newest[0] + 1} on are done again"


def _open_ask(journal: JournalReader, index: int) -> int:
    """Number of the first record that asks in round `index` or later; how many records there are where none does."""
    return next((r.seq for r in journal.records(kind="ask") if r.round >= index), journal.length)


def _check_unused(folder: StateFolder) -> None:
    """Refuse a folder whose journal is gone: its checkpoints, the only copies of the model, would be overwritten."""
    if any(part.is_dir() and any(part.iterdir()) for part in (folder.snapshots, folder.roster)):
        raise StateMismatch(
            f"state folder {folder.path}",
            "it holds checkpoints of a run whose journal is gone",
            "restore the journal from a backup, or use another state_dir",
        )


def _difference(key: str, held: Any, now: Any) -> str:
    """How the run in a folder differs from the one that is started."""
    if key == ASYNCHRONOUS:
        kinds = (
            "it holds an asynchronous run (buffer_size), this one is not",
            "it holds no asynchronous run, this one is",
        )
        return kinds[bool(now)]
    if key == ARRAYS:
        held, now = (", ".join(f"{name} {tuple(shape)} {kind}" for name, shape, kind in side) for side in (held, now))
        return f"its model has the arrays {held[:200]}, this one {now[:200]}"
    if key == CONSTANTS:
        odd = sorted(k for k in {**(held or {}), **(now or {})} if (held or {}).get(k) != (now or {}).get(k))
        return f"its model has other infinite entries in {', '.join(odd)[:200]} than this one"
    return f"it holds a run with {key} = {held!r}, this one has {now!r}"
