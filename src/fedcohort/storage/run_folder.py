"""The files of a run folder and of a Flower state folder. No other module knows their names.

::

    runs/uniform-3f9a.../            a run                       state_dir/       a Flower deployment
        config.toml                  resolved configuration          journal.db
        versions.json                of what can change a result     snapshots/
        journal.db                   who was chosen, what came       asks/        what was read in the open round
        snapshots/                   where to resume                 vectors/     whole updates, if they are kept
        constants.npz                what is frozen in the model     roster/      ids and profiles of clients
        clients.json                 final accuracy per client       lock
        metrics.jsonl                rounds; the run is finished
        lock                         id of the process that runs it

The journal's own files (`journal.db-wal`, `journal.seal`, and `journal.damaged-1.db` where it was damaged once) are
next to it.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from fedcohort.errors import RunLocked, StoreError
from fedcohort.storage.journal_reader import JournalReader

JOURNAL = "journal.db"
SNAPSHOTS = "snapshots"
LOCK = "lock"
LOCAL = (LOCK, f"{JOURNAL}-shm")  # files that mean nothing on another machine


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where the files of one run are, and how far it is.

    >>> folder = RunFolder(Path("runs/uniform-3f9a"))
    >>> folder.journal.as_posix(), folder.state()
    ('runs/uniform-3f9a/journal.db', 'absent')
    """

    path: Path

    @property
    def journal(self) -> Path:
        """Who was chosen, and what came of it."""
        return self.path / JOURNAL

    @property
    def snapshots(self) -> Path:
        """A folder of states to resume from."""
        return self.path / SNAPSHOTS

    @property
    def lock(self) -> Path:
        """Held by the process that runs it, whose id it contains."""
        return self.path / LOCK

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.toml"

    @property
    def versions(self) -> Path:
        """Versions of everything that can change the result."""
        return self.path / "versions.json"

    @property
    def constants(self) -> Path:
        """Tensors of the model that nobody trains, where it has any."""
        return self.path / "constants.npz"

    @property
    def clients(self) -> Path:
        """Accuracy of the final model on every client."""
        return self.path / "clients.json"

    @property
    def metrics(self) -> Path:
        """One line per round, written when the run ends."""
        return self.path / "metrics.jsonl"

    @property
    def begun(self) -> bool:
        """Whether there is a journal."""
        return self.journal.exists()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.metrics.exists()

    @property
    def running(self) -> bool:
        """Whether the process named in the lock is alive on this machine and holds it."""
        try:
            with self.lock.open() as file:
                owner, number = int(file.read(20)), os.fstat(file.fileno()).st_ino  # empty once it was released
            if owner <= 0:
                return False
            os.kill(owner, 0)  # only checks that there is such a process
        except PermissionError:
            pass  # there is, and it belongs to somebody else
        except (OSError, ValueError, OverflowError):
            return False
        return _locked(owner, number)

    def state(self) -> str:
        """ "absent", "finished", "running" or "unfinished"."""
        if not self.begun:
            return "absent"
        return "finished" if self.finished else "running" if self.running else "unfinished"

    def reader(self) -> JournalReader:
        """The journal, to be read; refused where there is none."""
        return JournalReader(self.existing_journal())

    def existing_journal(self) -> Path:
        """The path of the journal; refused where there is none."""
        if not self.path.is_dir():
            raise StoreError(
                f"run folder {self.path}", "there is no such folder", "check the path, or see `fedcohort list runs`"
            )
        if not self.begun:
            raise StoreError(
                f"run folder {self.path}",
                "it holds no journal",
                "name a folder made by `fedcohort run`, or the state_dir of a Flower run",
            )
        return self.journal


@dataclass(frozen=True, slots=True)
class StateFolder(RunFolder):
    """The state folder of a Flower deployment: what a restarted ServerApp resumes from.

    >>> StateFolder(Path("state")).vectors(3).as_posix()
    'state/vectors/round-00000003.pack'
    """

    @property
    def roster(self) -> Path:
        """Who is behind which slot, apart from the journal."""
        return self.path / "roster"

    @property
    def asks(self) -> Path:
        """What the selector read in the open round."""
        return self.path / "asks"

    def vectors(self, index: int) -> Path:
        """The file with the whole updates of a round."""
        return self.path / "vectors" / f"round-{index:08d}.pack"


def _locked(owner: int, number: int) -> bool:
    """Whether a process holds a lock on the file of this number; its id alone may have been given to another since."""
    try:
        table = Path("/proc/locks").read_text(encoding="ascii")
    except (OSError, ValueError):
        return True  # not told here
    rows = (line.split() for line in table.splitlines() if " FLOCK " in line)
    return any(str(owner) in row and row[-3].endswith(f":{number}") for row in rows if len(row) > 3)


def runs_in(root: Path) -> list[Path]:
    """The run folders directly below a folder, by name."""
    return sorted(path.parent for path in root.glob(f"*/{JOURNAL}"))


class FolderLock:
    """Exclusive ownership of a folder by one process, released when that process ends however it ends."""

    def __init__(self, folder: Path) -> None:
        self._file = RunFolder(folder).lock.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            raise RunLocked(
                f"run folder {folder}", f"process {owner} is using it", "wait for it to end, or use another folder"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    @property
    def held(self) -> bool:
        """Whether the folder is still owned through this lock."""
        return not self._file.closed

    def release(self) -> None:
        """Let other processes use the folder."""
        if not self._file.closed:
            self._file.truncate(0)
            self._file.close()
