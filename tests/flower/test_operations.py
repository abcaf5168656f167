"""What an operator looks at: the page for Prometheus, the JSON log, and `fedcohort flower status`."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import sys
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

import flwr
import pytest
from flwr.serverapp.strategy import FedAvg
from tests.flower.grid import FakeClient, FakeGrid, start, timing
from typer.testing import CliRunner

from fedcohort.cli.main import app
from fedcohort.errors import BadParameter, StoreError
from fedcohort.flower import CohortStrategy, wire
from fedcohort.flower.dev.deployment import free_port
from fedcohort.flower.server.json_log import LOGGERS, JsonFormatter, use_json_logs
from fedcohort.flower.server.run_status import SILENT, STALE, STOPPED, read_status
from fedcohort.storage.run_folder import RunFolder


class Silent(FakeClient):
    """Registers and never trains."""

    def delay(self, message):
        return 0.0 if message.metadata.message_type == wire.REGISTER and not self.seen else None


class Broken(FakeClient):
    """Sends a number that is none."""

    def train(self, message):
        self.step = float("nan")
        return super().train(message)


def make(grid, **keys):
    settings = {"selector": "uniform", "cohort_size": 4, "deadline": 10.0, **timing(grid), **keys}
    return CohortStrategy(FedAvg(fraction_evaluate=0.0), **settings)


def clients():
    return FakeGrid([FakeClient("0"), FakeClient("1"), Silent("2"), Broken("3")])


def get(port, path="/metrics", **keys):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", **keys)
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def samples(text):
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


# -- Prometheus ------------------------------------------------------------------------------------------------------


def test_prometheus_reads_what_the_run_does():
    grid, port, pages = clients(), free_port(), []
    strategy = make(grid, prometheus_port=port)

    def look(index, arrays):
        pages.append(get(port))

    start(strategy, grid, rounds=3, evaluate_fn=look)
    assert samples(pages[0][2])["fedcohort_last_round_timestamp_seconds"] > 1.7e9  # an alert works before round 1 ends
    status, kind, text = pages[-1]  # made in round 3: of two rounds
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = samples(text)
    first, second = strategy.history[:2]
    assert found["fedcohort_rounds_total"] == found["fedcohort_round"] == 2.0
    assert found["fedcohort_asked_total"] == first["asked"] + second["asked"]
    for name in ("ok", "late", "failed", "rejected", "filtered"):
        assert found[f'fedcohort_outcomes_total{{outcome="{name}"}}'] == first[name] + second[name]
    assert found["fedcohort_reply_seconds_count"] == found['fedcohort_reply_seconds_bucket{le="+Inf"}'] == 4.0
    assert found['fedcohort_reply_seconds_bucket{le="1"}'] == 4.0
    assert found["fedcohort_round_seconds_sum"] == pytest.approx(first["seconds"] + second["seconds"])
    assert found['fedcohort_clients{state="registered"}'] == 4.0
    assert found['fedcohort_clients{state="silent"}'] == 1.0
    assert found["fedcohort_sent_bytes_total"] > found["fedcohort_received_bytes_total"] > 0
    assert found["fedcohort_last_round_timestamp_seconds"] > 1.7e9
    with pytest.raises(urllib.error.URLError):  # the page goes with the run
        get(port)


def test_the_page_is_on_loopback_has_no_names_and_takes_nothing():
    grid, port, found = FakeGrid([FakeClient("hospital-a"), FakeClient("hospital-b")]), free_port(), []

    def look(index, arrays):
        found.append(get(port)[2])
        for path, method in (("/", "GET"), ("/metrics/../x", "GET"), ("/metrics", "POST"), ("/metrics", "PUT")):
            with pytest.raises(urllib.error.HTTPError) as caught:
                get(port, path, method=method, data=b"x" if method != "GET" else None)
            assert caught.value.code in (404, 501)

    strategy = make(grid, cohort_size=2, prometheus_port=port)
    assert strategy.settings.prometheus_host == "127.0.0.1"
    start(strategy, grid, rounds=2, evaluate_fn=look)
    assert "hospital" not in "".join(found)


def test_a_port_in_use_and_a_number_that_is_no_port_are_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        grid = clients()
        with pytest.raises(StoreError, match="prometheus_port"):
            start(make(grid, prometheus_port=taken.getsockname()[1]), grid, rounds=1)
    with pytest.raises(BadParameter, match="prometheus_port"):
        make(grid, prometheus_port=70_000)


# -- JSON logs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(monkeypatch):
    """What the server's handler writes, but for what FedAvg says when it is made; loggers are put back afterwards."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("flwr"), "level", logging.INFO)  # other tests make it silent
    logging.getLogger("flwr").manager._clear_cache()
    monkeypatch.setattr(logging.getLogger("fedcohort"), "handlers", [])
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines() if not line.startswith("fraction_")]


def test_every_line_of_the_log_is_one_json_object(lines):
    grid = clients()
    start(make(grid, log_format="json"), grid, rounds=2)
    found = lines()
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, found))
    rounds = [line for line in found if line.get("event") == "round"]
    assert [(r["round"], r["asked"], r["ok"], r["late"], r["rejected"]) for r in rounds] == [
        (1, 4, 2, 1, 1),
        (2, 3, 2, 0, 1),
    ]
    reasons = [(line["client"], line["why"]) for line in found if line.get("event") == "client"]
    assert ("3", "update-not-finite") in reasons
    assert {line["client"] for line in found if line.get("event") == "registered"} == {"0", "1", "2", "3"}


def test_text_from_outside_stays_one_line(lines):
    use_json_logs()
    logging.getLogger("flwr").warning("client said %s", "\x1b[2J\n{'level': 'info'}")
    (line,) = lines()
    assert line["message"] == "client said \x1b[2J\n{'level': 'info'}"  # escaped on the line, whole for the reader


def test_an_exception_is_part_of_its_line():
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("flwr", logging.ERROR, "", 0, "it failed", (), sys.exc_info())
    found = json.loads(JsonFormatter().format(record))
    assert "ValueError: why" in found["error"]
    assert LOGGERS == ("flwr", "fedcohort")


# -- status ----------------------------------------------------------------------------------------------------------


def status(folder, *more):
    done = CliRunner().invoke(app, ["flower", "status", str(folder), *more])
    return done.exit_code, done.output


def test_status_of_a_run_that_is_going(tmp_path):
    """Looked at from inside a round: the folder is locked by this very process, which is alive."""
    grid, seen = clients(), []

    def look(index, arrays):
        if index == 3:
            before = RunFolder(tmp_path).reader().head
            seen.append((status(tmp_path), status(tmp_path, "--json"), read_status(tmp_path)))
            assert RunFolder(tmp_path).reader().head == before  # looking writes nothing

    start(make(grid, state_dir=tmp_path), grid, rounds=3, evaluate_fn=look)
    (code, text), (_, plain), found = seen[0]
    assert code == 0
    assert "state     running" in text
    assert "rounds    2 done (2 ok, 1 rejected); round 3 is open" in text
    assert "asked     0, 1, 3" in text
    assert "silent    2 (1 in a row)" in text
    assert "error     round 2 (journal: 1), client 3: update-not-finite" in text
    assert json.loads(plain)["open_round"] == 3
    assert json.loads(plain)["exit_code"] == 0
    assert (found.used, found.replies, found.looked_at, found.clients) == (4, 7, 2, 4)
    assert found.exit_code(stale=-1.0) == STALE


def test_status_of_one_that_ended_one_that_was_stopped_and_one_that_nobody_answers(tmp_path):
    grid = clients()
    start(make(grid, state_dir=tmp_path / "done"), grid, rounds=1)
    assert status(tmp_path / "done")[0] == 0
    assert "state     finished" in status(tmp_path / "done")[1]

    def stop(index, arrays):
        if index == 2:
            raise KeyboardInterrupt

    grid = clients()
    with pytest.raises(KeyboardInterrupt):
        start(make(grid, state_dir=tmp_path / "cut"), grid, rounds=3, evaluate_fn=stop)
    code, text = status(tmp_path / "cut")
    assert code == STOPPED
    assert "rounds    1 done" in text
    assert "round 2 is open" in text

    grid, codes = FakeGrid([Silent("0"), Silent("1")]), []
    look = lambda index, arrays: codes.append(status(tmp_path / "mute")[0]) if index == 2 else None  # noqa: E731
    start(make(grid, state_dir=tmp_path / "mute", cohort_size=2), grid, rounds=2, evaluate_fn=look)
    assert codes == [SILENT]
    with pytest.raises(StoreError, match="there is no such folder"):
        read_status(tmp_path / "nowhere")


def test_status_of_one_that_ended_and_was_started_again_with_somebody_new(tmp_path):
    """The newest record is that of the new client; there was nothing left to do."""
    for count in (4, 5):
        grid = FakeGrid([FakeClient(str(i)) for i in range(count)])
        start(make(grid, state_dir=tmp_path), grid, rounds=2)
    assert [r.kind for r in RunFolder(tmp_path).reader().newest()][:2] == ["roster", "close"]
    code, text = status(tmp_path)
    assert code == 0
    assert "state     finished" in text


# -- versions of Flower ----------------------------------------------------------------------------------------------

OLDEST, NEWEST = "1.41.0", "1.42.0"  # what `make compat` runs these tests with; pyproject allows flwr>=1.41,<2


def test_the_installed_flower_is_one_that_is_tested_with():
    parts = [tuple(map(int, v.split(".")[:2])) for v in (OLDEST, version("flwr"), NEWEST)]
    assert parts[0] <= parts[1] <= parts[2], f"flwr {version('flwr')}: run `make compat` with it and raise NEWEST"
    wanted = os.environ.get("FEDCOHORT_FLWR")  # set by `make compat`: it must be that one, not the one in .venv
    assert wanted in (None, version("flwr"))
    assert wanted is None or f"flwr-{wanted}" in str(flwr.__file__)


def test_the_makefile_and_pyproject_name_the_same_versions():
    root = Path(__file__).parents[2]
    assert f"FLOWERS := {OLDEST} {NEWEST}" in (root / "Makefile").read_text()
    assert '"flwr[simulation]>=1.41,<2"' in (root / "pyproject.toml").read_text()
