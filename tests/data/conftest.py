"""Fixtures: real datasets where they are, and a small HTTP server that can misbehave."""

import http.server
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@dataclass
class Mirror:
    """What the server has, how it behaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # honours Range
    die_after: list[int] = field(default_factory=list)  # bytes to send before the connection drops, one per request
    fail: list[int] = field(default_factory=list)  # status codes to answer with first
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range header
    url: str = ""


class _Handler(http.server.BaseHTTPRequestHandler):
    mirror: Mirror

    def do_GET(self) -> None:
        mirror, name = self.mirror, self.path.rsplit("/", 1)[-1]
        span = self.headers.get("Range")
        mirror.asked.append((name, span))
        if mirror.fail:
            return self.send_error(mirror.fail.pop(0))
        if name not in mirror.files:
            return self.send_error(404)
        body, start = mirror.files[name], 0
        if span and mirror.ranges:
            start = int(span.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        rest = body[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        cut = mirror.die_after.pop(0) if mirror.die_after else len(rest)
        self.wfile.write(rest[:cut])
        self.close_connection = True
        return None

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    state = Mirror()
    handler = type("Handler", (_Handler,), {"mirror": state})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
