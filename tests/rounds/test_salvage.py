"""A record that cannot be read ends no run: it is refused and named, the damaged file is kept, and the run goes on."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

import numpy as np
import pytest
from tests.rounds.test_recovery import ROUNDS, Crash, OnFlower, Simulated, records
from typer.testing import CliRunner

from fedcohort.cli.main import app
from fedcohort.core.pack import pack
from fedcohort.errors import JournalDamaged
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import resume, run
from fedcohort.experiment.verification import verify
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import JournalReader, chain
from fedcohort.storage.run_folder import RunFolder
from fedcohort.storage.salvage import first_unreadable

HUGE = (17 * 2**20).to_bytes(8, "little")


def corrupt_header(body):
    return body[:16] + b"\x1b[2J" + body[20:]


def oversized_header(body):
    """What a client could once bring about: a header that is longer than any that is read."""
    return body[:8] + HUGE + body[16:]


def truncated(body):
    return body[: len(body) // 2]


DAMAGE = {"corrupt header": corrupt_header, "oversized header": oversized_header, "truncated": truncated}


def spoil(folder, kind, index, how, *, chained):
    """Damage one record; `chained`: as if it had been written so, with hashes that fit."""
    path = RunFolder(folder).journal
    db = sqlite3.connect(path)
    (seq,) = db.execute("SELECT min(seq) FROM record WHERE kind = ? AND round >= ?", (kind, index)).fetchone()
    if how == "unknown kind":
        db.execute("UPDATE record SET kind = 'gossip' WHERE seq = ?", (seq,))
    else:
        (body,) = db.execute("SELECT body FROM record WHERE seq = ?", (seq,)).fetchone()
        db.execute("UPDATE record SET body = ? WHERE seq = ?", (DAMAGE[how](body), seq))
    if chained:
        hash_ = b"\0" * 32
        for number, name, round_, body in db.execute(
            "SELECT seq, kind, round, body FROM record ORDER BY seq"
        ).fetchall():
            hash_ = chain(hash_, name, round_, body)
            db.execute("UPDATE record SET hash = ? WHERE seq = ?", (hash_, number))
    db.commit()
    db.close()
    path.with_name("journal.seal").unlink(missing_ok=True)
    return seq


@pytest.fixture(scope="module", params=[Simulated, OnFlower])
def whole(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    made = request.param(folder / "run", "oort", 0)
    made.run()
    return request.param, folder / "run", made.model().copy()


@pytest.mark.parametrize("how", [*DAMAGE, "unknown kind"])
@pytest.mark.parametrize(
    ("kind", "index", "chained"),
    [("ask", 2, False), ("tell", 2, True), ("ask", ROUNDS - 1, True), ("tell", ROUNDS - 1, False)],
)
def test_a_run_survives_a_record_that_cannot_be_read(whole, tmp_path, caplog, kind, index, how, chained):
    backend, source, model = whole
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    seq = spoil(folder, kind, index, how, chained=chained)
    spoilt = RunFolder(folder).journal.read_bytes()
    found = first_unreadable(JournalReader(RunFolder(folder).journal))
    assert found is not None
    assert found[0] == seq

    again = backend(folder, "oort", 0)
    again.run()
    (cut,) = JournalReader(RunFolder(folder).journal).cuts
    assert cut["first"] == seq
    assert f"record {seq}" in cut["why"]
    assert (folder / cut["file"]).read_bytes() == spoilt  # nothing is lost
    assert f"cut before record {seq}" in caplog.text
    asks, tells = records(folder)
    assert asks[-1][0] == tells[-1][0] == ROUNDS - 1
    np.testing.assert_array_equal(again.model(), model)
    if backend is Simulated or index >= ROUNDS - 1:
        assert (asks, tells) == records(source)  # the same rounds, done again
    else:  # nobody can train rounds 2 to 4 again: the model is that of the newest checkpoint, and so are the clients
        assert again.strategy._backend.clients.roster.ids == tuple(f"{i:02}" for i in range(8))


@pytest.mark.parametrize("kind", ["roster", "ask", "tell"])
def test_a_deployment_goes_on_and_all_that_is_left_verifies(tmp_path, kind):
    """Also where the record of who is behind which slot is lost: the roster has a file of its own."""
    OnFlower(tmp_path, "oort", 0).run()
    seq = spoil(tmp_path, kind, 0, "oversized header", chained=True)
    with pytest.raises(JournalDamaged, match=f"record {seq}"):
        verify(tmp_path)
    again = OnFlower(tmp_path, "oort", 0)
    assert again.engine.session.index == ROUNDS  # six rounds were done; none is trained again
    again.strategy._begin = lambda *args: again.engine
    again.strategy.start(again.grid, again.initial, num_rounds=ROUNDS + 2)
    assert again.strategy._backend.clients.roster.ids == tuple(f"{i:02}" for i in range(8))
    found = verify(tmp_path)
    assert len(found.cuts) == 1
    assert f"cut before record {seq}" in found.cuts[0]
    assert "(unchanged)" in found.cuts[0]
    done = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert done.exit_code == 0
    assert f"damage    cut before record {seq}" in done.output


def test_a_process_that_dies_after_the_cut_is_followed_by_one_that_goes_on(tmp_path):
    OnFlower(tmp_path, "oort", 0).run()
    spoil(tmp_path, "ask", 1, "truncated", chained=False)
    Journal.open(RunFolder(tmp_path).journal, repair=True).close()
    assert OnFlower(tmp_path, "oort", 0).engine.session.index == ROUNDS


@pytest.mark.parametrize("dies_at", ["state", "ask", "tell", "nowhere"])
def test_a_deployment_that_lost_its_old_records_goes_on_twice(tmp_path, monkeypatch, dies_at):
    """No checkpoint was made before the damage. The process that goes on may die at once, and the next one too."""
    OnFlower(tmp_path, "oort", 0).run()
    spoil(tmp_path, "ask", 1, "truncated", chained=False)
    append = Journal.append

    def dying(self, kind, *rest):
        append(self, kind, *rest)
        if kind == dies_at:
            self.close()
            raise Crash

    for _ in range(2):
        monkeypatch.setattr(Journal, "append", dying)
        with contextlib.suppress(Crash):
            again = OnFlower(tmp_path, "oort", 0)
            again.strategy._backend.memory.close()
    monkeypatch.undo()
    again = OnFlower(tmp_path, "oort", 0)
    assert again.engine.session.index == ROUNDS
    again.strategy._begin = lambda *args: again.engine
    again.strategy.start(again.grid, again.initial, num_rounds=ROUNDS + 2)
    asks, tells = records(tmp_path)
    assert [index for index, _ in asks] == [index for index, _ in tells] == [0, ROUNDS - 1, ROUNDS, ROUNDS + 1]
    assert len(verify(tmp_path).cuts) == 1


@pytest.mark.parametrize("place", [0.01, 0.3, 0.6])
def test_a_bit_that_flips_in_the_wal_after_a_kill_ends_no_deployment(tmp_path, monkeypatch, place):
    """SQLite leaves out everything behind it, without a word; the checkpoints know that it was there."""
    run, killed = OnFlower(tmp_path / "run", "oort", 0), tmp_path / "killed"
    replies = run.engine.backend.replies

    def copied(*args):
        if run.engine.session.index == 4 and not killed.exists():
            shutil.copytree(tmp_path / "run", killed, ignore=shutil.ignore_patterns("*-shm"))
        return replies(*args)

    monkeypatch.setattr(run.engine.backend, "replies", copied)
    run.run()
    wal = killed / "journal.db-wal"
    data = bytearray(wal.read_bytes())
    data[int(len(data) * place)] ^= 1
    wal.write_bytes(data)
    again = OnFlower(killed, "oort", 0)
    again.run()
    assert len(again.engine.history.rows) >= 2
    assert records(killed)[1][-1][0] == ROUNDS - 1
    (cut,) = verify(killed).cuts
    assert "the checkpoint of round 4 knows of records that are gone" in cut
    assert (killed / "journal.damaged-1.db-wal").read_bytes() == data
    np.testing.assert_array_equal(again.model(), run.model())


def test_a_finished_run_of_the_command_line_is_mended_and_verified(tmp_path):
    config = RunConfig(task="quadratic", world="mixed-v1(clients=20)", rounds=4, cohort_size=3)
    folder = tmp_path / "run"
    first = run(config, folder)
    spoil(folder, "tell", 1, "truncated", chained=False)
    assert resume(folder).history.rows == first.history.rows
    assert verify(folder).rounds == 4
    spoil(folder, "open", -1, "truncated", chained=False)
    with pytest.raises(JournalDamaged, match="nothing to go on from"):
        resume(folder)


def test_bytes_that_changed_where_no_record_is_are_said_and_harmless(tmp_path):
    journal = Journal.create(tmp_path / "journal.db", {"seed": 1})
    journal.append("ask", 0, {}, {"clock": 0.0})
    journal.close()
    (tmp_path / "journal.seal").write_bytes(b"0" * 64)
    with pytest.raises(JournalDamaged, match="sealed"):
        Journal.open(tmp_path / "journal.db")
    repaired = Journal.open(tmp_path / "journal.db", repair=True)
    assert [r.kind for r in repaired.records()] == ["open", "ask", "cut"]
    assert repaired.cuts[0]["records"] == 0
    repaired.close()


def test_names_in_a_journal_are_no_markup_and_no_control_sequences(tmp_path):
    """Whoever writes into a state folder cannot take over the terminal of the one who looks at it."""
    journal = Journal.create(tmp_path / "journal.db", {"kind": "flower"})
    forged = {"ids": ["[/red]", "\x1b[2J\nround 9"], "profiles": [{}, {}], "refused": {"[bold]": "\x07why"}}
    journal.append("roster", 0, {}, forged)
    journal.append("again\x1b[2J", 0, {}, {"[x]": "\x1b]0;title\x07"})
    journal.append("cut", 0, {}, {"first": 1, "records": 1, "why": "\x1b[2J[/red]", "file": "x", "sha256": ""})
    journal.close()
    done = CliRunner().invoke(app, ["journal", "show", str(tmp_path)])
    assert done.exit_code == 0
    assert "[/red]" in done.output
    assert not {"\x1b", "\x07"} & set(done.output)
    done = CliRunner().invoke(app, ["flower", "status", str(tmp_path)])
    assert "[/red]" in done.output
    assert "\x1b" not in done.output


def test_what_a_cut_says_is_no_control_sequence_either(tmp_path):
    OnFlower(tmp_path, "uniform", 0).run()
    journal = Journal.open(RunFolder(tmp_path).journal)
    journal.append("cut", 0, {}, {"first": 1, "records": 1, "why": "\x1b[2J[/red]", "file": "x\x07", "sha256": ""})
    journal.close()
    done = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert "damage    cut before record 1: ?[2J[/red]" in done.output
    assert not {"\x1b", "\x07"} & set(done.output)


def test_a_damaged_name_in_a_pack_does_not_reach_the_terminal_raw(tmp_path):
    body = pack({"\x1b[2J": np.zeros(2)})
    journal = Journal.create(tmp_path / "journal.db", {})
    journal.close()
    db = sqlite3.connect(tmp_path / "journal.db")
    spoilt = body.replace(b'"<f8"', b'"<q8"')
    (before,) = db.execute("SELECT hash FROM record").fetchone()
    db.execute("INSERT INTO record VALUES (1, 'ask', 0, ?, ?)", (spoilt, chain(before, "ask", 0, spoilt)))
    db.commit()
    db.close()
    (tmp_path / "journal.seal").unlink()
    with pytest.raises(JournalDamaged) as caught:
        [r.unpack() for r in JournalReader(tmp_path / "journal.db").records()]
    assert str(caught.value).isprintable()
