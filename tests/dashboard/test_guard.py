"""Who is let in: every request is sent byte by byte to a real server on loopback."""

from __future__ import annotations

import pytest
from tests.dashboard.runs import TOKEN

from fedcohort.dashboard.guard import POLICY

ADDRESSES = ["/", "/web/dashboard.js", "/api/runs", "/api/events", "/nothing"]
METHODS = [
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PROPFIND",
    "MKCOL",
    "COPY",
    "LOCK",
    "QUERY",
    "get",
    "GETT",
]


def strict(head):
    """Every answer carries the policy and its companions, exactly once."""
    lines = head.lower().split("\r\n")
    wanted = [f"content-security-policy: {POLICY}".lower(), "x-content-type-options: nosniff"]
    wanted += ["referrer-policy: no-referrer", "cache-control: no-store", "x-frame-options: deny"]
    assert all(lines.count(line) == 1 for line in wanted), head


def refused(served, code, path, **how):
    """This status, the headers, and not one byte of body."""
    head, body = served.ask(path, **how)
    assert (head.split()[1], body) == (str(code), b"")
    strict(head)
    return head


@pytest.mark.parametrize("path", ADDRESSES)
def test_nothing_without_the_token(served, path):
    refused(served, 401, path, cookie=False)


@pytest.mark.parametrize(
    "token", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), f"{TOKEN}&token={TOKEN}", "%00" + TOKEN, "é", "A" * 4000]
)
def test_wrong_tokens(served, token):
    refused(served, 401, f"/?token={token}".encode("ascii", "ignore").decode(), cookie=False)


def test_the_token_is_taken_at_the_door_only(served):
    for path in ("/api/runs", "/web/dashboard.js", "/api/events"):
        refused(served, 401, f"{path}?token={TOKEN}", cookie=False)


def test_the_right_token_is_exchanged_for_a_cookie(served):
    head, body = served.ask(f"/?token={TOKEN}", cookie=False)
    strict(head)
    assert head.startswith("HTTP/1.1 303")
    assert body == b""
    assert "location: /\r\n" in head
    line = next(x for x in head.split("\r\n") if x.startswith("set-cookie"))
    assert line.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert TOKEN not in head
    code, page = served.status("/", cookie=line.split(": ")[1].split(";")[0])
    assert code == 200
    assert b"fedcohort" in page


@pytest.mark.parametrize("change", ["{0}x", "x{0}", "{0}=", "{2}={3}", "{2}=", "{2}={1};", "other={1}"])
def test_wrong_cookies(served, change):
    name, _, value = served.cookie.partition("=")
    refused(served, 401, "/api/runs", cookie=change.format(f"{name}={value}", value[:-1], name, TOKEN))


def test_a_cookie_among_strange_ones(served):
    """Other programs on this machine set cookies too: they neither harm nor help."""
    assert served.status("/api/runs", cookie=f'a="b|c; d=\x7f; ;=; {served.cookie}; e=f')[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1:{port}.evil.example",
        "localhost.evil.example:{port}",
        "127.0.0.1.nip.io:{port}",
        "127.0.0.1:{port}@evil.example",
        "evil.example#127.0.0.1:{port}",
        "0.0.0.0:{port}",
        "127.1:{port}",
        "2130706433:{port}",
        "[::]:{port}",
        "[::ffff:127.0.0.1]:{port}",
        "",
    ],
)
def test_foreign_hosts(served, host):
    """DNS rebinding: a name that leads here is still not this host, with the token and the cookie in hand."""
    for path in ("/api/runs", f"/?token={TOKEN}"):
        refused(served, 421, path, host=host.format(port=served.port))


def test_own_hosts(served):
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert served.status("/api/runs", host=f"{host}:{served.port}")[0] == 200


def test_two_hosts_or_none(served):
    own = f"host: 127.0.0.1:{served.port}\r\n"
    for hosts in ("", own + own, own + "host: evil.example\r\n"):
        for version in ("1.1", "1.0"):
            lines = f"GET / HTTP/{version}\r\n{hosts}cookie: {served.cookie}\r\nconnection: close\r\n\r\n"
            answer = served.raw(lines.encode())
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.split()[1] in (b"400", b"421")
            assert body == b""
            strict(head.decode())


@pytest.mark.parametrize("method", METHODS)
def test_other_methods(served, method):
    for path in ADDRESSES:
        head = refused(served, 405, path, method=method)
        assert "allow: GET, HEAD" in head


def test_head_is_get_without_a_body(served):
    for path in ADDRESSES[:4]:
        head, body = served.ask(path, method="HEAD")
        assert head.startswith("HTTP/1.1 200")
        assert body == b""
        strict(head)


def test_pages_of_other_origins(served):
    """A page on another port of this machine is the same site to the browser: the cookie comes along."""
    for site in ("cross-site", "same-site"):
        refused(served, 403, "/api/runs", headers=[f"sec-fetch-site: {site}"])
    assert served.status("/api/runs", headers=["sec-fetch-site: same-origin"])[0] == 200


def test_oversize(served):
    refused(served, 414, "/api/runs?x=" + "a" * 5000)
    refused(served, 414, "/" + "a" * 5000)
    answer = served.raw(b"GET /?" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert served.status("/api/runs")[0] == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nhost : x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_not_http(served, data):
    answer = served.raw(data, timeout=1.0)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b""
    if head:
        assert head.split()[1] in (b"400", b"421", b"401")
        strict(head.decode("latin-1"))
    assert served.status("/api/runs")[0] == 200


def test_upgrade_to_a_websocket_is_not_taken(served):
    headers = ["upgrade: websocket", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version: 13"]
    lines = "\r\n".join([f"host: 127.0.0.1:{served.port}", "connection: Upgrade", *headers])
    answer = served.raw(f"GET /api/runs HTTP/1.1\r\n{lines}\r\n\r\n".encode(), head_only=True)
    assert answer.split()[1] == b"401"


DOTS = ["..", "%2e%2e", "%252e%252e", "..%00", "..;", "....", "%c0%ae%c0%ae", "..%5c", "\\..", "%uff0e%uff0e"]
TARGETS = ["secret.txt", "etc/passwd"]


@pytest.mark.parametrize("dots", DOTS)
def test_traversal(served, dots):
    run = served.runs()["one"]["id"]
    for lead in ("/", "/web/", "/api/runs/", f"/api/runs/{run}/", f"/api/runs/{run}/clients/", "/web/./", "//"):
        for slash in ("/", "%2f"):
            for target in TARGETS:
                path = lead + slash.join([dots] * 4) + slash + target
                head, body = served.ask(path)
                assert (head.split()[1], body) == ("404", b""), path
                strict(head)


def test_only_the_own_files(served):
    for name in (
        "style.css",
        "charts.js",
        "maps.js",
        "dashboard.css",
        "dashboard.js",
        "grouping.js",
        "panels.js",
        "runlist.js",
    ):
        head, body = served.ask(f"/web/{name}")
        assert head.startswith("HTTP/1.1 200")
        assert len(body) > 500
        assert f"content-type: text/{'css' if name.endswith('css') else 'javascript'}" in head
    for name in ("index.html", "style.css.bak", "STYLE.CSS", "", "style.css/", "__init__.py"):
        assert served.status(f"/web/{name}")[0] == 404


def test_ids_are_looked_up(served):
    run = served.runs()["one"]["id"]
    for wrong in ("one", run[:-1], run + "0", run.upper(), "0" * 16, "*", "%00", "..", "runs"):
        if wrong != run:
            for rest in ("", "/curve", "/map", "/clients/0", "/traits"):
                assert served.status(f"/api/runs/{wrong}{rest}") == (404, b"")
    for slot in ("-1", "1.5", "a", "9" * 40, "%00", "%D9%A3"):
        assert served.status(f"/api/runs/{run}/clients/{slot}") == (404, b"")


def test_strange_queries_are_harmless(served):
    run = served.runs()["one"]["id"]
    for query in (
        "name=<script>",
        "most=-5",
        "most=1e400",
        "most=nan",
        "name=",
        "name=__class__",
        "x&&=&=;",
        "most=%00",
    ):
        found = served.json(f"/api/runs/{run}/curve?{query}")
        assert found["next"] == 7
    for query in ("last=-1", "last=inf", "last=1e30", "last=x"):
        assert served.json(f"/api/runs/{run}/map?{query}")["population"] == 5
    assert served.json(f"/api/runs/{run}?target=nan")["reached_rounds"] is None
