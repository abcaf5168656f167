"""A journal with a record that cannot be read, and what can be saved of it.

Whatever follows such a record cannot be trusted to continue the chain, so the journal is cut before it. Nothing is
thrown away: the damaged file is kept next to the journal, byte for byte, and a record of the kind "cut" says which
record it was, why it could not be read, how many records are gone, and where they are.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from fedcohort.errors import JournalDamaged, StoreError
from fedcohort.storage.disk import Disk, wal_of
from fedcohort.storage.journal_reader import JournalReader, damaged, digest_of

# Everything that is ever written: by a session, by a Flower run, and by recovery after a cut.
KINDS = frozenset({"open", "ask", "tell", "close", "roster", "profile", "again", "cut", "state"})


def first_unreadable(reader: JournalReader) -> tuple[int, str] | None:
    """Number of the first record that does not check out or cannot be unpacked, and why; None where all are sound."""
    sound = 0
    try:
        for record in reader.records():
            record.unpack()
            if record.kind not in KINDS:
                raise damaged(reader.path, f"record {record.seq} is of the unknown kind {record.kind!r}")
            sound = record.seq + 1
        reader.check_seal()
    except JournalDamaged as error:
        return sound, error.rule
    return None


def set_aside(path: Path, disk: Disk) -> Path:
    """A copy of a damaged journal, WAL included, under a free name next to it."""
    number = 1
    while (target := path.with_name(f"{path.stem}.damaged-{number}.db")).exists():
        number += 1
    for old, new in ((wal_of(path), wal_of(target)), (path, target)):
        if old.exists():
            shutil.copyfile(old, new)
            disk.sync(new)
    disk.sync_folder(path.parent)
    return target


def cut_note(reader: JournalReader, first: int, why: str, kept: Path) -> dict[str, Any]:
    """What the journal remembers of a cut before record `first`."""
    gone = None
    with contextlib.suppress(StoreError):
        gone = reader.length - first
    return {"first": first, "records": gone, "why": why, "file": kept.name, "sha256": digest_of(kept).decode()}


def cut_sentence(path: Path, cut: dict[str, Any]) -> str:
    """One sentence about a cut; whether the damaged file is still there and unchanged is looked up."""
    kept = path.with_name(Path(str(cut["file"])).name)
    state = "gone" if not kept.exists() else "unchanged" if digest_of(kept).decode() == cut["sha256"] else "changed"
    many = "an unknown number of" if cut["records"] is None else cut["records"]
    return f"cut before record {cut['first']}: {cut['why']}; {many} records are in {kept.name} ({state})"
