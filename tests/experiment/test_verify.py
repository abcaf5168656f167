"""`verify`: honest runs pass; a tampered journal, a changed seed, another selector's cohort do not."""

from __future__ import annotations

import contextlib
import sqlite3

import numpy as np
import pytest

from fedcohort.core.pack import pack, unpack
from fedcohort.errors import FedcohortError, JournalDamaged, StoreError
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import run
from fedcohort.experiment.verification import verify
from fedcohort.storage.journal import GENESIS, chain


def made(tmp_path, selector="oort", rounds=6):
    config = RunConfig(selector=selector, task="digits-softmax", rounds=rounds, cohort_size=5, seed=2)
    run(config, tmp_path / "r")
    return tmp_path / "r"


def forge(folder, change):
    """Change one record and recompute every hash after it, as somebody with time would."""
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as db, db:
        hash_ = GENESIS
        rows = db.execute("SELECT seq, kind, round, body FROM record ORDER BY seq").fetchall()
        for seq, kind, index, body in rows:
            arrays, meta = unpack(body)
            body = pack(*change(kind, index, arrays, meta))
            hash_ = chain(hash_, kind, index, body)
            db.execute("UPDATE record SET body = ?, hash = ? WHERE seq = ?", (body, hash_, seq))


@pytest.mark.parametrize("selector", ["uniform", "oort", "flash", "fedacs"])
def test_honest_runs_pass(tmp_path, selector):
    found = verify(made(tmp_path, selector))
    assert found.rounds == 6
    assert found.how == "replayed from the journal"
    assert found.snapshots == 2


def test_a_run_that_must_be_done_again_passes_although_replies_come_in_another_order(tmp_path):
    """HeteRo-Select reads whole updates. Of five clients a round in mixed-v1 some drop out and stand last."""
    found = verify(made(tmp_path, "hetero-select", rounds=8))
    assert found.how == "run again"
    assert found.rounds == 8


def test_a_forged_cohort_is_found_even_when_every_hash_fits(tmp_path):
    folder = made(tmp_path)

    def other(kind, index, arrays, meta):
        if kind == "ask" and index == 3:
            clients = arrays["clients"].copy()
            clients[0] = next(c for c in range(50) if c not in clients)
            arrays = {**arrays, "clients": clients}
        return arrays, meta

    forge(folder, other)
    with pytest.raises(JournalDamaged, match="round 3"):
        verify(folder)


def test_a_forged_report_is_found_where_it_changes_a_choice(tmp_path):
    folder = made(tmp_path, "oort(explore=0.2)", rounds=20)

    def richer(kind, index, arrays, meta):
        if kind == "tell":
            arrays = {k: v * np.arange(1, v.size + 1) ** 4 if k == "signal.utility" else v for k, v in arrays.items()}
        return arrays, meta

    forge(folder, richer)
    with pytest.raises(JournalDamaged):
        verify(folder)


def test_a_plain_edit_is_found_by_the_chain(tmp_path):
    folder = made(tmp_path)
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as db, db:
        db.execute("UPDATE record SET body = zeroblob(20) WHERE seq = 4")
    with pytest.raises(JournalDamaged, match="record 4"):
        verify(folder)


def test_a_damaged_snapshot_is_named(tmp_path):
    folder = made(tmp_path)
    file = sorted((folder / "snapshots").iterdir())[-1]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreError, match=file.name):
        verify(folder)


def test_nothing_to_verify(tmp_path):
    with pytest.raises(FedcohortError, match="no such folder"):
        verify(tmp_path / "none")
