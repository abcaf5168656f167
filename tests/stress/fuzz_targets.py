"""Everything that reads bytes from outside, as targets of the fuzzer, in groups."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.stress.fuzzing import Target

from fedcohort import signals
from fedcohort.core.pack import pack, unpack
from fedcohort.core.plain_text import shown
from fedcohort.data import cifar_batches, formats
from fedcohort.data.dataset import Dataset, check_file
from fedcohort.errors import FedcohortError
from fedcohort.experiment import config, runs, sweep, texts
from fedcohort.experiment.verification import verify
from fedcohort.registry import lookup
from fedcohort.storage.journal import GENESIS, Journal, chain
from fedcohort.storage.segments import compress, decompress
from fedcohort.storage.snapshots import Snapshots
from fedcohort.worlds.trace import load_trace

LITERALS = (
    b"(",
    b")",
    b"=",
    b",",
    b"'",
    b"None",
    b"True",
    b"[]",
    b"{}",
    b"()",
    b"1j",
    b"''",
    b"[1,2]",
    b"**",
    b"*",
    b"b''",
)


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """A reader of files as a reader of bytes."""

    def from_bytes(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return from_bytes


# ---- packs, snapshots, segments, journals ----------------------------------------------------------------------


def _packs() -> list[bytes]:
    arrays = {"x": np.arange(6.0).reshape(2, 3), "flag": np.array([True]), "n": np.zeros((0, 4), np.int16)}
    return [pack({}, {}), pack(arrays, {"round": 1}), pack({"w": np.ones(3, np.float32)}, {"round": 1, "names": ["a"]})]


def _snapshot(data: bytes, folder: Path) -> object:
    """With the right digest, so that the content is looked at."""
    (folder / "round-00000001.snapshot").write_bytes(data + hashlib.sha256(data).digest())
    return Snapshots(folder).latest()


def _segments() -> list[bytes]:
    return [compress([("ask", n, pack({"clients": np.arange(n)}, {"clock": 1.0})) for n in range(4)])]


@cache
def _run() -> Path:
    """A finished run of a few rounds."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-run-")) / "run"
    runs.run(config.RunConfig(task="quadratic", selector="oort", rounds=2, cohort_size=2), folder)
    return folder


def _journal(data: bytes, folder: Path) -> object:
    """Read it, repair it, and show it."""
    for old in folder.iterdir():
        old.unlink()
    path = folder / "journal.db"
    path.write_bytes(data)
    problem: FedcohortError | None = None
    try:
        for record in Journal.read(path).records():
            record.unpack()
    except FedcohortError as error:
        problem = error
    _show(folder)
    try:
        Journal.open(path, repair=True).close()
    except FedcohortError as error:
        problem = error
    if problem is not None:
        raise problem
    return None


def _records() -> list[bytes]:
    """Bodies of all records; the first byte says which record is replaced."""
    return [bytes([r.seq]) + r.body for r in Journal.read(_run() / "journal.db").records()]


def _forged(data: bytes, folder: Path) -> object:
    """A run in which one record has this body, and every hash is right: read, verified and shown."""
    target = folder / "run"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(_run(), target)
    (target / "journal.seal").unlink(missing_ok=True)
    db = sqlite3.connect(target / "journal.db")
    rows = db.execute("SELECT seq, kind, round, body FROM record ORDER BY seq").fetchall()
    which, hash_ = (data[0] if data else 0) % len(rows), GENESIS
    with db:
        for seq, kind, round_, body in rows:
            body = data[1:] if seq == which else body
            hash_ = chain(hash_, kind, round_, body)
            db.execute("UPDATE record SET body = ?, hash = ? WHERE seq = ?", (body, hash_, seq))
    db.close()
    _show(target)
    runs.read(target)
    return verify(target)


def _show(folder: Path) -> None:
    """What the dashboard does with a run."""
    from fedcohort.dashboard.app import _curve, _looked, _map
    from fedcohort.dashboard.board import Board
    from fedcohort.dashboard.track import as_json

    board = Board([folder.parent if folder.name == "run" else folder])
    board.refresh()
    for run in board.since(0)[1]:
        as_json(run)
        held = board.track(run["id"])
        for look in (lambda t: t.summary(None), lambda t: _curve(t, "accuracy", 100), lambda t: _map(t, 10)):
            if held is not None:
                as_json(_looked(run["id"], *held, look))


STORAGE = (
    Target(
        "pack", _packs, lambda data, folder: unpack(data), (b"<f8", b"|O", b'"size"', b"|b1", b"<M8[s]", b"<f8,<i4")
    ),
    Target("snapshot", _packs, _snapshot, (b'"round": 1', b'"round"', b"null"), ()),
    Target("segment", _segments, lambda data, folder: list(decompress(data))),
    Target("journal file", lambda: [(_run() / "journal.db").read_bytes()], _journal, (b"ask", b"tell", b"fcpack01")),
    Target(
        "journal record, hashes right", _records, _forged, (b"clients", b'"metrics"', b"null", b"[]", b"<i8", b"\xff")
    ),
)

# ---- texts and files of settings -------------------------------------------------------------------------------


def _texts(kind: str) -> Callable[[], list[bytes]]:
    """Every name of the catalogue with the parameters that it has."""

    def examples() -> list[bytes]:
        out = [b"", b"uniform", b"floor(inner='oort(explore=0.8)', every=10)"]
        for name in lookup.names(kind):
            out.append(name.encode())
            if kind in ("selector", "method"):
                known = lookup.parameters(lookup.load(kind, name))
                given = ", ".join(f"{n}={p.default!r}" for n, p in known.items() if p.default is not p.empty)
                out.append(f"{name}({given})".encode())
        return out + ([b"dirichlet-0.1-v1(clients=20, noise=0.1)"] if kind == "world" else [])

    return examples


def _text(kind: str) -> Callable[[bytes, Path], object]:
    makers: dict[str, Callable[[str], Any]] = {
        "selector": lookup.make_selector,
        "method": lookup.make_method,
        "world": lookup.make_world_spec,
        "task": lookup.make_task_spec,
    }

    def read(data: bytes, folder: Path) -> object:
        text = data.decode("utf-8", "replace")
        if kind == "world" and text.endswith((".toml", ".json")):
            return None  # the name of a file
        made = makers[kind](text)
        texts.resolved(kind, texts.canonical(kind, text))
        return made

    return read


def _parameters(kind: str) -> tuple[bytes, ...]:
    found = {n for name in lookup.names(kind) for n in lookup.parameters(lookup.load(kind, name))}
    return tuple(f"{n}=".encode() for n in sorted(found))


_RUN_FILE = b"""selector = "oort(explore=0.8)"
rounds = 3
cohort_size = 2
seed = 7
deadline = 60.0
[world]
name = "dirichlet-0.1-v1"
clients = 20
[task]
name = "quadratic"
"""
_SWEEP_FILE = b"""selectors = ["uniform", "oort(explore=0.5)"]
worlds = ["iid-v1"]
seeds = [0, 1]
rounds = 2
task = "quadratic"
"""
_WORLD_FILE = b"""name = "mine"
clients = 20
[partition]
kind = "dirichlet"
alpha = 0.5
"""


def _world_files() -> list[bytes]:
    specs = [lookup.make_world_spec(name).to_dict() for name in lookup.names("world")[:6]]
    return [_WORLD_FILE, *(json.dumps(spec).encode() for spec in specs)]


def _world_file(data: bytes, folder: Path) -> object:
    path = folder / ("world.json" if data[:1] == b"{" else "world.toml")
    path.write_bytes(data)
    return lookup.make_world_spec(str(path)).to_dict()


def _run_file(path: Path) -> object:
    return config.from_mapping(config.from_toml(path)).canonical().digest()


def _sweep_file(path: Path) -> object:
    made = sweep.from_mapping(config.from_toml(path))
    return made.toml(), made.runs()


_KEYS = tuple(f"{key} = ".encode() for key in config.KEYS)
SETTINGS = (
    *(
        Target(f"{kind} text", _texts(kind), _text(kind), (*LITERALS, *_parameters(kind)))
        for kind in ("selector", "method")
    ),
    Target("world text", _texts("world"), _text("world"), (*LITERALS, b"clients=", b"noise=", b"partition__")),
    Target("task text", _texts("task"), _text("task"), (*LITERALS, b"lr=", b"epochs=", b"hidden=")),
    Target(
        "run file (TOML)", lambda: [_RUN_FILE], _file("run.toml", _run_file), (*LITERALS, *_KEYS, b"\n", b"[world]")
    ),
    Target("sweep file (TOML)", lambda: [_SWEEP_FILE], _file("s.toml", _sweep_file), (*LITERALS, *_KEYS, b"seeds = ")),
    Target("world file", _world_files, _world_file, (*LITERALS, b"kind = ", b'"kind": ', b"clients = ")),
)

# ---- data ------------------------------------------------------------------------------------------------------


def _npz_files() -> list[bytes]:
    out = []
    for save in (np.savez, np.savez_compressed):
        for x in (np.zeros((4, 3), np.float32), np.zeros((4, 1, 2, 2), np.uint8)):
            file = io.BytesIO()
            save(file, x=x, y=np.array([0, 1, 0, 1]), client=np.array(["a", "b", "a", "b"]))
            out.append(file.getvalue())
    return out


def _parquet_files() -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    columns = {"age": [1.0, 2.0, 3.0], "n": [1, 2, 3], "label": ["a", "b", "a"], "client": [0, 1, 1]}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    return [file.getvalue()]


def _leaf() -> list[bytes]:
    data = {"x": [[0.0, 0.5, 1.0, 0.2]], "y": [1]}
    return [json.dumps({"users": ["a"], "num_samples": [1], "user_data": {"a": data}}).encode()]


def _batches() -> list[bytes]:
    import pickle

    image = np.zeros((2, 3072), np.uint8)
    return [pickle.dumps({b"data": image, b"labels": [1, 2]}, protocol) for protocol in (2, 4)]


def _traces() -> list[bytes]:
    fedscale = {"17": {"active": [0, 900], "inactive": [300, 1500], "finish_time": 2000}}
    return [json.dumps(fedscale).encode(), b'{"period": 86400, "devices": [[[0, 300], [900, 1500]], []]}']


_CSV = b"device,begin,end\n0,0,300\n0,900,1500\n1,5,6\n"
_IDX = struct.pack(">HBBIII", 0, 8, 3, 2, 2, 2) + bytes(range(8))
DATA = (
    Target(
        "npz",
        _npz_files,
        _file("d.npz", lambda p: check_file("mine", p)),
        (b"<f8", b"|O", b"(4,)", b"'shape': ", b"PK"),
    ),
    Target(
        "csv",
        lambda: [b"age,n,label,client\n1.5,2,a,0\n2.5,3,b,1\n"],
        _file("d.csv", Dataset.from_csv),
        (b",", b";", b"\n", b'"'),
    ),
    Target("parquet", _parquet_files, _file("d.parquet", Dataset.from_parquet), (b"PAR1",)),
    Target("idx", lambda: [_IDX], _file("d.idx", lambda p: formats.read_idx(p, formats.ReadLimits(1 << 24)))),
    Target("LEAF", _leaf, _file("d.json", lambda p: formats.read_leaf([p], 2)), (b"[]", b"null", b"{}", b'"x"')),
    Target(
        "CIFAR batch",
        _batches,
        lambda data, folder: cifar_batches.read_python(data, folder),
        (b"\x80\x04", b"c", b"R", b"b."),
    ),
    Target("trace (json)", _traces, _file("t.json", load_trace), (b"[]", b"null", b"{}", b'"active"', b'"period"')),
    Target("trace (csv)", lambda: [_CSV], _file("t.csv", load_trace), (b",", b"\n", b'"', b"device")),
)

# ---- Flower ----------------------------------------------------------------------------------------------------


def _first() -> dict[str, Any]:
    return {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}


def _bodies(register: bool) -> Callable[[], list[bytes]]:
    """Answers of an honest client, as they travel."""

    def examples() -> list[bytes]:
        from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
        from flwr.common.serde import recorddict_to_proto
        from tests.flower.grid import as_record

        from fedcohort.flower import wire

        card = {"wire": wire.WIRE, "id": "a", "provides": ["utility"], "app-version": "1", "abilities": ["x"]}
        told = MetricRecord({"utility": 1.0, "samples": 5, "label_histogram": [1.0, 2.0]})
        reply: dict[str, Any] = {
            "arrays": as_record(_first()),
            "metrics": MetricRecord({"num-examples": 5, "loss": 0.5}),
        }
        reply |= {wire.SIGNALS: told, wire.VECTORS: ArrayRecord([np.zeros(2, np.float32)])}
        body = {wire.REQUEST: ConfigRecord(card), wire.SIGNALS: told} if register else reply
        return [recorddict_to_proto(RecordDict(body)).SerializeToString(), *_LINES]

    return examples


_LINES = (
    b"A|arrays|w|numpy.ndarray|{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }|24\n"
    b"A|arrays|b|numpy.ndarray|{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }|8\n"
    b"M|metrics|num-examples|5\nM|metrics|num-steps|3\nM|metrics|loss|0.5\nM|fedcohort.signals|utility|1.0\n"
    b"A|fedcohort.vectors|insight|numpy.ndarray|{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }|8",
    b"C|fedcohort|wire|1\nC|fedcohort|id|'a'\nC|fedcohort|provides|['utility']\nC|fedcohort|app-version|'1'\n"
    b"C|fedcohort|abilities|['x']\nM|fedcohort.signals|samples|5\nM|fedcohort.signals|label_histogram|[1.0, 2.0]",
    b"C|fedcohort|wire|1\nC|fedcohort|round|1\nC|fedcohort|epochs|2\nC|fedcohort|measure|['utility']",
)


def _from_lines(data: bytes) -> Any:
    """Records from lines such as "M|metrics|loss|0.5": any name, type, shape and value that Flower can carry."""
    import ast

    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    made = {"A": ArrayRecord, "M": MetricRecord, "C": ConfigRecord}
    body = RecordDict()
    for line in data.decode("utf-8", "replace").split("\n"):
        kind, record, key, value, *rest = [*line.split("|"), *[""] * 6]
        if kind not in made:
            continue
        if not isinstance(body.get(record), made[kind]):
            body[record] = made[kind]()
        if kind == "A":
            head = rest[0].encode("utf-8", "replace")[:60_000]
            size = int(rest[1]) if rest[1].isascii() and rest[1].isdigit() and len(rest[1]) < 6 else 0
            npy = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(size)
            body[record][key] = Array("float32", (2,), value, npy)
        else:
            body[record][key] = ast.literal_eval(value)
    return body


def _message(data: bytes) -> Any:
    """The message that carries these bytes, or None where Flower itself refuses them before we see anything."""
    from flwr.app import Message, RecordDict
    from flwr.common.serde import recorddict_from_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Proto
    from google.protobuf.message import DecodeError

    try:
        textual = data[1:2] == b"|"
        content = _from_lines(data) if textual else recorddict_from_proto(Proto.FromString(data))
    except (DecodeError, ValueError, TypeError, KeyError, AttributeError, SyntaxError, RecursionError, MemoryError):
        return None  # the driver goes on without it: tests/flower/test_server_life.py
    asked = Message(RecordDict(), dst_node_id=7, message_type="train")
    message = Message(content, reply_to=asked)
    message.metadata.__dict__["_src_node_id"] = 7
    return message


def _arrival(data: bytes, kind: str) -> Any:
    from fedcohort.flower.server.driver import Arrival, Sent

    message = _message(data)
    return None if message is None else Arrival(Sent(0, 7, kind, 0, 0.0, 9.0), message, 1.0)


def _reply(data: bytes, folder: Path) -> object:
    """A training reply, then the same as an evaluation; what is believed must fit into the journal."""
    from tests.flower.grid import as_record

    from fedcohort.flower.model_layout import ModelLayout
    from fedcohort.flower.server.reply_reader import ReplyValidator, read_evaluation
    from fedcohort.flower.wire import Refused
    from fedcohort.types import Model

    arrival = _arrival(data, "train")
    if arrival is None:
        return "refused by Flower"
    reasons = []
    layout = ModelLayout.of(as_record(_first()))
    for check in (True, False):
        validator = ReplyValidator(layout, weight_key="num-examples", weight_needed=True, check_shapes=check)
        try:
            reply = validator.read(arrival, Model(np.zeros(8, np.float32)), frozenset({"utility"}))
            validator.agree({0: reply})
            unpack(pack({}, {"metrics": dict(reply.metrics)}))
            reasons.append(_judged(reply))
        except Refused as refused:
            reasons.append(_fit(refused.reason))
    try:
        read_evaluation(arrival)
    except Refused as refused:
        reasons.append(_fit(refused.reason))
    return " ".join(reasons)


def _judged(reply: Any) -> str:
    """What the round engine makes of a reply that could be read."""
    from fedcohort.flower.server.reply_matrix import matrix
    from fedcohort.rounds.backend import Dispatch
    from fedcohort.rounds.validation import validate
    from fedcohort.types import Cohort, Model, Plan

    cohort = Cohort(np.array([reply.slot]))
    plan = Plan(measure=frozenset({"utility"}))
    work = Dispatch(0, Model(np.zeros(8, np.float32)), cohort, plan, frozenset())
    reasons = validate(*matrix([(reply, work)])).reasons
    return next(map(_fit, reasons.values()), "believed")


def _register(data: bytes, folder: Path) -> object:
    """A registration: what is kept of it must fit into the journal and be safe to print."""
    from tests.flower.grid import FakeGrid

    from fedcohort.flower.server.clients import Clients, Requirements
    from fedcohort.flower.server.driver import Driver
    from fedcohort.flower.wire import REGISTER

    arrival = _arrival(data, REGISTER)
    if arrival is None:
        return "refused by Flower"
    needs = frozenset({"utility", "samples", "label_histogram"})
    terms = Requirements(needs, "1", frozenset({"x"}), frozenset())
    clients = Clients(Driver(FakeGrid([]), lambda: 0.0, lambda s: None, 1.0), terms, "P3")
    clients.handle_registrations([arrival])
    record = clients.news_record()
    if record is not None:
        unpack(pack(*record))
    if len(clients.roster):
        clients.profiles(signals.of_side(needs, "profile"), 60.0)
        return "registered"
    return " ".join(_fit(name) and _fit(why) for name, why in clients.refused.values())


def _fit(text: str) -> str:
    """What is kept of a refusal: short, and safe to print. The part before a colon is the code."""
    text = shown(text)
    assert len(text) <= 1000, f"{len(text)} characters are kept"
    assert text.isprintable(), f"{text!r} is kept"
    return "".join(c for c in text.partition(":")[0] if not c.isdigit())[:60]


def _request(data: bytes, folder: Path) -> object:
    """A server's message at the client: instructions for training."""
    from fedcohort.flower import instructions

    message = _message(data)
    if message is None:
        return "refused by Flower"
    return f"epochs {instructions(message, epochs=1, lr=0.1).epochs > 1}"


_WIRE = (
    b"fedcohort",
    b"fedcohort.signals",
    b"num-examples",
    b"\x1b[31m",
    b"\xff\xff\xff\xff\x0f",
    b"\x0a",
    b"\x12",
    b"numpy.ndarray",
)
FLOWER = (
    Target("Flower reply", _bodies(False), _reply, _WIRE),
    Target("Flower registration", _bodies(True), _register, (*_WIRE, b"label_histogram", b"app-version")),
    Target("Flower request", _bodies(False), _request, (*_WIRE, b"epochs", b"directives")),
)

# ---- dashboard -------------------------------------------------------------------------------------------------

TOKEN = "fuzzing-fuzzing-fuzzing"
_REQUESTS = (
    b"GET /?token=fuzzing-fuzzing-fuzzing\nhost: 127.0.0.1:1",
    b"GET /api/runs\nhost: 127.0.0.1:1\ncookie: @",
    b"GET /api/runs/#/curve?name=accuracy&most=10\nhost: 127.0.0.1:1\ncookie: @",
    b"GET /api/runs/#/map?last=10\nhost: 127.0.0.1:1\ncookie: @\norigin: http://127.0.0.1:1",
    b"GET /api/runs/#/clients/1\nhost: 127.0.0.1:1\ncookie: @",
    b"GET /api/runs/#?target=0.5\nhost: localhost:1\ncookie: @\nsec-fetch-site: same-origin",
)


@cache
def _application() -> tuple[Any, bytes, bytes]:
    """The dashboard over one run, a cookie that it takes, and the id of the run."""
    from fedcohort.dashboard.app import application
    from fedcohort.dashboard.board import Board
    from fedcohort.dashboard.live import Live

    board = Board([_run().parent])
    board.refresh()
    guard = application(board, Live(board), TOKEN, 1)
    head = _ask(guard, b"GET", b"/", b"token=" + TOKEN.encode(), [(b"host", b"127.0.0.1:1")])[0]
    cookie = next(v for k, v in head["headers"] if k == b"set-cookie").split(b";")[0]
    return guard, cookie, board.since(0)[1][0]["id"].encode()


def _ask(
    app: Any, method: bytes, path: bytes, query: bytes, headers: list[tuple[bytes, bytes]]
) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""}
    scope |= {"method": method.decode("latin-1"), "path": path.decode("utf-8", "replace"), "raw_path": path}
    scope |= {"query_string": query, "headers": headers, "client": ("127.0.0.1", 9), "server": ("127.0.0.1", 1)}
    asyncio.run(app(scope, receive, send))
    return said


def _asked(data: bytes, folder: Path) -> object:
    """A request: it has an answer, which is no error of the server and says nothing to strangers."""
    app, cookie, run = _application()
    first, *rest = data.replace(b"@", cookie).replace(b"#", run).split(b"\n")
    method, _, address = first.partition(b" ")
    path, _, query = address.partition(b"?")
    if b"events" in path:
        return None  # a stream has no end; tests/dashboard/test_live.py
    pairs = (line.partition(b":") for line in rest)
    headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs if name.strip()]
    said = _ask(app, method, path, query, headers)
    assert said, "there is no answer"
    assert said[0]["status"] < 500, f"status {said[0]['status']}"
    body = b"".join(m.get("body", b"") for m in said)
    known = cookie in data.replace(b"@", cookie) or TOKEN.encode() in query
    assert known or not body, "a stranger was answered"
    return f"{said[0]['status']} {len(path.split(b'/'))}"


DASHBOARD = (
    Target(
        "dashboard request",
        lambda: list(_REQUESTS),
        _asked,
        (b"..", b"%2e", b"/api/", b"\n", b"?", b"&", b"@", b"#", b"%00"),
    ),
)
GROUPS = {"storage": STORAGE, "settings": SETTINGS, "data": DATA, "flower": FLOWER, "dashboard": DASHBOARD}
TARGETS = {target.name: target for group in GROUPS.values() for target in group}
