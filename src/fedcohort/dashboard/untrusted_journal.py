"""Journals of folders that anybody may have written to: links, pipes and devices are not opened, bombs not unpacked."""

from __future__ import annotations

import stat
from pathlib import Path

from fedcohort.storage.disk import is_written, wal_of
from fedcohort.storage.journal_reader import JournalReader, damaged


class UntrustedJournal(JournalReader):
    """A journal that may have been tampered with; checked again each time it is read."""

    max_bytes = 256 << 20

    def check_file(self) -> None:
        """Refuse a link, a pipe or a device, and what is not a journal."""
        if not plain_file(self.path) or (is_written(self.path) and not plain_file(wal_of(self.path))):
            raise damaged(self.path, "it is not a regular file")
        super().check_file()


def plain_file(path: Path) -> bool:
    """Whether this is a regular file: not a link, a pipe or a device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False
