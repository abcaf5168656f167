"""What survives the ServerApp: the journal, a snapshot after every round, and the open round's answers.

::

    state_dir/
        journal.db     who was asked and what came of it; the roster
        snapshots/     model, selector, strategy: where to go on
        asks/          what the selector read in the open round (profiles, answers to its probe)
        closings/      a round's replies made into a result and a model, kept before the journal learns of it

A process that ends anywhere is followed by one that goes on with the same round: an asked cohort is asked again, and a
round that was closed is not trained again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort import __version__
from fedcohort.core.pack import pack
from fedcohort.errors import StateMismatch, VersionMismatch
from fedcohort.flower.server.flower_replay import MODEL_SIZED, vectors_path
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots, write_durably
from fedcohort.types import Array, Arrays, Outcome, Probed, RoundResult, Signals


class Memory:
    """The state folder of one run; without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.journal: Journal | None = None
        self.snapshots, self.asks, self.closings = (
            Snapshots((folder or Path("/nonexistent")) / name) for name in ("snapshots", "asks", "closings")
        )

    def open(self, header: Mapping[str, Any]) -> bool:
        """Open an earlier run's journal; False where there is none. Another run's folder is refused."""
        if self.folder is None or not (self.folder / "journal.db").exists():
            return False
        self.journal = Journal.open(self.folder / "journal.db")
        found = self.journal.header
        try:
            if str(found.get("version", "?")).split(".")[:2] != __version__.split(".")[:2]:
                raise VersionMismatch(
                    f"state folder {self.folder}",
                    f"it was written by fedcohort {found.get('version')}, this is {__version__}",
                    "use another state_dir, or the version that wrote it",
                )
            for key, value in header.items():
                if found.get(key) != value:
                    raise StateMismatch(
                        f"state folder {self.folder}",
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
            self.folder.mkdir(parents=True, exist_ok=True)
            self.journal = Journal.create(self.folder / "journal.db", {**header, "version": __version__})

    def write(self, kind: str, index: int, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """A record of our own (roster, late) in the journal."""
        if self.journal is not None:
            self.journal.append(kind, index, arrays, meta)

    def records(self, kind: str) -> list[tuple[int, Arrays, dict[str, Any]]]:
        """(round, arrays, meta) of all records of a kind."""
        if self.journal is None:
            return []
        return [(r.round, *r.unpack()) for r in self.journal.records(kind)]

    def asked(self, index: int) -> tuple[Arrays, dict[str, Any]] | None:
        """The committed ask of a round, if there is one."""
        found = [(arrays, meta) for at, arrays, meta in self.records("ask") if at == index]
        return found[0] if found else None

    def keep(self, store: Snapshots, index: int, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Save durably, where there is a folder."""
        if self.folder is not None:
            store.save(index, arrays, meta)

    def keep_ask(self, index: int, profiles: Mapping[str, Array], probed: Probed | None = None) -> None:
        """Keep what the selector is about to read, before the cohort that it leads to is committed."""
        arrays: Arrays = {f"profile.{k}": np.asarray(v) for k, v in profiles.items()}
        if probed is not None:
            arrays["probed"] = probed.clients
            arrays.update({f"probe.{k}": np.asarray(v) for k, v in probed.signals.columns().items()})
        if arrays:
            self.keep(self.asks, index, arrays, {})

    def kept_ask(self, index: int) -> tuple[Arrays, Probed]:
        """Inverse of :meth:`keep_ask`: profiles and answers (none where nobody was probed)."""
        found = self.asks.at(index)
        arrays = found[0] if found is not None else {}

        def part(prefix: str) -> Arrays:
            return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

        return part("profile."), Probed(arrays.get("probed", np.empty(0, np.int64)), Signals(part("probe.")))

    def keep_vectors(self, result: RoundResult, probed: Probed | None) -> None:
        """Keep the model-sized things that the selector reads in this round."""
        if self.folder is None:
            return
        arrays = {f"signal.{k}": v for k, v in result.signals.columns().items() if k in MODEL_SIZED}
        if probed is not None:
            arrays.update({f"probe.{k}": v for k, v in probed.signals.columns().items() if k in MODEL_SIZED})
        if result.model is not None:
            arrays["model"] = result.model
        path = vectors_path(self.folder, result.index)
        path.parent.mkdir(exist_ok=True)
        write_durably(path, pack(arrays))

    def close(self) -> None:
        """Give the folder back."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None


def pack_result(result: RoundResult) -> Arrays:
    """A round's result as arrays."""
    arrays: Arrays = {
        "clients": result.clients,
        "outcome": result.outcome,
        "duration": np.asarray(result.duration),
        "score": np.array(result.score),
    }
    arrays.update({f"signal.{k}": v for k, v in result.signals.columns().items()})
    if result.model is not None:
        arrays["model"] = result.model
    return arrays


def unpack_result(index: int, arrays: Mapping[str, Array]) -> RoundResult:
    """Inverse of :func:`pack_result`."""
    columns = {k.removeprefix("signal."): v for k, v in arrays.items() if k.startswith("signal.")}
    return RoundResult(
        index=index,
        clients=arrays["clients"],
        outcome=arrays["outcome"].astype(np.int8),
        duration=arrays["duration"],
        signals=Signals(columns),
        score=float(arrays["score"]),
        model=arrays.get("model"),
    )


def counts(outcome: Array) -> dict[str, float]:
    """How many ended how."""
    return {o.name.lower(): float((outcome == o).sum()) for o in Outcome}
