"""Journal schema 2: a real file of schema 1, folding, the seal, and what a newer program left in the WAL."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from fedcohort.core.pack import PackError
from fedcohort.errors import BadParameter, JournalDamaged, StoreError, VersionMismatch
from fedcohort.rounds.replay import Known, replay
from fedcohort.rounds.session import Session
from fedcohort.selectors.oort import Oort
from fedcohort.storage import segments
from fedcohort.storage.disk import Disk
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.storage.segments import compress, decompress

V1 = Path(__file__).parent / "data" / "journal-v1.db"  # written by the program of schema 1: twelve rounds of Oort
V1_HEAD = "7e798798ebcd370fef1da42dfe18d8fd8dbc4fff5682a1d9ea1918528d145ce3"


@pytest.fixture
def old(tmp_path):
    shutil.copy(V1, tmp_path / "journal.db")
    return tmp_path / "journal.db"


def version(path):
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def many(path, rounds=30):
    journal = Journal.create(path, {"seed": 1})
    for index in range(rounds):
        journal.append("ask", index, {"clients": np.arange(index, index + 200)}, {"clock": 1.0})
        journal.append("tell", index, {"clients": np.arange(index, index + 200)}, {"score": 0.5})
    return journal


def test_looking_at_schema_1_leaves_its_bytes(old):
    looked = Journal.read(old)
    assert looked.head.hex() == V1_HEAD
    assert looked.length == 25
    looked.close()
    assert old.read_bytes() == V1.read_bytes()


def test_schema_1_is_brought_up_and_goes_on(old):
    journal = Journal.open(old)
    assert journal.head.hex() == V1_HEAD  # the history is the same to the bit
    session = Session(Oort(), cohort_size=4, seed=5, journal=journal)
    profiles = {"samples": np.ones(20)}
    written = [r.unpack()[0]["clients"].tolist() for r in journal.records("ask")]
    assert [c.tolist() for c in replay(session, list(journal.records()), Known(profiles))] == written
    session.ask(np.arange(20), clock=120.0, profiles=profiles)
    journal.compact()
    journal.close()
    assert version(old) == 2
    again = Journal.open(old)
    assert again.length == 26
    assert list(again.records())[24].hash.hex() == V1_HEAD
    again.close()


def test_an_interrupted_migration_leaves_schema_1(old):
    """The process dies before the migration's COMMIT: the file is schema 1 still, and the next open makes it 2."""

    class Dying(Disk):
        def connect(self, path, *, read_only=False):
            if read_only:
                return super().connect(path, read_only=True)

            class Connection(sqlite3.Connection):
                def execute(self, sql, *values):
                    if sql == "COMMIT":
                        raise sqlite3.OperationalError("gone")
                    return super().execute(sql, *values)

            return sqlite3.connect(path, factory=Connection)

    with pytest.raises(StoreError):
        Journal.open(old, Dying())
    assert version(old) == 1
    Journal.open(old).close()
    assert version(old) == 2


def test_folding_loses_nothing_and_saves_space(tmp_path):
    journal = many(tmp_path / "journal.db")
    whole = [(r.seq, r.kind, r.round, r.body, r.hash) for r in journal.records()]
    before, after = journal.compact(keep=5)
    assert after < before / 3
    assert [(r.seq, r.kind, r.round, r.body, r.hash) for r in journal.records()] == whole
    assert journal._db.execute("SELECT count(*) FROM record").fetchone()[0] == 10
    journal.append("ask", 30, {})
    journal.compact(keep=2)  # a second segment behind the first
    journal.close()
    again = Journal.open(tmp_path / "journal.db")
    assert [(r.seq, r.kind, r.round, r.body, r.hash) for r in again.records()][:-1] == whole
    assert again.header == {"seed": 1}
    assert again.holds(11, whole[10][4])
    assert not again.holds(11, whole[9][4])
    with pytest.raises(BadParameter):
        again.compact(keep=-1)
    again.close()


def test_an_open_round_is_not_folded(tmp_path):
    journal = many(tmp_path / "journal.db", 3)
    journal.append("ask", 3, {})
    journal.compact()
    assert journal._db.execute("SELECT kind, round FROM record").fetchall() == [("ask", 3)]
    journal.close()


def test_a_run_that_ended_and_went_on_is_folded_with_its_close(tmp_path):
    journal = many(tmp_path / "journal.db", 3)
    journal.append("close", 3, {}, {"rounds": 3})
    journal.append("ask", 3, {})
    journal.append("tell", 3, {})
    journal.append("close", 4, {}, {"rounds": 4})
    whole = [(r.seq, r.kind, r.hash) for r in journal.records()]
    journal.compact()
    journal.close()
    assert [(r.seq, r.kind, r.hash) for r in Journal.read(tmp_path / "journal.db").records()] == whole


def test_many_records_are_folded_into_several_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "BLOCK", 9_000)
    journal = many(tmp_path / "journal.db")
    journal.append("tell", 30, {"large": np.zeros(9_000)})  # alone in its segment
    whole = [(r.seq, r.body, r.hash) for r in journal.records()]
    journal.compact()
    assert journal._db.execute("SELECT count(*) FROM segment").fetchone()[0] > 10
    assert journal._db.execute("SELECT count(*) FROM record").fetchone()[0] == 0
    assert [(r.seq, r.body, r.hash) for r in journal.records()] == whole
    assert [r.seq for r in journal.newest()] == [seq for seq, _, _ in reversed(whole)]
    journal.close()


def test_records_stay_where_their_segment_could_not_be_read(tmp_path, monkeypatch):
    journal = many(tmp_path / "journal.db")
    monkeypatch.setattr(JournalReader, "max_bytes", 20_000)
    with pytest.raises(JournalDamaged, match="larger than is read here"):
        journal.compact()
    assert len(list(journal.records())) == 61
    journal.close()


@pytest.mark.parametrize("change", ["body = zeroblob(40)", "last = last - 1", "first = 1", "hash = zeroblob(32)"])
def test_a_changed_segment_is_found(tmp_path, change):
    journal = many(tmp_path / "journal.db")
    journal.compact(keep=5)
    journal.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
        db.execute(f"UPDATE segment SET {change}")
    with pytest.raises(JournalDamaged):
        Journal.read(tmp_path / "journal.db")


def test_blocks_come_back_and_bombs_do_not_unfold():
    rows = [("ask", 0, b"abc"), ("tell", 0, b""), ("ask", 1, bytes(1000))]
    block = compress(rows)
    assert list(decompress(block)) == rows
    for bad in (block[:-1], block + b"x", (10**15).to_bytes(8, "little") + block[8:], b"", block[:8], bytes(50)):
        with pytest.raises(PackError):
            list(decompress(bad))
    with pytest.raises(PackError):
        list(decompress((10).to_bytes(8, "little") + block[8:]))  # it would decompress to more than it says


def test_a_flip_in_the_name_of_a_table_is_said_in_one_sentence(tmp_path):
    """SQLite quotes the name in its complaint; here it is no text any more."""
    path = tmp_path / "journal.db"
    Journal.create(path, {"config": {}}).close()
    whole = path.read_bytes()
    at = whole.index(b"tablesegment") + len("table")
    path.write_bytes(whole[:at] + bytes([whole[at] | 0x80]) + whole[at + 1 :])
    path.with_name("journal.seal").unlink()
    for look in (Journal.read, Journal.open):
        with pytest.raises(JournalDamaged):
            look(path)


def test_the_seal_finds_flips_where_no_record_is(tmp_path):
    path = tmp_path / "journal.db"
    many(path, 3).close()
    good = path.read_bytes()
    spare = good.index(bytes(64), 200)  # unused space in a page
    path.write_bytes(good[:spare] + b"\x01" + good[spare + 1 :])
    Journal.read(path).close()  # the chain cannot know
    with pytest.raises(JournalDamaged, match="sealed"):
        Journal.open(path)
    path.write_bytes(good)
    journal = Journal.open(path)
    assert not (tmp_path / "journal.seal").exists()  # taken away while the file is written
    journal.close()
    assert (tmp_path / "journal.seal").exists()


def test_a_newer_schema_that_is_only_in_the_wal_is_refused_untouched(tmp_path):
    path = tmp_path / "a" / "journal.db"
    many(path, 2).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 3")
        shutil.copytree(path.parent, tmp_path / "b", ignore=shutil.ignore_patterns("*-shm", "lock"))
    copy = tmp_path / "b"
    before = {p.name: p.read_bytes() for p in copy.iterdir()}
    assert before["journal.db"][60:64] == b"\0\0\0\2"
    with pytest.raises(VersionMismatch, match="schema 3"):
        Journal.open(copy / "journal.db")
    assert {n: (copy / n).read_bytes() for n in before} == before
