"""`fedcohort dashboard` as it is typed: mistakes are one sentence, Ctrl-C ends it with pages open."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from tests.cli.test_cli import mistake
from tests.dashboard.runs import write

from fedcohort.dashboard.guard import check_token, loopback
from fedcohort.dashboard.serve import listen
from fedcohort.errors import BadParameter


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "8.8.8.8", "example.org", "", "127.0.0.1:80"])
def test_only_loopback(host, tmp_path):
    with pytest.raises(BadParameter, match=r"loopback|this machine only"):
        loopback(host)
    assert "host" in mistake("dashboard", str(tmp_path), "--host", host)


def test_loopback_in_all_its_forms():
    assert [loopback(h) for h in ("127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.2")] == [
        "127.0.0.1",
        "127.0.0.1",
        "::1",
        "::1",
        "127.0.0.2",
    ]


@pytest.mark.parametrize(
    "token", ["", "short", "a" * 15, "a" * 201, "with space and more", "ümlaut-ümlaut-ümlaut", "a" * 15 + "&"]
)
def test_tokens_of_ones_own(token):
    with pytest.raises(BadParameter, match="16 to 200 letters"):
        check_token(token)
    assert check_token("abcdefgh-ABCD_0123") == "abcdefgh-ABCD_0123"


def test_a_port_in_use_is_one_sentence(tmp_path):
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        said = mistake("dashboard", str(tmp_path), "--port", str(port))
    assert said == f"error: port {port}: another program is using it; choose another one, or 0 for a free one."


def test_other_mistakes(tmp_path):
    assert "there is no such folder" in mistake("dashboard", str(tmp_path / "nothing"))
    assert "from 0 to 65535" in mistake("dashboard", str(tmp_path), "--port", "70000")
    (tmp_path / "file").write_text("x")
    assert "there is no such folder" in mistake("dashboard", str(tmp_path / "file"))


def test_without_the_extra(tmp_path):
    """In a program without starlette: one sentence that names the extra."""
    hidden = "import sys; sys.modules['starlette'] = None; sys.argv = ['fedcohort', 'dashboard', '.']"
    code = f"{hidden}\nfrom fedcohort.cli.main import main\nmain()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 2
    assert "pip install 'fedcohort[dashboard]'" in run.stderr
    assert "Traceback" not in run.stderr


def test_ctrl_c_ends_it_with_pages_open(tmp_path):
    write(tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedcohort.cli.main", "dashboard", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        line = process.stdout.readline()
        port, token = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})$", line.strip()).groups()
        own = f"host: 127.0.0.1:{port}\r\n"
        with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as door:
            door.sendall(f"GET /?token={token} HTTP/1.1\r\n{own}\r\n".encode())
            cookie = re.search(rb"set-cookie: ([^;]+);", door.recv(4096)).group(1).decode()
            with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as page:
                page.sendall(f"GET /api/events HTTP/1.1\r\n{own}cookie: {cookie}\r\n\r\n".encode())
                assert page.recv(4096).startswith(b"HTTP/1.1 200")
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()
