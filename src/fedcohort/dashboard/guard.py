"""Who may ask, and what every answer carries.

The guard stands before everything else: a foreign Host (DNS rebinding), another method than GET and HEAD, an oversize
query, a page of another origin and a request without the token are answered here, with an empty body, and never reach
what is behind. Every answer, errors included, leaves with the same strict headers.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from fedcohort.errors import BadParameter, check

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_QUERY = 4096  # bytes of a query or a path
METHODS = ("GET", "HEAD")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_LOG = logging.getLogger("fedcohort.dashboard")


def loopback(host: str) -> str:
    """The address to listen on; anything that other machines could reach is refused."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise BadParameter(f"host {host!r}", "this is not a loopback address", "use 127.0.0.1 or ::1") from None
    check(
        address.is_loopback,
        f"host {host!r}",
        "other machines could reach it, and the dashboard is for this machine only",
        "use 127.0.0.1, and a tunnel (ssh -L) to look from elsewhere",
    )
    return str(address)


def check_token(token: str) -> str:
    """A token chosen by the user: long enough, and made of characters that need no quoting in an address."""
    plain = token.isascii() and token.replace("-", "").replace("_", "").isalnum()
    check(
        plain and 16 <= len(token) <= 200,
        "--token",
        "it must be 16 to 200 letters, digits, - or _",
        "leave it out for a random one",
    )
    return token


class Guard:
    """An ASGI application around another one."""

    def __init__(self, inner: App, token: str, port: int, host: str = "127.0.0.1") -> None:
        self.inner = inner
        self._token = hashlib.sha256(token.encode()).digest()
        self._secret = hmac.new(token.encode(), b"cookie", "sha256").hexdigest()
        self.cookie = f"fedcohort_{port}"  # cookies do not know ports: two dashboards must not share one
        own = f"[{host}]" if ":" in host else host
        names = ("127.0.0.1", "localhost", "[::1]", own)
        self._hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, let in, or hand on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        outgoing = _Outgoing(send)
        code, more = self._judge(scope)
        if code:
            await outgoing.answer(code, more)
            return
        try:
            await self.inner(scope, receive, outgoing)
        except Exception:
            _LOG.exception("an answer failed")
            await outgoing.answer(500, [])

    def _judge(self, scope: Scope) -> tuple[int, list[tuple[bytes, bytes]]]:
        """0 to hand on; otherwise the status of the answer and its headers."""
        if not self._local(scope):
            return 421, []
        if scope["method"] not in METHODS:
            return 405, [(b"allow", ", ".join(METHODS).encode())]
        if len(scope["query_string"]) > MOST_QUERY or len(scope["path"]) > MOST_QUERY:
            return 414, []
        entering = scope["path"] == "/"
        if not entering and _header(scope, b"sec-fetch-site") not in (None, b"same-origin", b"none"):
            return 403, []
        if entering and self._right_token(scope["query_string"]):
            value = f"{self.cookie}={self._secret}; Path=/; HttpOnly; SameSite=Strict"
            return 303, [(b"location", b"/"), (b"set-cookie", value.encode())]
        return (0, []) if self._right_cookie(scope) else (401, [])

    def _local(self, scope: Scope) -> bool:
        """Exactly one Host, and it is this one: a name that was bent to 127.0.0.1 is not."""
        hosts = [v for k, v in scope["headers"] if k.lower() == b"host"]
        return len(hosts) == 1 and hosts[0].decode("latin-1").lower() in self._hosts

    def _right_token(self, query: bytes) -> bool:
        try:
            given = [v for k, v in parse_qsl(query.decode("latin-1"), max_num_fields=20) if k == "token"]
        except ValueError:
            return False
        found = hashlib.sha256(given[0].encode("utf-8", "replace")).digest() if len(given) == 1 else b""
        return hmac.compare_digest(found, self._token)

    def _right_cookie(self, scope: Scope) -> bool:
        text = b";".join(v for k, v in scope["headers"] if k.lower() == b"cookie")
        pairs = (part.strip().partition(b"=") for part in text.split(b";"))
        held = [value for name, _, value in pairs if name == self.cookie.encode()]
        return any(hmac.compare_digest(value, self._secret.encode()) for value in held[:8])


class _Outgoing:
    """Adds the headers to whatever is sent, and answers itself where nothing has been sent yet."""

    def __init__(self, send: Send) -> None:
        self.send, self.begun = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            own = {name for name, _ in HEADERS}
            kept = [(k, v) for k, v in message.get("headers", []) if k.lower() not in own]
            message = {**message, "headers": [*kept, *HEADERS]}
        await self.send(message)

    async def answer(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """An answer without a body."""
        if self.begun:
            return
        headers = [*headers, (b"content-length", b"0")]
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": b""})


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((v for k, v in scope["headers"] if k.lower() == name), None)
