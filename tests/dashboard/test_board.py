"""What is shown of a folder of runs: compared with what was written, and with the journal read the plain way."""

from __future__ import annotations

import os
import shutil
import socket

import numpy as np
import pytest
from tests.dashboard.runs import POPULATION, Served, begin, one_round, write

from fedcohort import Dataset, simulate, task_from
from fedcohort.dashboard.board import Board
from fedcohort.dashboard.track import Track
from fedcohort.errors import JournalDamaged, StoreError
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import JournalReader


def looked(board):
    board._looked = -1.0
    board.refresh()
    return {e.name: e.brief for e in board.entries.values()}


def test_the_list(served):
    one = served.runs()["one"]
    wanted = {"state": "finished", "selector": "oort", "method": "fedavg", "world": "my-world", "task": "my-task"}
    wanted |= {"seed": 3, "rounds": 100, "done": 7, "accuracy": 0.06, "clock": 49.0, "readable": True, "note": ""}
    assert {k: one[k] for k in wanted} == wanted
    assert sorted(served.runs()) == ["one", "three", "two"]


def test_a_run_in_numbers(served):
    """Accuracy 0, 0.01 ... 0.06, seven virtual seconds a round, 1,000 bytes up; two of five clients a round.

    Asked: round i asks i and i + 1 modulo 5, so 7 rounds give clients 0..4 the counts 3, 4, 3, 2, 2 (derived by hand):
    Jain 14^2 / (5 * 42) = 0.9333.
    """
    run = served.runs()["two"]["id"]
    found = served.json(f"/api/runs/{run}?target=0.03")
    assert found["best"] == found["last"] == 0.06
    assert (found["best_round"], found["reached_rounds"], found["reached_clock"]) == (6, 4, 28.0)
    assert (found["bytes"], found["coverage"], found["population"], found["clock"]) == (7000.0, 1.0, 5, 49.0)
    assert found["jain"] == pytest.approx(196 / 210)
    assert served.json(f"/api/runs/{run}?target=0.5")["reached_rounds"] is None


def test_curve_and_map(served):
    run = served.runs()["two"]["id"]
    curve = served.json(f"/api/runs/{run}/curve?name=accuracy")
    assert curve["round"] == list(range(7))
    assert curve["value"] == [i / 100 for i in range(7)]
    assert curve["clock"] == [7.0 * (i + 1) for i in range(7)]
    assert "bytes_up" in curve["names"]
    found = served.json(f"/api/runs/{run}/map?last=2")
    assert found["cells"] == [5, 0, 0, 5, 1, 2, 6, 1, 0, 6, 2, 0]
    assert (found["first"], found["next"], found["slots"]) == (5, 7, [0, 1, 2, 3, 4])
    assert found["traits"]["asked"] == [3, 4, 3, 2, 2]


def test_one_client(served):
    run = served.runs()["two"]["id"]
    found = served.json(f"/api/runs/{run}/clients/3")
    assert (found["asked"], found["outcomes"], found["parts"]) == (2, {"OK": 1, "FAILED": 1}, ["utility"])
    first, second = found["visits"]
    assert (first["round"], first["outcome"], first["reason"], first["seconds"]) == (2, "FAILED", "dropped", 2.5)
    assert first["why"]["utility"] == {"value": 32.0, "mean": 27.0, "above": 0, "of": 2}
    assert (second["round"], second["outcome"]) == (3, "OK")
    assert served.json(f"/api/runs/{run}/clients/99")["asked"] == 0


def test_thinned_curves_keep_the_spikes(tmp_path):
    journal = begin(tmp_path / "long")
    for index in range(60):
        one_round(journal, index, accuracy=0.9 if index == 31 else 0.1 if index == 44 else 0.5)
    journal.close()
    with Served(tmp_path) as server:
        curve = server.json(f"/api/runs/{server.runs()['long']['id']}/curve?most=10")
    assert len(curve["round"]) <= 12
    assert {31, 44} <= set(curve["round"])
    assert curve["next"] == 60


def test_states(tmp_path):
    write(tmp_path / "finished")
    write(tmp_path / "stopped", finished=False)
    for name in ("journal.db", "journal.seal"):
        os.utime(tmp_path / "stopped" / name, (1, 1))
    going = begin(tmp_path / "going")
    one_round(going, 0)
    for name in ("journal.db", "journal.db-wal"):
        os.utime(tmp_path / "going" / name, (1, 1))  # only the lock says that it goes on
    board = Board([tmp_path])
    states = {name: brief["state"] for name, brief in looked(board).items()}
    assert states == {"finished": "finished", "stopped": "unfinished", "going": "running"}
    going.close()
    for file in (tmp_path / "going").iterdir():
        os.utime(file, (1, 1))
    assert looked(board)["going"]["state"] == "unfinished"


def test_damaged_and_foreign_folders_are_shown_as_such(tmp_path):
    write(tmp_path / "good")
    good = (tmp_path / "good" / "journal.db").read_bytes()
    contents = {"empty-file": b"", "text": b"hello" * 100, "cut": good[:5000], "zeros": good[:100] + bytes(9000)}
    contents["newer"] = good[:60] + (99).to_bytes(4, "big") + good[64:]
    contents["other-program"] = good[:68] + b"ABCD" + good[72:]
    for name, data in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.db").write_bytes(data)
    (tmp_path / "photos").mkdir()
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "good.old1").mkdir()
    (tmp_path / "folder-as-journal" / "journal.db").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "journal.db")
    (tmp_path / "socket").mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket" / "journal.db"))
    with Served(tmp_path) as server:
        found = server.runs()
        assert server.json(f"/api/runs/{found['good']['id']}/curve")["next"] == 5
        for name, run in found.items():
            if name != "good":
                assert (run["readable"], bool(run["note"])) == (False, True), name
                assert run["state"] == ("foreign" if name in ("photos", "newer") else "damaged"), name
                assert server.status(f"/api/runs/{run['id']}/curve")[0] == 404
    assert set(found) == {"good", "photos", "folder-as-journal", "pipe", "socket", *contents}


def test_links_are_not_followed(tmp_path):
    write(tmp_path / "elsewhere" / "hidden")
    write(tmp_path / "runs" / "real")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere" / "hidden")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "half").mkdir()
    (tmp_path / "runs" / "half" / "journal.db").symlink_to(tmp_path / "elsewhere" / "hidden" / "journal.db")
    write(tmp_path / "runs" / "wal", finished=False)
    (tmp_path / "runs" / "wal" / "journal.db-wal").symlink_to(tmp_path / "elsewhere" / "hidden" / "journal.db")
    found = looked(Board([tmp_path / "runs"]))
    assert [n for n, brief in found.items() if brief["readable"]] == ["real"]
    assert {"link", "loop", "half"} <= set(found)


def test_a_chain_that_does_not_fit_is_said(tmp_path):
    write(tmp_path / "forged")
    path = tmp_path / "forged" / "journal.db"
    data = path.read_bytes()
    at = data.index(b'"bytes_up": 1000.0')
    path.write_bytes(data[:at] + b'"bytes_up": 1000.5' + data[at + 18 :])
    with Served(tmp_path) as server:
        run = server.runs()["forged"]
        assert "does not fit the chain" in server.json(f"/api/runs/{run['id']}/curve")["error"]
        assert "does not fit the chain" in server.json(f"/api/runs/{run['id']}/clients/1")["error"]


def test_names_that_are_not_text(tmp_path):
    """A name in bytes that are no UTF-8, in right-to-left and in emoji."""
    write(tmp_path / "ab")
    for name in (
        b"bad-\xff\xfe",
        "\u202egnp.exe".encode(),
        "🙂".encode(),
        b"<img src=x onerror=alert(1)>",
        b"new\nline",
    ):
        os.rename(shutil.copytree(tmp_path / "ab", tmp_path / "copy"), os.path.join(os.fsencode(tmp_path), name))
    with Served(tmp_path) as server:
        names = set(server.runs())
    assert {"\u202egnp.exe", "🙂", "<img src=x onerror=alert(1)>", "new\nline", "ab", "bad-??"} == names


def test_hostile_contents_are_data(tmp_path):
    """Texts in the place of numbers, other things in the place of texts, tags everywhere: never a raw "<"."""
    evil = "<script>alert(1)</script>"
    journal = begin(
        tmp_path / "evil", selector=evil, world=["x"], task={"a": evil}, seed=evil, rounds=1e400, method=evil * 99
    )
    for index in range(3):
        one_round(journal, index, accuracy=evil, reason=evil, part=evil, name=evil)
    clients = {"clients": np.array([1]), "outcome": np.array([77], np.int8), "duration": np.array([1.0])}
    journal.append("tell", 3, clients, {"metrics": ["no mapping"], "reasons": 5})
    journal.append("strange", 3, {}, {})
    journal.close()
    with Served(tmp_path) as server:
        run = server.runs()["evil"]
        assert run["selector"] == evil
        assert (run["world"], run["task"], run["seed"], run["rounds"]) == ("", "", None, None)
        assert len(run["method"]) == 200
        for rest in ("", "/curve", "/map", "/clients/3", "/clients/1", "/traits", f"/curve?name={evil}"):
            head, body = server.ask(f"/api/runs/{run['id']}{rest}")
            assert head.startswith("HTTP/1.1 200"), rest
            assert "content-type: application/json" in head
            assert b"<" not in body
        assert server.json(f"/api/runs/{run['id']}/clients/3")["parts"] == [evil]
        assert b"<" not in server.ask("/api/runs")[1]


def test_a_record_of_the_wrong_form_is_said(tmp_path):
    for name, clients in (("float", np.array([0.5])), ("flat", np.array(3)), ("long", np.arange(9))):
        journal = begin(tmp_path / name)
        journal.append("tell", 0, {"clients": clients, "outcome": np.zeros(1, np.int8)}, {"metrics": {}})
        journal.close()
        with pytest.raises(JournalDamaged):
            Track(tmp_path / name / "journal.db").advance()


def test_a_bomb_is_not_unfolded(tmp_path):
    folder = write(tmp_path / "bomb")
    journal = Journal.open(folder / "journal.db")
    journal.compact()
    journal._db.execute("UPDATE segment SET body = x'0000000002000000' || substr(body, 9)")
    journal._db.commit()
    journal.close()
    assert looked(Board([tmp_path]))["bomb"]["state"] == "damaged"


def test_folded_journals_read_the_same(tmp_path):
    folder = write(tmp_path / "run", rounds=9)
    plain, growing = Track(folder / "journal.db"), Track(folder / "journal.db")
    plain.advance()
    reader = JournalReader(folder / "journal.db")
    before = plain.client(3), plain.cells(0).tolist(), reader.header
    journal = Journal.open(folder / "journal.db")
    journal.compact(keep=2)
    journal.close()
    growing.advance()
    assert (growing.client(3), growing.cells(0).tolist(), reader.header) == before
    plain.advance()  # read before the folding, goes on after it
    assert plain.rounds == 9


def test_looking_leaves_nothing_behind(tmp_path):
    folder = write(tmp_path / "runs" / "run")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}
    with Served(tmp_path / "runs") as server:
        run = server.runs()["run"]["id"]
        for rest in ("", "/curve", "/map", "/clients/1", "/traits"):
            server.json(f"/api/runs/{run}{rest}")
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()} == before


def test_roots(tmp_path):
    with pytest.raises(StoreError, match="there is no such folder"):
        Board([tmp_path / "nowhere"])
    assert looked(Board([tmp_path])) == {}  # runs may come later
    run = write(tmp_path / "deep" / "er" / "run")
    assert list(looked(Board([tmp_path / "deep"]))) == ["er/run"]
    assert list(looked(Board([run]))) == ["run"]
    assert sorted(looked(Board([tmp_path / "deep", run]))) == ["deep/er/run"]


def test_many_tracks_are_forgotten_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcohort.dashboard.board.TRACKS", 2)
    for name in "abcd":
        write(tmp_path / name, rounds=1)
    board = Board([tmp_path])
    looked(board)
    for run in board.entries:
        board.track(run)
    assert len(board._tracks) == 2
    assert POPULATION == 5


def test_clients_are_called_by_their_names(tmp_path):
    data = Dataset.from_arrays(np.zeros((12, 2)), np.arange(12) % 2, client=["north", "south", "west"] * 4)
    simulate(task=task_from(data, hidden=()), rounds=2, cohort_size=2, engine="numpy", out=tmp_path / "run")
    track = Track(tmp_path / "run" / "journal.db")
    track.advance()
    assert [track.client(slot)["name"] for slot in range(4)] == ["north", "south", "west", "3"]
