"""A copy of a state folder from which a run can be resumed, made also while the run goes on.

The order matters. Checkpoints first: one that is older than the journal can always be continued from. Then the journal,
as one consistent picture of the database. What was read in the open round last, because the newest two asks are kept.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from fedcohort.errors import RunExists
from fedcohort.storage.disk import DISK
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.storage.run_folder import StateFolder
from fedcohort.storage.snapshots import Snapshots


def back_up(source: Path, target: Path) -> int:
    """Copy the state folder `source` to the new folder `target`; how many records it has. All of it is checked."""
    old, new = StateFolder(source), StateFolder(target)
    old.existing_journal()
    if target.exists() and any(target.iterdir()):
        raise RunExists(f"{target}", "there is something in it", "name a folder that is new or empty")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)  # like the state folder: nobody else reads it
    _copy(old.snapshots, new.snapshots)
    old.reader().copy_to(new.journal)
    for part in ("asks", "roster", "vectors"):
        _copy(source / part, target / part)
    DISK.sync_folder(target)
    JournalReader(new.journal).check()
    for folder in (new.snapshots, new.asks, new.roster):
        Snapshots(folder).check()
    return JournalReader(new.journal).length


def _copy(source: Path, target: Path) -> None:
    """The files of a folder; one that is replaced or removed meanwhile is taken as it is, or not at all."""
    if not source.is_dir():
        return
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path, target / path.name)
                DISK.sync(target / path.name)
    DISK.sync_folder(target)
