"""The store: runs by what they are. The same configuration is run once and read from then on.

A run lives in `ROOT/SELECTOR-DIGEST`, where the digest is that of its resolved configuration. Asked for a run, the
store reads it if it is finished, goes on with it if it was begun, and starts it otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import JournalDamaged, RunExists, StoreError, VersionMismatch
from fedcohort.experiment import run as running
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.run import CLIENTS, METRICS, OnRound, RunResult
from fedcohort.storage.journal import FolderLock

SHORT = 12  # hexadecimal digits of the digest in a folder's name
ROOT = Path("runs")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A finished run and how it came: "run", "resumed" or "read"."""

    finished: RunResult
    how: str


@dataclass(frozen=True)
class Store:
    """Runs in one folder."""

    root: Path = ROOT

    def folder(self, config: RunConfig) -> Path:
        """Where this run is, or would be."""
        return self.root / identity(config)

    def state(self, config: RunConfig, folder: Path | None = None) -> str:
        """ "absent", "unfinished" or "finished"."""
        place = folder or self.folder(config)
        if not (place / "journal.db").exists():
            return "absent"
        return "finished" if (place / METRICS).exists() else "unfinished"

    def obtain(
        self,
        config: RunConfig,
        *,
        folder: Path | None = None,
        force: bool = False,
        on_round: OnRound | None = None,
    ) -> StoredRun:
        """The run of this configuration: read, resumed or run. `force` puts an old one aside first."""
        place = folder or self.folder(config)
        state = self.state(config, place)
        if state != "absent" and force:
            put_aside(place)
            state = "absent"
        if state == "absent":
            return StoredRun(running.run(config, place, on_round), "run")
        _check_same(config, place)
        if state == "finished":
            return StoredRun(running.read(place), "read")
        return StoredRun(running.resume(place, on_round), "resumed")


def identity(config: RunConfig) -> str:
    """The stable id of a run: its selector's name and the head of its digest."""
    return f"{config.selector.partition('(')[0].strip().replace('_', '-')}-{config.digest()[:SHORT]}"


def put_aside(folder: Path) -> Path:
    """Rename a run folder to NAME.old1, NAME.old2, ...; refused while a process is using it."""
    lock = FolderLock(folder)
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old{number}")).exists():
        number += 1
    try:
        folder.rename(aside)
    finally:
        lock.release()
    return aside


def find(paths: list[Path]) -> Iterator[Path]:
    """Run folders among these: a run folder itself, or the runs in a folder. Runs put aside are passed over."""
    for path in paths:
        if (path / "journal.db").exists():
            yield path
            continue
        if not path.is_dir():
            raise StoreError(
                f"{path}", "there is no such run or folder", "check the path, or see `fedcohort list runs`"
            )
        found = [p.parent for p in sorted(path.glob("*/journal.db")) if ".old" not in p.parent.name]
        if not found:
            raise StoreError(f"folder {path}", "it holds no runs", "name a run folder or a folder of runs")
        yield from found


def client_accuracy(folder: Path) -> NDArray[np.float64] | None:
    """Accuracy of the final model at every client, NaN where a client has no samples; None where it was not kept."""
    try:
        found = json.loads((folder / CLIENTS).read_text())["accuracy"]
    except (OSError, ValueError, KeyError):
        return None
    return np.array([np.nan if v is None else v for v in found], np.float64)


def _check_same(config: RunConfig, folder: Path) -> None:
    try:
        held = running.read(folder).config
    except (VersionMismatch, JournalDamaged) as error:
        raise type(error)(error.value, error.rule, f"{error.remedy}, or start anew with --force") from None
    if held.digest() != config.digest():
        names = [k for k, v in config.resolved().items() if held.resolved().get(k) != v]
        raise RunExists(
            f"run folder {folder}",
            f"it holds another run already (another {', '.join(names) or 'configuration'})",
            f"use another --out, `fedcohort resume {folder}` for that run, or --force to put it aside",
        )
