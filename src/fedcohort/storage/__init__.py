"""The only room with SQL and file names: journal, segments, snapshots, disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.storage.journal import Journal as Journal
    from fedcohort.storage.journal_reader import JournalReader as JournalReader
    from fedcohort.storage.journal_reader import JournalTail as JournalTail
    from fedcohort.storage.journal_reader import Record as Record
    from fedcohort.storage.run_folder import RunFolder as RunFolder
else:
    __getattr__, __dir__, __all__ = exports(__name__)
