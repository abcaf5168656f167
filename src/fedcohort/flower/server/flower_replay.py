"""Replay of a Flower run's cohorts from its state folder: seed and journal give the same choices again.

Needs no flwr. The journal keeps only digests of whole updates; a run whose selector reads those can be replayed if it
was made with `keep_updates=True`, which stores them in `state_dir/vectors`; they are compared with the digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.core.pack import PackError, unpack
from fedcohort.errors import JournalDamaged, StoreError, UnknownName
from fedcohort.protocols import Selector
from fedcohort.registry.lookup import make_selector
from fedcohort.rounds.session import Session
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Arrays, Index, Probed, RoundResult, Signals

MODEL_SIZED = frozenset({"delta", "weights", "last_layer_delta", "probe_weights", "model"})


def vectors_path(folder: Path, index: int) -> Path:
    """Where the whole updates of a round are kept."""
    return folder / "vectors" / f"round-{index:08d}.pack"


def replay(folder: Path, selector: Selector | None = None) -> list[Index]:
    """The cohorts that this run's selector chooses when it is told again what it was told; raises on a difference.

    `selector` is needed only where the run was given an object in place of a name of the catalogue.
    """
    journal = Journal.read(folder / "journal.db")
    try:
        header, told = journal.header, _Told(folder)
        chooser = selector or _named(str(header["selector"]))
        session = Session(chooser, cohort_size=1, seed=int(header["seed"]), max_privacy="P3")
        told.model = "model" in chooser.needs
        cohorts: list[Index] = []
        for record in journal.records():
            arrays, meta = record.unpack()
            if record.kind == "roster":
                told.profiles.extend(meta["profiles"])
            elif record.kind == "profile":
                told.measured = arrays
            elif record.kind == "ask":
                cohorts.append(np.sort(told.ask(session, arrays, meta)))
                if not np.array_equal(cohorts[-1], np.sort(arrays["clients"])):
                    raise JournalDamaged(
                        f"round {record.round}",
                        f"the journal has {np.sort(arrays['clients'])[:12]}, the replay {cohorts[-1][:12]}",
                        "do not trust this run",
                    )
            elif record.kind == "tell":
                session.tell(told.result(record.round, arrays, meta["score"]))
        return cohorts
    finally:
        journal.close()


def _named(text: str) -> Selector:
    try:
        return make_selector(text)
    except UnknownName:
        raise StoreError(
            f"selector {text}",
            "it is an object of the program that made this run, not a name of the catalogue",
            "replay it there, with fedcohort.flower.server.flower_replay.replay(state_dir, selector)",
        ) from None


class _Told:
    """What the selector was told, put together from the records."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, False
        self.profiles: list[Mapping[str, Any]] = []
        self.measured: Arrays = {}

    def ask(self, session: Session, arrays: Arrays, meta: Mapping[str, Any]) -> Index:
        """Ask the session what the journal says it was asked."""
        total, kept = int(meta["population"]), self._whole(session.index, arrays)
        names = sorted({name for profile in self.profiles[:total] for name in profile})
        columns = {n: np.asarray([p[n] for p in self.profiles[:total]]) for n in names}
        columns = {n: v if n == "samples" else v.astype(np.float32) for n, v in columns.items()}
        answers = {**{k: v for k, v in arrays.items() if k.startswith("probe.")}, **kept}

        def probe(clients: Index, wanted: frozenset[str]) -> Probed:
            found = {n: answers[f"probe.{n}"] for n in wanted if f"probe.{n}" in answers}
            return Probed(arrays.get("probed", clients[:0]), Signals(found))

        cohort = session.ask(
            np.arange(total) if bool(arrays["everybody"]) else arrays["available"],
            population=total,
            clock=float(meta["clock"]),
            profiles={**columns, **self.measured},
            probe=probe,
            size=int(meta["size"]),
        )
        return cohort.clients

    def result(self, index: int, arrays: Arrays, score: float | None) -> RoundResult:
        """What came of a round."""
        kept = self._whole(index, arrays, model=self.model)
        found = {**{k: v for k, v in arrays.items() if not k.endswith(".sha256")}, **kept}
        return RoundResult(
            index=index,
            clients=arrays["clients"],
            outcome=arrays["outcome"],
            duration=arrays["duration"],
            signals=Signals({k.removeprefix("signal."): v for k, v in found.items() if k.startswith("signal.")}),
            score=float("nan") if score is None else float(score),
            model=kept.get("model"),
        )

    def _whole(self, index: int, arrays: Arrays, *, model: bool = False) -> Arrays:
        """The model-sized arrays of which this record has only digests, compared with them."""
        digests = {k.removesuffix(".sha256"): v for k, v in arrays.items() if k.endswith(".sha256")}
        if not digests and not model:
            return {}
        kept = self._kept(index)
        for name, digest in digests.items():
            whole = np.ascontiguousarray(kept[name]).tobytes() if name in kept else b""
            if hashlib.sha256(whole).digest() != digest.tobytes():
                raise JournalDamaged(
                    f"round {index}", f"its {name} is not the one that the journal has a digest of", "do not trust it"
                )
        return kept

    def _kept(self, index: int) -> Arrays:
        path = vectors_path(self.folder, index)
        if path.exists():
            try:
                return unpack(path.read_bytes())[0]
            except PackError as error:
                raise JournalDamaged(f"file {path}", str(error), "do not trust this run") from None
        asked = Snapshots(self.folder / "asks").at(index)  # of a round that is still open
        if asked is None or "probe.probe_weights" not in asked[0]:
            raise StoreError(
                f"state folder {self.folder}",
                f"the updates of round {index} were not kept",
                "run with keep_updates=True to be able to replay this selector",
            )
        return asked[0]
