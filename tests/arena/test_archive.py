"""The archive: append-only, survives a kill, merges as a union, refuses what it cannot read."""

from __future__ import annotations

import gzip
import json

import pytest

from fedcohort.arena.archive import Archive, shipped
from fedcohort.arena.cells import entry
from fedcohort.arena.fill import archive_entries, missing_cells
from fedcohort.arena.problem_set import ARCHIVE_SEEDS, problem, tier_problems
from fedcohort.errors import StoreError, VersionMismatch


def row(selector="uniform", on="digits-skew", seed=0, **more):
    return {
        "selector": selector,
        "problem": on,
        "seed": seed,
        "digest": entry(selector).digest(problem(on), seed),
        "scores": {"anytime": 0.5},
        **more,
    }


def test_rows_come_back_in_order(tmp_path):
    archive = Archive(tmp_path / "a.jsonl.gz")
    rows = [row(seed=s) for s in (2, 0, 1)]
    for each in rows:
        archive.add(each)
    assert Archive(archive.path).rows == rows
    archive.rewrite()
    assert [r["seed"] for r in Archive(archive.path).rows] == [0, 1, 2]


def test_a_half_written_row_is_ignored_and_can_be_added_again(tmp_path):
    archive = Archive(tmp_path / "a.jsonl.gz")
    archive.add(row(seed=0))
    whole = archive.path.read_bytes()
    archive.add(row(seed=1))
    for cut in range(len(whole) + 1, archive.path.stat().st_size):
        part = tmp_path / "part.jsonl.gz"
        part.write_bytes(archive.path.read_bytes()[:cut])
        assert [r["seed"] for r in Archive(part).rows] == [0]
    again = Archive(part)
    again.rewrite()
    again.add(row(seed=1))
    assert [r["seed"] for r in Archive(part).rows] == [0, 1]


def test_the_same_rows_are_the_same_bytes(tmp_path):
    a, b = Archive(tmp_path / "a.gz"), Archive(tmp_path / "b.gz")
    for seed in (0, 1):
        a.add(row(seed=seed))
        b.add(row(seed=1 - seed))
    a.rewrite()
    b.rewrite()
    assert a.path.read_bytes() == b.path.read_bytes()


def test_merging_is_a_union_in_which_what_is_there_stays(tmp_path):
    a, b = Archive(tmp_path / "a.gz"), Archive(tmp_path / "b.gz")
    a.add(row(seed=0))
    b.add(row(seed=0, scores={"anytime": 0.9}))
    b.add(row(seed=1))
    assert a.merge(b.rows) == 1
    assert a.merge(b.rows) == 0
    assert [r["scores"]["anytime"] for r in Archive(a.path).rows] == [0.5, 0.5]


def test_two_writers_lose_nothing(tmp_path):
    a, b = Archive(tmp_path / "a.gz"), Archive(tmp_path / "a.gz")
    a.add(row(seed=0))
    b.add(row(seed=1))
    a.rewrite()
    b.add(row(seed=2))
    assert sorted(r["seed"] for r in Archive(a.path).rows) == [0, 1, 2]


def test_rows_of_another_configuration_do_not_count(tmp_path):
    archive = Archive(tmp_path / "a.gz")
    archive.add(row(seed=0))
    archive.add({**row(seed=1), "digest": "another"})
    archive.add({**row(seed=2), "problem": "gone"})
    archive.add({**row(seed=3), "selector": "gone-too"})
    assert [r["seed"] for r in archive.current()] == [0]


def test_what_is_missing(tmp_path):
    archive = Archive(tmp_path / "a.gz")
    archive.add(row())
    archive.add({**row(seed=1), "error": "it failed"})
    on = [problem("digits-skew")]
    assert missing_cells(archive, ["uniform"], on, [0, 1, 2]) == [("uniform", "digits-skew", 2)]
    assert len(missing_cells(archive, ["uniform"], on, [0, 1, 2], retry=True)) == 2
    assert missing_cells(archive, ["oort()"], on, [0]) == [("oort", "digits-skew", 0)]


def test_a_newer_row_replaces_the_older_one(tmp_path):
    archive = Archive(tmp_path / "a.gz")
    archive.add(row())
    on = [problem("digits-skew")]
    assert missing_cells(archive, ["uniform"], on, [0], force=True) == [("uniform", "digits-skew", 0)]
    archive.add(row(scores={"anytime": 0.9}))
    archive.rewrite()
    assert [r["scores"]["anytime"] for r in Archive(archive.path).current()] == [0.9]


def test_an_archive_of_another_version_is_refused(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(json.dumps({"format": 1, "arena": "v0", **row()}).encode() + b"\n"))
    with pytest.raises(VersionMismatch, match=r"arena v0 .* this is v1"):
        Archive(path)


@pytest.mark.parametrize(
    "data",
    [b"not gzip", gzip.compress(b"{}\n"), gzip.compress(b"nonsense\n"), gzip.compress(b"3\n")],
    ids=["not gzip", "empty", "nonsense", "number"],
)
def test_damaged_files_are_refused(tmp_path, data):
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    with pytest.raises(StoreError, match="restore the file"):
        Archive(path)


def test_no_file_is_an_empty_archive(tmp_path):
    assert Archive(tmp_path / "none.gz").rows == []


def test_the_shipped_archive_counts():
    archive = Archive()
    assert shipped().is_file()
    rows = archive.current()
    quick = {p.name for p in tier_problems("quick")}
    there = {(r["selector"], r["problem"], r["seed"]) for r in rows}
    complete = [n for n in archive_entries() if all((n, on, s) in there for on in quick for s in ARCHIVE_SEEDS)]
    lacking = sorted(set(archive_entries()) - set(complete))
    assert {"uniform", "oracle"} <= set(complete)
    assert len(lacking) <= 3, f"run `fedcohort arena fill --tier quick`: results are missing or outdated for {lacking}"
    assert all(len(r["curve"]) <= 60 for r in rows if "curve" in r)
    assert [r["error"] for r in rows if "error" in r] == []
    assert shipped().stat().st_size < 4_000_000
