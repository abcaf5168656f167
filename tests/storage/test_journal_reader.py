"""The one reader of journals: the same records as the owner's, whoever writes meanwhile, and nothing left behind."""

from __future__ import annotations

import os
import sqlite3

import numpy as np
import pytest

from fedcohort.errors import JournalDamaged, StoreError, VersionMismatch
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import JournalReader, JournalTail
from fedcohort.storage.run_folder import FolderLock, RunFolder, StateFolder, runs_in


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "journal.db"


def begun(path, rounds=0):
    journal = Journal.create(path, {"version": "0.1.0", "seed": 3})
    for index in range(rounds):
        one_round(journal, index)
    return journal


def one_round(journal, index):
    journal.append("ask", index, {"clients": np.arange(index, index + 50)}, {"clock": 1.0})
    journal.append("tell", index, {"clients": np.arange(index, index + 50)}, {"score": 0.5})


def files(folder):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}


def everything(reader):
    """What each way of reading gives, as (number, kind, round, body)."""

    def plain(records):
        return [(r.seq, r.kind, r.round, r.body) for r in records]

    single = reader.at([0, 3, 4, 99])
    return [
        reader.header, reader.length, reader.head, plain(reader.records()), plain(reader.records("tell")),
        plain(reader.newest()), plain(reader.since()), plain(reader.since(4)), plain(single[n] for n in sorted(single)),
    ]  # fmt: skip


def test_reader_and_owner_read_the_same_and_compression_changes_nothing(path):
    journal = begun(path, 6)
    plain = everything(JournalReader(path))
    assert everything(journal) == plain
    assert [seq for seq, *_ in plain[5]] == list(range(12, -1, -1))
    assert [(kind, index) for _, kind, index, _ in plain[7]] == [("ask", 4), ("tell", 4), ("ask", 5), ("tell", 5)]
    assert [seq for seq, *_ in plain[8]] == [0, 3, 4]
    for keep in (4, 1, 0):
        journal.compact(keep=keep)
        assert everything(JournalReader(path)) == everything(journal) == plain
    journal.close()
    assert everything(JournalReader(path)) == plain


def test_the_tail_is_the_journal(path):
    """Record by record what the owner reads, whenever it is asked, while the owner writes and compresses."""
    journal, tail = begun(path), JournalTail(JournalReader(path))
    seen = []
    for index in range(12):
        one_round(journal, index)
        if index % 3 == 0:
            seen += tail.read()
        if index == 7:
            journal.compact(keep=1)
    seen += tail.read()
    assert tail.read() == []
    assert seen == list(journal.records())
    journal.close()


def test_a_tail_reads_in_batches_also_inside_a_segment(path):
    journal = begun(path, 6)
    journal.compact(keep=1)
    reader = JournalReader(path)
    found, last = [], (-1, bytes(32))
    while new := reader.after(*last, most=4):
        assert len(new) <= 4
        found, last = found + new, (new[-1].seq, new[-1].hash)
    assert found == list(journal.records())
    journal.close()


def test_reading_a_closed_journal_leaves_nothing_behind(path):
    begun(path, 3).close()
    before = files(path.parent)
    everything(JournalReader(path))
    JournalTail(JournalReader(path)).read()
    Journal.read(path).check_seal()
    assert files(path.parent) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_can_be_read(path):
    begun(path, 3).close()
    path.parent.chmod(0o500)
    try:
        assert JournalReader(path).length == 7
    finally:
        path.parent.chmod(0o700)


def test_a_reader_does_not_keep_the_owner_from_closing_cleanly(path):
    journal = begun(path, 3)
    reader = JournalReader(path)
    assert next(reader.newest()).round == 2  # abandoned at once
    journal.close()
    assert path.with_name("journal.seal").exists()
    assert not path.with_name("journal.db-wal").exists()


def test_a_generator_sees_the_journal_as_it_was(path):
    """The owner appends and compresses while somebody reads: one state, not a mixture."""
    journal = begun(path, 5)
    records = JournalReader(path).records()
    first = next(records)
    one_round(journal, 5)
    journal.append("ask", 6, {}, {})
    assert [first.seq, *(r.seq for r in records)] == list(range(11))
    assert JournalReader(path).length == 14
    journal.close()


def test_an_owner_who_begins_to_write_is_not_taken_for_damage(path):
    """A closed journal is read without locks; when it changes underneath, the answer is to read again."""
    begun(path, 300).close()
    records = JournalReader(path).records()
    next(records)
    path.write_bytes(path.read_bytes()[:8192])
    with pytest.raises(StoreError, match="another process began to write it") as caught:
        list(records)
    assert not isinstance(caught.value, JournalDamaged)
    with pytest.raises(JournalDamaged):
        JournalReader(path).check()


@pytest.mark.parametrize("change", ["body = 'text'", "round = 'x'", "kind = x'00'", "hash = NULL", "body = NULL"])
def test_a_record_of_the_wrong_form_is_damage_in_every_way_of_reading(path, change):
    begun(path, 2).close()
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE record SET {change} WHERE seq = 3")
    reader = JournalReader(path)
    ways = (lambda: reader.at([3]), lambda: list(reader.newest()), reader.check, JournalTail(reader).read)
    for way in ways:
        with pytest.raises(JournalDamaged, match=r"does not check out .*record 3"):
            way()
    assert reader.header["seed"] == 3  # which lies elsewhere


def test_a_body_that_is_not_a_pack_is_damage(path):
    begun(path, 2).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE record SET body = x'00' WHERE seq = 3")
    with pytest.raises(JournalDamaged, match=r"journal .*run/journal\.db: it does not check out \(record 3: not a"):
        JournalReader(path).at([3])[3].unpack()


def test_other_versions_are_refused_with_a_remedy(path):
    Journal.create(path, {"version": "9.9.1"}).close()
    with pytest.raises(VersionMismatch, match=r"written by fedcohort 9\.9\.1.*install fedcohort 9\.9\.1"):
        JournalReader(path).check_version()


def test_states_of_a_run_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert folder.state() == "absent"
    with pytest.raises(StoreError, match="no such folder"):
        folder.reader()
    folder.path.mkdir()
    with pytest.raises(StoreError, match="no journal"):
        folder.reader()
    journal = Journal.create(folder.journal, {})
    assert (folder.state(), folder.running) == ("running", True)
    journal.close()
    assert folder.state() == "unfinished"
    for owner in (
        "4194304999",
        "-1",
        "0",
        "text",
        "9" * 400,
        str(os.getppid()),
    ):  # the last one lives
        folder.lock.write_text(owner)
        assert folder.state() == "unfinished"
    folder.metrics.write_text("")
    assert folder.state() == "finished"
    assert runs_in(tmp_path) == [folder.path]


def test_files_of_a_state_folder(tmp_path):
    folder = StateFolder(tmp_path)
    assert folder.journal == tmp_path / "journal.db"
    assert folder.asks == tmp_path / "asks"
    assert folder.vectors(7) == tmp_path / "vectors" / "round-00000007.pack"
    lock = FolderLock(tmp_path)
    assert folder.running
    lock.release()
    assert not folder.running
