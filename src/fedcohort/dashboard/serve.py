"""The server: a socket on loopback, and an end that comes at once."""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from fedcohort.dashboard.guard import HEADERS, check_token, loopback
from fedcohort.errors import BadParameter, MissingExtra, check

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from fedcohort.dashboard.app import application
    from fedcohort.dashboard.board import Board
    from fedcohort.dashboard.live import Live
except ModuleNotFoundError as missing:
    raise MissingExtra.of("the dashboard", "dashboard") from missing

MOST_HEAD = 32 << 10  # bytes of a request before its body
GRACE = 2  # seconds that answers on their way have when the server ends


class _Protocol(H11Protocol):
    """HTTP/1.1 whose refusals of broken requests carry the headers too, and no body."""

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is answered with an empty 400, if it can be answered at all."""
        try:
            headers = [*HEADERS, (b"content-length", b"0"), (b"connection", b"close")]
            for event in (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass
        self.transport.close()


class Server(uvicorn.Server):
    """A server that lets its listening pages go as soon as it is told to end."""

    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self.live = live

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the pages go, then everything else."""
        self.live.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ctrl-C once is enough; nothing can be lost, so it does not count as an error."""
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A socket on loopback; a port that is taken is answered with one sentence."""
    address = loopback(host)
    check(0 <= port <= 65535, f"port {port}", "ports are numbers from 0 to 65535", "use 0 for a free one")
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, port))
        found.listen(128)
    except OSError as error:
        found.close()
        taken = error.errno == errno.EADDRINUSE
        rule = "another program is using it" if taken else f"it cannot be listened on ({error.strerror})"
        raise BadParameter(f"port {port}", rule, "choose another one, or 0 for a free one") from None
    return found


def serve(
    roots: list[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the runs below these folders until Ctrl-C. `ready` is told the address, token included."""
    secret = check_token(token) if token is not None else secrets.token_urlsafe(24)
    board = Board(roots)
    with listen(host, port) as sock:
        if ready is not None:
            ready(f"http://{_shown(sock)}/?token={secret}")
        asyncio.run(server(board, sock, secret).serve(sockets=[sock]))


def server(board: Board, sock: socket.socket, token: str) -> Server:
    """A server for this socket; `should_exit = True` ends it."""
    address, port = sock.getsockname()[:2]
    live = Live(board)
    config = uvicorn.Config(
        application(board, live, token, port, address),
        http=_Protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MOST_HEAD,
        timeout_graceful_shutdown=GRACE,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    return Server(config, live)


def _shown(sock: socket.socket) -> str:
    address, port = sock.getsockname()[:2]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
