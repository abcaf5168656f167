"""The journal and the snapshots: durable, chained, refused when anything does not check out."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from fedcohort.core.pack import PackError, pack, unpack
from fedcohort.errors import JournalDamaged, RunExists, RunLocked, StoreError, VersionMismatch
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots, write_durably


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "journal.db"


def filled(path, n=5):
    journal = Journal.create(path, {"config": {"seed": 1}})
    for index in range(n):
        journal.append("ask", index, {"clients": np.arange(index + 1)}, {"clock": float(index)})
    return journal


def test_records_come_back_as_written(path):
    journal = filled(path)
    head = journal.head
    journal.close()
    again = Journal.open(path)
    assert again.header == {"config": {"seed": 1}}
    assert [r.round for r in again.records("ask")] == list(range(5))
    arrays, meta = list(again.records("ask"))[3].unpack()
    assert arrays["clients"].tolist() == [0, 1, 2, 3]
    assert meta == {"clock": 3.0}
    assert again.head == head
    again.close()


def test_a_second_journal_in_the_same_place_is_refused(path):
    filled(path).close()
    before = path.read_bytes()
    with pytest.raises(RunExists):
        Journal.create(path, {})
    assert path.read_bytes() == before


def test_two_processes_cannot_own_one_folder(path):
    journal = filled(path)
    with pytest.raises(RunLocked, match=str(os.getpid())):
        Journal.open(path)
    code = f"from fedcohort.storage.journal import Journal; from pathlib import Path; Journal.open(Path({str(path)!r}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "RunLocked" in other.stderr
    journal.append("tell", 4, {})  # the owner goes on
    reader = Journal.read(path)  # and anybody may look
    assert [r.kind for r in reader.records()][-1] == "tell"
    reader.close()
    journal.close()


@pytest.mark.parametrize("column", ["body", "hash", "kind", "round"])
def test_a_changed_record_is_found(path, column):
    filled(path).close()
    with sqlite3.connect(path) as db:
        value = {"body": b"x", "hash": b"y" * 32, "kind": "tell", "round": 77}[column]
        db.execute(f"UPDATE record SET {column} = ? WHERE seq = 3", (value,))
    with pytest.raises(JournalDamaged, match="record 3"):
        Journal.open(path)


def test_a_missing_record_is_found(path):
    filled(path).close()
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM record WHERE seq = 2")
    with pytest.raises(JournalDamaged, match="record 2"):
        Journal.open(path)


@pytest.mark.parametrize("keep", [0, 50, 100, 4096, 5000])
def test_a_truncated_journal_is_refused_untouched(path, keep):
    filled(path, 60).close()
    data = path.read_bytes()[:keep]
    path.write_bytes(data)
    with pytest.raises(JournalDamaged):
        Journal.open(path)
    assert path.read_bytes() == data


def test_foreign_and_newer_files_are_refused_untouched(path, tmp_path):
    filled(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(VersionMismatch, match="schema 99"):
        Journal.open(path)
    assert path.read_bytes() == before
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE t (x)")
    with pytest.raises(JournalDamaged, match="not written by fedcohort"):
        Journal.open(other)
    with pytest.raises(StoreError, match="no journal"):
        Journal.open(tmp_path / "nothing.db")


def test_killed_writers_lose_nothing_they_were_told_is_written(path):
    """A child appends and prints each acknowledged record; SIGKILL; every printed one is there; the lock is free."""
    path.parent.mkdir(parents=True)
    code = f"""
    import sys, numpy as np
    from pathlib import Path
    from fedcohort.storage.journal import Journal
    j = Journal.create(Path({str(path)!r}), {{}})
    for i in range(100000):
        j.append("ask", i, {{"clients": np.arange(50)}})
        print(i, flush=True)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    acknowledged = -1
    for line in child.stdout:
        acknowledged = int(line)
        if acknowledged >= 40:
            break
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate(timeout=30)
    acknowledged = max([acknowledged, *(int(x) for x in rest.split())])
    journal = Journal.open(path)
    assert len(list(journal.records("ask"))) >= acknowledged + 1
    journal.close()


def test_a_full_disk_is_said_and_loses_nothing(path):
    journal = filled(path)
    journal._db.execute("PRAGMA max_page_count = 8")
    with pytest.raises(StoreError, match="could not be written"):  # noqa: PT012 - the one that fails is not known
        for index in range(5, 400):
            journal.append("ask", index, {"clients": np.arange(2000)})
    head = journal.head
    journal.close()
    again = Journal.open(path)
    assert again.head == head
    again.close()


def test_snapshots_keep_two_generations_and_skip_damage(tmp_path):
    snapshots = Snapshots(tmp_path / "s")
    assert snapshots.latest() is None
    for index in range(1, 5):
        snapshots.save(index, {"x": np.full(3, index)}, {"note": "n"})
    assert sorted(p.name for p in snapshots.folder.iterdir()) == ["round-00000003.snapshot", "round-00000004.snapshot"]
    index, arrays, meta = snapshots.latest()
    assert (index, arrays["x"].tolist(), meta["note"]) == (4, [4, 4, 4], "n")
    newest = snapshots.folder / "round-00000004.snapshot"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    assert snapshots.latest()[0] == 3
    shutil.copy(snapshots.folder / "round-00000003.snapshot", snapshots.folder / "round-00000009.snapshot")
    assert snapshots.latest()[0] == 3  # a copy under another round's name is not that round


def test_every_single_bit_flip_of_a_snapshot_is_found(tmp_path):
    snapshots = Snapshots(tmp_path / "s")
    snapshots.save(1, {"x": np.arange(4)}, {})
    file = snapshots.folder / "round-00000001.snapshot"
    good = file.read_bytes()
    for bit in range(0, len(good) * 8, 7):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << (bit % 8)
        file.write_bytes(bytes(bad))
        assert snapshots.latest() is None


def test_durable_write_leaves_the_old_file_when_it_fails(tmp_path):
    target = tmp_path / "f"
    write_durably(target, b"old")
    (tmp_path / ".f.part").mkdir()
    with pytest.raises((StoreError, OSError)):
        write_durably(target, b"new")
    assert target.read_bytes() == b"old"


def test_packs_round_trip_and_refuse_damage():
    arrays = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": np.array(3.5), "c": np.empty((0, 4), np.float32)}
    data = pack(arrays, {"k": [1, "x"]})
    back, meta = unpack(data)
    assert meta == {"k": [1, "x"]}
    for name, value in arrays.items():
        assert back[name].dtype == value.dtype
        np.testing.assert_array_equal(back[name], value)
    assert pack(dict(reversed(arrays.items())), {"k": [1, "x"]}) == data
    for cut in range(len(data)):
        with pytest.raises(PackError):
            unpack(data[:cut])
    with pytest.raises(PackError, match="plain numbers"):
        pack({"o": np.array([{}], dtype=object)})
    bad = data.replace(b'"<i2"', b'"|O8"')
    with pytest.raises(PackError):
        unpack(bad)


def test_several_processes_may_write_one_shared_file(tmp_path):
    """Two sweeps on one store: without names of their own, one takes away the other's temporary file."""
    code = (
        "import sys; from pathlib import Path; from fedcohort.storage.snapshots import write_durably\n"
        "for _ in range(100): write_durably(Path(sys.argv[1]), sys.argv[2].encode() * 1000, shared=True)"
    )
    path = tmp_path / "shared.json"
    both = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "ab"]
    assert [child.wait(120) for child in both] == [0, 0]
    assert path.read_bytes() in (b"a" * 1000, b"b" * 1000)
    assert list(tmp_path.iterdir()) == [path]
