"""Hostile requests to a real dashboard on loopback, byte by byte: how many, and how many were answered wrongly.

A wrong answer is one that says anything at all where nothing may be said, lacks the strict headers, holds the content
of a file that lies outside, or holds a letter that could open a tag.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
import threading
from urllib.parse import quote

import numpy as np

from fedcohort.dashboard.board import Board
from fedcohort.dashboard.guard import POLICY
from fedcohort.dashboard.serve import listen, server
from fedcohort.storage.journal import Journal
from storage import scratch

TOKEN = "torture-torture-torture"
CANARY = "CANARY-5f1c"
STRICT = [f"content-security-policy: {POLICY}", "x-content-type-options: nosniff", "cache-control: no-store"]
PATHS = [
    "/",
    "/web/dashboard.js",
    "/web/style.css",
    "/api/runs",
    "/api/events",
    "/api/runs/{run}",
    "/api/runs/{run}/map",
]
PATHS += ["/api/runs/{run}/curve", "/api/runs/{run}/clients/1", "/api/runs/{run}/traits", "/nothing"]


class Target:
    """A dashboard in a thread, and one connection to it that is used again and again."""

    def __init__(self, root, guarded=True) -> None:
        sock = listen("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        self.server = server(Board([root]), sock, TOKEN)
        self.guard, self.guarded, self.hung_up = self.server.config.app, guarded, 0
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[sock])), daemon=True)
        self.line: socket.socket | None = None
        self.rest = b""

    def __enter__(self):
        self.thread.start()
        head, _ = self.ask("GET", f"/?token={TOKEN}", cookie="")
        self.cookie = next(x for x in head if x.startswith("set-cookie: "))[12:].split(";")[0]
        runs = json.loads(self.ask("GET", "/api/runs", cookie=self.cookie)[1])["runs"]
        self.ids = [r["id"] for r in runs if r["readable"]]
        if not self.guarded:
            self.guard._judge = lambda scope: (0, [])
        return self

    def __exit__(self, *_):
        self._drop()
        self.server.should_exit = True
        self.thread.join(20)

    def ask(self, method, path, **how):
        """(lines of the head, body); one line "closed" where the server hung up without a word."""
        return self.many([(method, path, how)])[0]

    def many(self, requests, at_once=50):
        """Answers to these requests, in order. They are sent many at once, for a busy machine."""
        answers = []
        while len(answers) < len(requests):
            todo = requests[len(answers) : len(answers) + at_once]
            alone = next((i for i, r in enumerate(todo) if r[1].startswith("/api/events")), len(todo))
            got = self._send(todo[: max(alone, 1)])
            if not got:  # an idle connection may have been closed: once more, on a new one
                got = self._send(todo[:1]) or [(["closed"], b"")]
                self.hung_up += got[0][0] == ["closed"]
            answers += got
        return answers

    def _send(self, requests):
        answers = []
        try:
            if self.line is None:
                self.line = socket.create_connection(("127.0.0.1", self.port), timeout=60)
                self.rest = b""
            self.line.sendall(b"".join(self._bytes(method, path, **how) for method, path, how in requests))
            for method, _, _ in requests:
                if self.line is None:
                    break
                answers.append(self._answer(method))
        except OSError:
            self._drop()
        return answers

    def _bytes(self, method, path, host=None, cookie=None, more=()):
        own = f"127.0.0.1:{self.port}" if host is None else host
        held = getattr(self, "cookie", "") if cookie is None else cookie
        lines = [f"{method} {path} HTTP/1.1", f"host: {own}", *([f"cookie: {held}"] if held else []), *more, "", ""]
        return "\r\n".join(lines).encode("utf-8", "surrogateescape")

    def _more(self):
        part = self.line.recv(1 << 16)
        if not part:
            raise ConnectionError
        self.rest += part

    def _answer(self, method):
        while b"\r\n\r\n" not in self.rest:
            self._more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        if "content-type: text/event-stream; charset=utf-8" in lines:
            self._drop()  # a stream has no end
            return lines, b""
        length = next((int(x.split(": ")[1]) for x in lines if x.startswith("content-length: ")), 0)
        length = 0 if method == "HEAD" else length
        while len(self.rest) < length:
            self._more()
        body, self.rest = self.rest[:length], self.rest[length:]
        if "connection: close" in lines:
            self._drop()
        return lines, body

    def _drop(self):
        if self.line is not None:
            self.line.close()
        self.line = None


@contextlib.contextmanager
def target(names=(), guarded=True):
    """A dashboard over two plain runs, one for each hostile name, and a canary outside and inside."""
    with scratch() as folder:
        (folder / "secret.txt").write_text(CANARY)
        for name in ("a", "b"):
            _run(folder / "runs" / name, "uniform")
            (folder / "runs" / name / "config.toml").write_text(CANARY)
        (folder / "runs" / "link").symlink_to(folder)
        for number, name in enumerate(names):
            plain = name.replace("/", "").replace("\0", "")[:80].strip(".") or "x"
            _run(folder / "runs" / f"{number}{plain}", name)
        with Target(folder / "runs", guarded) as found:
            yield found


def _run(folder, word):
    folder.mkdir(parents=True)
    config = {"selector": word, "method": word, "world": word, "task": word, "seed": 1, "rounds": 9, "cohort_size": 1}
    journal = Journal.create(folder / "journal.db", {"config": config, "version": "0.1.0"})
    ask = {"clients": np.array([1]), "available": np.empty(0, np.int64), "everybody": np.array(True)}
    journal.append("ask", 0, {**ask, f"why.{word}": np.array([0.5])}, {"clock": 0.0, "size": 1, "population": 3})
    tell = {"clients": np.array([1]), "outcome": np.array([2], np.int8), "duration": np.array([1.0])}
    metrics = {"round": 0.0, "clock": 1.0, "accuracy": 0.5, word: 1.0}
    journal.append("tell", 0, tell, {"score": None, "metrics": metrics, "reasons": {"1": word}})
    journal.close()


def _wrong(head, body, codes) -> str:
    """Why this answer is wrong; nothing where it is right."""
    if head == ["closed"]:
        return ""
    if head[0].split()[1] not in codes:
        return head[0]
    if not set(STRICT) <= set(head):
        return "headers"
    return "canary" if CANARY.encode() in body else ""


def traversal(count: int, seed: int) -> dict:
    """Ways out of the folder, in paths and in queries, with the right token in hand."""
    rng = random.Random(seed)
    ups = [
        "..",
        "%2e%2e",
        "%2E.",
        "%252e%252e",
        "..%00",
        "..;",
        "....",
        "%c0%ae%c0%ae",
        "..%5c",
        "..\\",
        "%u002e%u002e",
        ".%0d.",
    ]
    slashes = ["/", "%2f", "%5c", "\\", "//", "/./", "%252f", "%c0%af"]
    ends = [
        "secret.txt",
        "runs/a/config.toml",
        "a/config.toml",
        "journal.db",
        "etc/passwd",
        "proc/self/environ",
        "app.py",
        "",
    ]
    whole = [
        "file:///etc/passwd",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "C:%5cboot.ini",
        "~root",
        "http://evil/x",
        "link/secret.txt",
    ]
    leads = [
        "/",
        "/web/",
        "/web/../",
        "/api/",
        "/api/runs/",
        "/api/runs/{run}/",
        "/api/runs/{run}/clients/",
        "//",
        "/%2f",
    ]
    queries = [
        "/api/runs/{run}/curve?name=",
        "/api/events?runs=",
        "/api/events?map=",
        "/api/runs/{run}/map?last=",
        "/?",
    ]
    wrong: list[str] = []
    with target() as served:
        cases = []
        for number in range(count):
            slash, up = rng.choice(slashes), rng.choice(ups)
            way = slash.join([up] * rng.randint(1, 12) + [rng.choice(ends)]) if number % 8 else rng.choice(whole)
            asking = number % 10 == 0
            lead = rng.choice(queries if asking else leads).format(run=rng.choice(served.ids))
            cases.append((asking, lead + way))
        answers = served.many([("GET", path, {}) for _, path in cases])
        for (asking, path), (head, body) in zip(cases, answers, strict=True):
            why = _wrong(head, body, ("200",) if asking else ("404", "400", "414"))
            if why or (not asking and body):
                wrong.append(f"{path}: {why or 'body'}"[:120])
    return {"requests": count, "hung up": served.hung_up, "answered wrongly": len(wrong), "examples": wrong[:3]}


def payloads(count: int, seed: int) -> list[str]:
    """Markup that runs in a page that does not treat text as text."""
    rng = random.Random(seed)
    tags = [
        "script",
        "img src=x",
        "svg",
        "body",
        "iframe",
        "video",
        "details open",
        "math",
        "style",
        "a",
        "object",
        "input autofocus",
    ]
    events = ["onerror", "onload", "onclick", "onfocus", "ontoggle", "onmouseover", "onanimationstart"]
    code = ["alert(1)", "window.hit=1", "fetch('//evil')", "document.cookie", "location='//evil'", "eval('hit=1')"]
    breaks = [
        "",
        '">',
        "'>",
        "</td>",
        "</script>",
        "-->",
        "]]>",
        "\\u003c",
        "</textarea>",
        "${",
        "{{",
        "\u2028",
        "\0",
        "\r\n\r\n",
    ]
    urls = ["javascript:", "data:text/html,", "vbscript:", "jav\tascript:", "&#106;avascript:"]
    forms = [
        "{b}<{t} {e}={c}>",
        "{b}<{t}>{c}</{t}>",
        "{b}<a href='{u}{c}'>",
        '{b}" {e}="{c}',
        "{b}<{t}/{e}={c}//",
        "{u}{c}{b}",
    ]
    found: dict[str, None] = {}
    while len(found) < count:
        parts = {
            "b": rng.choice(breaks),
            "t": rng.choice(tags),
            "e": rng.choice(events),
            "c": rng.choice(code),
            "u": rng.choice(urls),
        }
        found[rng.choice(forms).format(**parts)] = None
    return list(found)


def markup(count: int, seed: int) -> dict:
    """Markup as names of runs, configurations, score parts and reasons, and in paths, queries and headers."""
    words = payloads(count, seed)
    wrong: list[str] = []
    with target(words) as served:
        rests = ("", "?target=0.5", "/curve", "/map", "/clients/1", "/traits")
        inner = [f"/api/runs/{run}{rest}" for run in served.ids for rest in rests]
        for path, (head, body) in zip(inner, served.many([("GET", path, {}) for path in inner]), strict=True):
            if _wrong(head, body, ("200",)) or b"<" in body or "content-type: application/json" not in head:
                wrong.append(f"{path}: {head[0]}")
        head, body = served.ask("GET", "/api/runs")
        shown = {run.get("selector") for run in json.loads(body)["runs"]}
        wrong += [f"{word!r} is not shown as it is" for word in words if word not in shown][:3]
        if b"<" in body:
            wrong.append("a tag in the list")
        outer = []
        for word in words:
            safe = (
                quote(word, safe="<>()'=;:,") if any(c <= " " or c == '"' for c in word) or not word.isascii() else word
            )
            for path in (f"/{safe}", f"/api/runs/{served.ids[0]}/curve?name={safe}", f"/web/{safe}"):
                outer.append(("GET", path, {"more": [f"referer: http://x/{quote(word)}"]}))
        for (_, path, _), (head, body) in zip(outer, served.many(outer), strict=True):
            reflected = b"<" in body or "html" in "".join(x for x in head if x.startswith("content-type"))
            if _wrong(head, body, ("200", "404", "400")) or reflected:
                wrong.append(f"{path}: {head[0]}"[:120])
    asked, hung_up = len(inner) + len(outer), {"hung up": served.hung_up}
    return {"payloads": len(words), "requests": asked, **hung_up, "answered wrongly": len(wrong), "examples": wrong[:3]}


def strangers(guarded: bool = True) -> dict:
    """Foreign hosts, methods, origins, and no or a wrong token: not one byte of body, always the headers."""
    figures = {"foreign hosts": 0, "methods": 0, "no or wrong token": 0, "other origins": 0}
    wrong: list[str] = []
    with target(guarded=guarded) as served:
        port = served.port
        name, _, secret = served.cookie.partition("=")
        hosts = [
            "evil.example",
            "127.0.0.1",
            "127.0.0.1:1",
            "0.0.0.0:{p}",
            "127.1:{p}",
            "[::]:{p}",
            "2130706433:{p}",
            "127.0.0.1.nip.io:{p}",
        ]
        hosts += [
            "localhost.evil:{p}",
            "evil#127.0.0.1:{p}",
            "127.0.0.1:{p}@evil",
            "127.0.0.1:{p}:80",
            "",
            "[::ffff:127.0.0.1]:{p}",
            "127.0.0.1:0{p}",
        ]
        methods = [
            "POST",
            "PUT",
            "DELETE",
            "PATCH",
            "OPTIONS",
            "TRACE",
            "CONNECT",
            "PROPFIND",
            "PURGE",
            "MOVE",
            "QUERY",
            "get",
            "X" * 50,
        ]
        cookies = [
            "",
            f"{name}=",
            f"{name}={secret[:-1]}",
            f"{name}={secret}0",
            f"{name}={TOKEN}",
            f"x={secret}",
            f"{name.upper()}={secret}",
        ]
        cookies += [
            f"{name}={secret.upper()}",
            f"{name} {secret}",
            f"{name}={secret[::-1]}",
            f"{name}={'0' * 5000}",
            f"{name}=%00{secret}",
        ]
        entries = [
            "",
            "?token=",
            f"?token={TOKEN[:-1]}",
            f"?token={TOKEN}x",
            f"?Token={TOKEN}",
            f"?token={TOKEN}&token={TOKEN}",
            f"?token=%00{TOKEN}",
        ]
        cases = [
            ("foreign hosts", "421", "GET", p, {"host": h.format(p=port)})
            for h, p in itertools.product(hosts, [*PATHS, f"/?token={TOKEN}"])
        ]
        cases += [("methods", "405", m, p, {}) for m, p in itertools.product(methods, PATHS)]
        cases += [("no or wrong token", "401", "GET", p, {"cookie": c}) for c, p in itertools.product(cookies, PATHS)]
        cases += [
            ("no or wrong token", "401", "GET", p + e, {"cookie": "none=1"})
            for e, p in itertools.product(entries, PATHS)
        ]
        cases += [("no or wrong token", "401", "GET", f"{p}?token={TOKEN}", {"cookie": "none=1"}) for p in PATHS[1:]]
        cases += [
            ("other origins", "403", "GET", p, {"more": [f"sec-fetch-site: {s}"]})
            for s in ("cross-site", "same-site")
            for p in PATHS[1:]
        ]
        answers = served.many([(method, path.format(run=served.ids[0]), how) for _, _, method, path, how in cases])
        for (kind, code, method, path, how), (head, body) in zip(cases, answers, strict=True):
            figures[kind] += 1
            why = _wrong(head, body, (code,))
            if why or body:
                wrong.append(f"{kind} {method} {path} {how}: {why or 'body'}"[:160])
        alive = served.ask("GET", "/api/runs")[0][0] == "HTTP/1.1 200 OK"
    hung_up = {"hung up": served.hung_up}
    return {**figures, **hung_up, "answered wrongly": len(wrong) + (not alive), "examples": wrong[:3]}
