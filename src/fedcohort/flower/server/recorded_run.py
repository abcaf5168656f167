"""A Flower run as its state folder holds it, replayed: seed and journal give the same choices again. Needs no flwr.

The journal keeps only digests of whole updates; a run whose selector reads those can be replayed if it was made with
`keep_updates=True`, which stores them in `state_dir/vectors`; they are compared with the digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.core.pack import PackError, unpack
from fedcohort.errors import JournalDamaged, StoreError, UnknownName
from fedcohort.flower.server.histogram_length import CLASSES, HISTOGRAM, histograms
from fedcohort.protocols import Selector
from fedcohort.registry.lookup import make_selector
from fedcohort.rounds.replay import Known, replay
from fedcohort.rounds.session import Session
from fedcohort.storage.run_folder import StateFolder
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Arrays, Index

OBJECT = " object"  # what the name of a selector ends with that was given as an object


def replay_folder(folder: str | Path, selector: Selector | None = None) -> list[Index]:
    """The cohorts that this run's selector chooses when it is told again what it was told; raises on a difference.

    `selector` is needed only where the run was given an object instead of a name of the catalogue.
    """
    folder = Path(folder)
    journal = StateFolder(folder).reader()
    try:
        header = journal.header
        chooser = selector or _named(str(header["selector"]))
        session = Session(
            chooser,
            cohort_size=1,
            seed=int(header["seed"]),
            max_privacy="P3",
            asynchronous=bool(header.get("asynchronous")),
        )
        return replay(session, journal.records(), RecordedRun(folder, model="model" in chooser.needs))
    finally:
        journal.close()


def _named(text: str) -> Selector:
    try:
        if text.endswith(OBJECT):  # also where its class has the name of one in the catalogue
            raise UnknownName.among("selector", text, ())
        return make_selector(text)
    except UnknownName:
        raise StoreError(
            f"selector {text}",
            "it is an object of the program that made this run, not a name of the catalogue",
            "replay it there, with fedcohort.flower.server.recorded_run.replay_folder(state_dir, selector)",
        ) from None


class RecordedRun(Known):
    """What the selector read beside the records, put together from the roster and the kept vectors."""

    def __init__(self, folder: Path, *, model: bool) -> None:
        super().__init__()
        self.folder, self.model = folder, model
        self.classes = 0  # length of label histograms; 0: not recorded
        self.told: list[Mapping[str, Any]] = []
        self.measured: Arrays = {}

    def note(self, kind: str, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Clients that registered, and what the server measured of them."""
        if kind == "roster":
            self.told.extend(meta["profiles"])
            self.classes = meta.get(CLASSES, self.classes)
        elif kind == "profile":
            self.measured = arrays

    def profiles(self, population: int) -> Arrays:
        """Profile columns of those registered then."""
        told = self.told[:population]
        names = sorted({name for profile in told for name in profile})
        columns = {n: np.asarray([p.get(n, 0) for p in told]) for n in names if n != HISTOGRAM}
        if HISTOGRAM in names:
            alike = max((len(p.get(HISTOGRAM, ())) for p in told), default=0)  # in older folders, which do not say it
            columns[HISTOGRAM] = np.asarray(histograms(told, self.classes or alike))
        return {**{n: v if n == "samples" else v.astype(np.float32) for n, v in columns.items()}, **self.measured}

    def whole(self, index: int, arrays: Arrays) -> Arrays:
        """The model-sized arrays of which this record has only digests, compared with them."""
        digests = {k.removesuffix(".sha256"): v for k, v in arrays.items() if k.endswith(".sha256")}
        if not digests and not (self.model and "outcome" in arrays):
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
        path = StateFolder(self.folder).vectors(index)
        if path.exists():
            try:
                return unpack(path.read_bytes())[0]
            except PackError as error:
                raise JournalDamaged(f"file {path}", str(error), "do not trust this run") from None
        asked = Snapshots(StateFolder(self.folder).asks).at(index)  # of a round that is still open
        if asked is None or "probe.probe_weights" not in asked[0]:
            raise StoreError(
                f"state folder {self.folder}",
                f"the updates of round {index} were not kept",
                "run with keep_updates=True to be able to replay this selector",
            )
        return asked[0]
