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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort import __version__
from fedcohort.core.columns import as_bytes, from_bytes
from fedcohort.core.pack import pack
from fedcohort.errors import StateMismatch
from fedcohort.rounds.recovery import Recovery
from fedcohort.signals import MODEL_SIZED
from fedcohort.storage.journal import Journal
from fedcohort.storage.run_folder import StateFolder
from fedcohort.storage.snapshots import Snapshots, write_durably
from fedcohort.types import Arrays, Probed, RoundResult


class StateDir:
    """The state folder of one run; without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else StateFolder(folder)
        self.journal: Journal | None = None

    def open(self, header: Mapping[str, Any]) -> bool:
        """Open an earlier run's journal; False where there is none. Another run's folder is refused."""
        if self.folder is None or not self.folder.begun:
            return False
        self.journal = Journal.open(self.folder.journal, repair=True)
        try:
            found = self.journal.check_version()
            for key, value in header.items():
                if found.get(key) != value:
                    raise StateMismatch(
                        f"state folder {self.folder.path}",
                        f"it holds a run with {key} = {found.get(key)!r}, this one has {value!r}",
                        "use another state_dir",
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

    def keep_vectors(self, result: RoundResult, probed: Probed | None) -> None:
        """Keep the model-sized things that the selector reads in this round, in ascending client order."""
        if self.folder is None:
            return
        order = np.argsort(result.clients, kind="stable")
        arrays = {f"signal.{k}": v[order] for k, v in result.signals.columns().items() if k in MODEL_SIZED}
        if probed is not None:
            arrays.update({f"probe.{k}": v for k, v in probed.signals.columns().items() if k in MODEL_SIZED})
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
