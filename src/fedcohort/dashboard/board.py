"""Which runs there are: folders that are scanned again and again, never a path that a request names.

A run is known by a digest of its path, so that an address holds sixteen hexadecimal digits and no name. Links are not
followed. A folder that cannot be read is listed with the reason, and the others are not affected.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from fedcohort.dashboard.track import Plain, Track, real, said, text
from fedcohort.dashboard.untrusted_journal import UntrustedJournal, plain_file
from fedcohort.errors import StoreError, VersionMismatch
from fedcohort.experiment.config import NO_EFFECT, RunConfig
from fedcohort.experiment.store import Store, is_aside
from fedcohort.looks import look
from fedcohort.storage.disk import wal_of
from fedcohort.storage.journal_reader import ended
from fedcohort.storage.run_folder import SNAPSHOTS, RunFolder

MOST_FOLDERS = 20_000
TRACKS = 48  # runs whose rounds are kept in memory
AGAIN = 0.5  # seconds between two looks
FRESH = 10.0  # seconds: a journal written to so recently belongs to a run that is going
LAST = 8  # records of a journal that the list reads
TEXTS = ("selector", "method", "world", "task")
_NOT_RUNS = (Store().sweeps.name, SNAPSHOTS)


@dataclass
class BoardEntry:
    """One folder of the list."""

    id: str
    name: str
    folder: Path
    seen: tuple[Any, ...] = ()  # how the files looked when they were read
    version: int = 0  # of the list, when this entry changed last
    born: int = 0  # counts up when the journal is another file than before
    brief: Plain = field(default_factory=dict)


class Board:
    """The runs below some folders."""

    def __init__(self, roots: list[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise StoreError(f"{root}", "there is no such folder", "name a run folder or a folder of runs")
        self.roots = list(dict.fromkeys(root.resolve() for root in roots))
        self.entries: dict[str, BoardEntry] = {}
        self.gone: dict[str, int] = {}
        self.version = 0
        self._tracks: OrderedDict[str, tuple[int, Track]] = OrderedDict()
        self._lock, self._looked = threading.Lock(), -AGAIN

    def refresh(self) -> int:
        """Look again, unless that was done a moment ago; the version of the list."""
        with self._lock:
            if time.monotonic() - self._looked >= AGAIN:
                self._look()
                self._looked = time.monotonic()
            return self.version

    def since(self, version: int) -> tuple[int, list[Plain], list[str]]:
        """The version now, the entries that changed after the given one, and the ids that went."""
        with self._lock:
            changed = [e.brief for e in self.entries.values() if e.version > version]
            return self.version, changed, [i for i, v in self.gone.items() if v > version]

    def track(self, run: str) -> tuple[int, Track] | None:
        """How often its journal was exchanged, and the rounds of a run; None where there is no such run."""
        with self._lock:
            entry = self.entries.get(run)
            if entry is None or not entry.brief.get("readable"):
                return None
            held = self._tracks.get(run)
            if held is None or held[0] != entry.born:
                held = (entry.born, Track(RunFolder(entry.folder).journal))
            self._tracks[run] = held
            self._tracks.move_to_end(run)
            while len(self._tracks) > TRACKS:
                self._tracks.popitem(last=False)
            return held

    def _look(self) -> None:
        found: dict[str, tuple[str, Path, bool]] = {}
        for root in self.roots:
            lead = f"{root.name}/" if len(self.roots) > 1 else ""
            for name, folder, link in _folders(root):
                found.setdefault(_id(folder), (lead + name, folder, link))
                if len(found) >= MOST_FOLDERS:
                    break
        changed, gone = [], [i for i in self.entries if i not in found]
        for run, (name, folder, link) in found.items():
            entry = self.entries.get(run) or BoardEntry(run, name, folder)
            if _update(entry, link):
                changed.append(entry)
        if changed or gone:
            self.version += 1
        for entry in changed:
            entry.version = self.version
            self.entries[entry.id] = entry
            self.gone.pop(entry.id, None)
        for run in gone:
            del self.entries[run]
            self._tracks.pop(run, None)
            self.gone[run] = self.version


def _id(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]


def _folders(root: Path) -> Iterator[tuple[str, Path, bool]]:
    """(name, folder, whether it is a link) of what may be a run: the root, what is in it, and one level below."""
    if _has_journal(root):
        yield root.name, root, False
        return
    for child in _children(root):
        if child.is_symlink():
            yield child.name, Path(child.path), True
            continue
        folder, inner = Path(child.path), []
        if not _has_journal(folder):
            inner = [c for c in _children(folder) if _has_journal(Path(c.path))]
        for sub in inner:
            yield f"{child.name}/{sub.name}", Path(sub.path), sub.is_symlink()
        if not inner:
            yield child.name, folder, False


def _has_journal(folder: Path) -> bool:
    """Whether something is there under the journal's name, be it a broken link."""
    return os.path.lexists(RunFolder(folder).journal)


def _children(folder: Path) -> list[os.DirEntry[str]]:
    """Folders (and links) in a folder, except those that the store put aside or that have another purpose."""
    try:
        with os.scandir(folder) as found:
            return sorted(
                (e for e in found if _may_be(e.name) and (e.is_symlink() or e.is_dir(follow_symlinks=False))),
                key=lambda e: e.name,
            )
    except OSError:
        return []


def _may_be(name: str) -> bool:
    return not name.startswith(".") and not is_aside(name) and name not in _NOT_RUNS


def _look_of(path: Path) -> tuple[int, int, int]:
    try:
        found = path.lstat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _update(entry: BoardEntry, link: bool) -> bool:
    """Read the entry again if its files look different; whether it changed."""
    folder = RunFolder(entry.folder)
    files = (_look_of(folder.journal), _look_of(wal_of(folder.journal)))
    finished = plain_file(folder.metrics)
    seen = (*files, finished, link, not finished and _held(folder, files))
    if seen == entry.seen:
        return False
    if entry.seen and entry.seen[0][0] != files[0][0]:
        entry.born += 1
    before, entry.seen = entry.brief, seen
    entry.brief = _brief(entry, link, finished)
    return entry.brief != before


def _held(folder: RunFolder, files: tuple[tuple[int, int, int], ...]) -> bool:
    """Whether a process is at work: the one named in the lock lives, or the journal was written a moment ago."""
    recent = time.time() - max(f[2] for f in files) / 1e9 < FRESH
    return recent or (plain_file(folder.lock) and folder.running)


def _brief(entry: BoardEntry, link: bool, finished: bool) -> Plain:
    """What the list shows of a folder."""
    shown: Plain = {"id": entry.id, "name": text(entry.name), "born": entry.born, "readable": False, "note": ""}
    if link:
        return shown | {"state": "foreign", "note": "a link; links are not followed"}
    if not _has_journal(entry.folder):
        return shown | {"state": "foreign", "note": "holds no run"}
    try:
        return shown | _read(entry, finished)
    except VersionMismatch as error:
        return shown | {"state": "foreign", "note": said(error)}
    except Exception as error:  # whatever one folder holds, the others are listed
        return shown | {"state": "damaged", "note": said(error)}


def _read(entry: BoardEntry, finished: bool) -> Plain:
    journal = UntrustedJournal(RunFolder(entry.folder).journal)
    header = journal.header
    config = header["config"] if isinstance(header.get("config"), dict) else header
    every = real(config.get("evaluate_every")) or 1
    last = list(islice(journal.newest(), int(min(max(2 * every + 4, LAST), 400))))  # one of them has an accuracy
    tells = [r for r in last if r.kind == "tell"]
    rows = [m if isinstance(m := r.unpack()[1].get("metrics"), dict) else {} for r in tells]
    state = "finished" if finished or ended(last) else "running" if entry.seen[-1] else "unfinished"
    return {
        "readable": True,
        "state": state,
        **{kind: text(config.get(kind)) for kind in TEXTS},
        "group": _group(config),
        "look": look(text(config.get("selector"))).data(),
        "date": max(found[2] for found in entry.seen[:2]) / 1e9,  # when something was written last
        "seed": _whole(config.get("seed")),
        "cohort_size": _whole(config.get("cohort_size")),
        "more": _more(config),
        "rounds": _whole(config.get("rounds")),
        "done": max((r.round + 1 for r in tells), default=0),
        "accuracy": next((a for row in rows if (a := real(row.get("accuracy"))) is not None), None),
        "clock": next((c for row in rows if (c := real(row.get("clock"))) is not None), None),
    }


def _group(config: Plain) -> str:
    """The same for runs that differ in nothing but the seed."""
    told = {k: v for k, v in config.items() if k not in ("seed", "workers")}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def _more(config: Plain) -> str:
    """Every other key that is not at its default: what tells runs of a sweep apart."""
    usual = asdict(RunConfig())
    named = (*TEXTS, "cohort_size", "rounds", "seed", *NO_EFFECT)
    found = [(k, v) for k, v in config.items() if k in usual and k not in named and v != usual[k]]
    return text(", ".join(f"{k} {v:g}" if type(v) is float else f"{k} {v}" for k, v in found))


def _whole(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 2**53 else None
