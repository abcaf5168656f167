"""The store: runs by what they are. The same configuration is run once and read from then on.

A run lives in `ROOT/SELECTOR-DIGEST`, where the digest is that of its resolved configuration. A run that is finished is
read, one that was begun is resumed, and any other is started.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import JournalDamaged, RunExists, StoreError, VersionMismatch
from fedcohort.experiment import runs as running
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import OnRound, RunResult
from fedcohort.storage.run_folder import FolderLock, RunFolder, runs_in

SHORT = 12  # hexadecimal digits of the digest in a folder's name
ROOT = Path("runs")
_ASIDE = ".old"  # in the name of a folder that `put_aside` renamed


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A finished run, and how it was obtained: "run", "resumed" or "read"."""

    finished: RunResult
    how: str


@dataclass(frozen=True)
class Store:
    """The runs below one folder, `root`.

    >>> from tempfile import mkdtemp
    >>> store, config = Store(Path(mkdtemp())), RunConfig(task="quadratic", rounds=2, cohort_size=2)
    >>> store.state(config), store.obtain(config).how, store.obtain(config).how, store.state(config)
    ('absent', 'run', 'read', 'finished')
    """

    root: Path = ROOT

    @property
    def sweeps(self) -> Path:
        """Where sweeps write what became of their runs."""
        return self.root / "sweeps"

    def folder(self, config: RunConfig) -> Path:
        """Where this run is, or would be."""
        return self.root / identity(config)

    def state(self, config: RunConfig, folder: Path | None = None) -> str:
        """ "absent", "unfinished" or "finished"; in another folder than its own where one is given."""
        place = RunFolder(folder or self.folder(config))
        return "absent" if not place.begun else "finished" if place.finished else "unfinished"

    def obtain(
        self,
        config: RunConfig,
        *,
        folder: Path | None = None,
        force: bool = False,
        on_round: OnRound | None = None,
    ) -> StoredRun:
        """The run of this configuration: read, resumed or run.

        `folder` is where to keep it, if not in its own place; `force` puts an old run aside and starts again;
        `on_round` is called with the numbers of each round that is run now.
        """
        place = folder or self.folder(config)
        state = self.state(config, place)
        if state != "absent" and force:
            put_aside(place)
            state = "absent"
        if state == "absent":
            return StoredRun(running.run(config, place, on_round), "run")
        check_same(config, place)
        if state == "finished":
            return StoredRun(running.read(place), "read")
        return StoredRun(running.resume(place, on_round), "resumed")


def identity(config: RunConfig) -> str:
    """The stable id of a run: its selector's name and the head of its digest."""
    name = config.selector.partition("(")[0].strip().rpartition(":")[2]
    return f"{name.replace('_', '-')}-{config.digest()[:SHORT]}"


def put_aside(folder: Path) -> Path:
    """Rename a run folder to NAME.old1, NAME.old2, ...; refused while a process is using it."""
    lock = FolderLock(folder)
    number = 1
    while (aside := folder.with_name(f"{folder.name}{_ASIDE}{number}")).exists():
        number += 1
    try:
        folder.rename(aside)
    finally:
        lock.release()
    return aside


def is_aside(name: str) -> bool:
    """Whether a folder of this name is a run that was put aside."""
    return _ASIDE in name


def find(paths: list[Path]) -> Iterator[Path]:
    """Run folders among these: a run folder itself, or the runs in a folder, except those put aside."""
    for path in paths:
        if RunFolder(path).begun:
            yield path
            continue
        if not path.is_dir():
            raise StoreError(
                f"{path}", "there is no such run or folder", "check the path, or see `fedcohort list runs`"
            )
        found = [run for run in runs_in(path) if not is_aside(run.name)]
        if not found:
            raise StoreError(f"folder {path}", "it holds no runs", "name a run folder or a folder of runs")
        yield from found


def client_accuracy(folder: Path) -> NDArray[np.float64] | None:
    """Accuracy of the final model on every client, NaN where a client has no samples; None where it was not kept."""
    try:
        found = json.loads(RunFolder(folder).clients.read_text())["accuracy"]
    except (OSError, ValueError, KeyError):
        return None
    return np.array([np.nan if v is None else v for v in found], np.float64)


def check_same(config: RunConfig, folder: Path) -> None:
    """Refuse a folder that holds another run than this one."""
    try:
        journal = RunFolder(folder).reader()
        held = running.configuration(journal)
    except (VersionMismatch, JournalDamaged) as error:
        raise type(error)(error.value, error.rule, f"{error.remedy}, or start again with --force") from None
    if held.digest() != config.digest():
        names = [k for k, v in config.resolved().items() if held.resolved().get(k) != v]
        raise RunExists(
            f"run folder {folder}",
            f"it holds another run already (another {', '.join(names) or 'configuration'})",
            f"use another --out, {running.how_to_resume(folder, held)} for that run, or --force to put it aside",
        )
    if running.changed_since(journal, config):
        raise RunExists(f"run folder {folder}", running.CHANGED, "use another --out, or --force to put it aside")
