"""Runs written by hand, a server on a free port, and requests byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from functools import cached_property

import numpy as np

from fedcohort.dashboard.board import Board
from fedcohort.dashboard.serve import listen, server
from fedcohort.storage.journal import Journal

TOKEN = "a-token-for-tests-0123456789"
CONFIG = {"selector": "oort", "method": "fedavg", "world": "my-world", "task": "my-task", "seed": 3, "cohort_size": 2}
POPULATION = 5


def begin(folder, **config):
    """A journal with its first record."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {"config": {**CONFIG, "rounds": 100, **config}, "version": "0.1.0"}
    journal = Journal.create(folder / "journal.db", header)
    journal._db.execute("PRAGMA synchronous = OFF")  # made-up runs need not survive a power cut
    return journal


def one_round(journal, index, accuracy=None, reason="", part="utility", name="accuracy"):
    """Round `index`: clients index % 5 and (index + 1) % 5 are asked; the second fails in every third round."""
    clients = np.sort(np.array([index % POPULATION, (index + 1) % POPULATION]))
    why = {f"why.{part}": clients * 10.0 + index}
    ask = {"clients": clients, "available": np.empty(0, np.int64), "everybody": np.array(True), **why}
    journal.append("ask", index, ask, {"clock": 7.0 * index, "size": 2, "population": POPULATION})
    outcome = np.array([0, 2 if index % 3 == 2 else 0], np.int8)
    tell = {"clients": clients, "outcome": outcome, "duration": np.array([1.5, 2.5])}
    value = index / 100 if accuracy is None else accuracy
    metrics = {"round": float(index), "clock": 7.0 * (index + 1), name: value, "bytes_up": 1000.0}
    reasons = {str(clients[1]): reason or "dropped"} if index % 3 == 2 else {}
    journal.append("tell", index, tell, {"score": None, "metrics": metrics, "reasons": reasons})


def write(folder, rounds=5, finished=True, **config):
    """A whole run."""
    journal = begin(folder, **config)
    for index in range(rounds):
        one_round(journal, index)
    if finished:
        journal.append("close", rounds, {}, {"rounds": rounds})
        (folder / "metrics.jsonl").write_text("")
    journal.close()
    return folder


class Served:
    """A dashboard in a thread of its own."""

    def __init__(self, *roots):
        self.board = Board(list(roots))
        self.sock = listen("127.0.0.1", 0)
        self.port = self.sock.getsockname()[1]
        self.server = server(self.board, self.sock, TOKEN)
        self.server.live.every = 0.1
        self.guard = self.server.config.app
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[self.sock])), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()

    @cached_property
    def cookie(self):
        head, _ = self.ask(f"/?token={TOKEN}", cookie=False)
        return head.split("set-cookie: ")[1].split(";")[0]

    def raw(self, data, timeout=60.0, head_only=False):
        """Bytes in, bytes out until the server closes (or the head is there)."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as found:
            found.sendall(data)
            out = b""
            with contextlib.suppress(ConnectionResetError, TimeoutError):
                while not (head_only and b"\r\n\r\n" in out) and (part := found.recv(1 << 16)):
                    out += part
        return out

    def ask(self, path, method="GET", host=None, cookie=True, headers=()):
        """(head in small letters where it matters, body)."""
        lines = [f"{method} {path} HTTP/1.1", f"host: {host if host is not None else f'127.0.0.1:{self.port}'}"]
        if cookie:
            lines.append(f"cookie: {self.cookie if cookie is True else cookie}")
        lines += [*headers, "connection: close", "", ""]
        head, _, body = self.raw("\r\n".join(lines).encode()).partition(b"\r\n\r\n")
        return head.decode("latin-1"), body

    def status(self, path, **how):
        """(status, body)."""
        head, body = self.ask(path, **how)
        return int(head.split()[1]), body

    def json(self, path):
        """The answer as values."""
        code, body = self.status(path)
        assert code == 200, (code, body)
        return json.loads(body)

    def runs(self):
        """The list by name."""
        self.board._looked = -1.0  # look again at once
        return {run["name"]: run for run in self.json("/api/runs")["runs"]}

    @contextlib.contextmanager
    def stream(self, query=""):
        """Server-sent events, one (kind, value) after the other."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60.0) as found:
            head = f"GET /api/events?{query} HTTP/1.1\r\nhost: localhost:{self.port}\r\ncookie: {self.cookie}\r\n\r\n"
            found.sendall(head.encode())
            yield _events(found)


def _events(sock):
    file = sock.makefile("rb")
    kind = ""
    for line in file:
        if line.startswith(b"event: "):
            kind = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield kind, json.loads(line[6:])
