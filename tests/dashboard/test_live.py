"""Events while runs go on: only what is new, and nothing breaks when a run goes away."""

from __future__ import annotations

import shutil

from tests.dashboard.runs import Served, begin, one_round, write


def until(events, kind, test=lambda value: True):
    """The first event of this kind that passes."""
    return next(value for k, value in events if k == kind and test(value))


def test_new_rounds_come_once_and_only_they(tmp_path):
    journal = begin(tmp_path / "run")
    for index in range(3):
        one_round(journal, index)
    with Served(tmp_path) as server:
        run = server.runs()["run"]["id"]
        with server.stream(f"version=0&runs={run}:0:3&map={run}") as events:
            assert until(events, "list")["changed"][0]["done"] == 3
            one_round(journal, 3)
            first = until(events, "rows")
            one_round(journal, 4)
            one_round(journal, 5)
            rows, cells = first["rows"], first["cells"]
            while len(rows) < 3:
                more = until(events, "rows")
                rows, cells = rows + more["rows"], cells + more["cells"]
    assert rows == [[3, 28.0, 0.03], [4, 35.0, 0.04], [5, 42.0, 0.05]]
    assert cells == [3, 3, 0, 3, 4, 0, 4, 0, 0, 4, 4, 0, 5, 0, 0, 5, 1, 2]
    journal.close()


def test_a_browser_that_comes_back_goes_on_where_it_was(tmp_path):
    journal = begin(tmp_path / "run")
    for index in range(6):
        one_round(journal, index)
    with Served(tmp_path) as server:
        run = server.runs()["run"]["id"]
        place = f"last-event-id: 1/{run}:0:4"
        with server.stream(f"version=0&runs={run}:0:0 HTTP/1.1\r\n{place}\r\nx-rest:") as events:
            assert [row[0] for row in until(events, "rows")["rows"]] == [4, 5]
    journal.close()


def test_runs_come_and_go(tmp_path):
    write(tmp_path / "old")
    with Served(tmp_path) as server:
        old = server.runs()["old"]["id"]
        with server.stream(f"runs={old}:0:5") as events:
            until(events, "list")
            write(tmp_path / "new")
            until(events, "list", lambda v: [e["name"] for e in v["changed"]] == ["new"])
            shutil.rmtree(tmp_path / "old")
            assert until(events, "list", lambda v: v["gone"])["gone"] == [old]
            assert server.status(f"/api/runs/{old}/curve") == (404, b"")
            write(tmp_path / "old", rounds=2)
            until(events, "list", lambda v: [(e["id"], e.get("done")) for e in v["changed"]] == [(old, 2)])
        shutil.rmtree(tmp_path)
        assert server.runs() == {}
        tmp_path.mkdir()


def test_a_run_that_is_started_again_is_told(tmp_path):
    write(tmp_path / "run", rounds=9)
    with Served(tmp_path) as server:
        run = server.runs()["run"]["id"]
        with server.stream(f"runs={run}:0:9") as events:
            until(events, "list")
            (tmp_path / "run").rename(tmp_path / "run.old1")
            write(tmp_path / "run", rounds=2, seed=8)
            found = until(events, "anew")
            assert found["id"] == run
        assert server.json(f"/api/runs/{run}/curve")["next"] == 2


def test_damage_while_watching(tmp_path):
    write(tmp_path / "run", finished=False)
    write(tmp_path / "other")
    with Served(tmp_path) as server:
        run = server.runs()["run"]["id"]
        with server.stream(f"runs={run}:0:5") as events:
            until(events, "list")
            (tmp_path / "run" / "journal.db").write_bytes(b"rubbish" * 1000)
            until(events, "list", lambda v: (run, "damaged") in [(e["id"], e["state"]) for e in v["changed"]])
        assert server.runs()["other"]["state"] == "finished"


def test_several_browsers_and_a_prompt_end(tmp_path):
    journal = begin(tmp_path / "run")
    one_round(journal, 0)
    with Served(tmp_path) as server:
        run = server.runs()["run"]["id"]
        with server.stream(f"runs={run}:0:1") as a, server.stream(f"runs={run}:0:1") as b, server.stream() as c:
            for events in (a, b, c):
                until(events, "list")
            one_round(journal, 1)
            assert until(a, "rows")["rows"] == until(b, "rows")["rows"] == [[1, 14.0, 0.01]]
            server.server.should_exit = True
            assert [list(e) for e in (a, b)] == [[], []]
            server.thread.join(60)
            assert not server.thread.is_alive()
    journal.close()


def test_too_many_pages_are_turned_away(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcohort.dashboard.live.MOST_PAGES", 1)
    with Served(tmp_path) as server:
        write(tmp_path / "run")
        with server.stream() as events:
            until(events, "list")
            assert server.status("/api/events")[0] == 503


def test_strange_watches(tmp_path):
    write(tmp_path / "run")
    strange = ["version=x", "version=-1", "version=99999999999", "runs=a:b:c,,::", "runs=../..:0:0"]
    with Served(tmp_path) as server:
        for query in (*strange, f"runs={'0' * 16}:0:0"):
            with server.stream(query) as events:
                assert until(events, "list")["changed"][0]["name"] == "run"
