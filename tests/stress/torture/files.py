"""Malicious files in the place of checkpoints, configurations and data sets: refused in one sentence, nothing run.

Each file is opened in a child process with 2 GiB more of memory and a minute; the pickles would write a file if they ran.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import resource
import signal
import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedcohort.core.pack import PackError
from fedcohort.data.dataset import check_file
from fedcohort.errors import FedcohortError
from fedcohort.experiment import config
from fedcohort.storage.journal import Journal
from fedcohort.storage.segments import decompress
from fedcohort.storage.snapshots import Snapshots
from fedcohort.worlds.trace import load_trace
from storage import scratch

MEMORY, SECONDS = 2 << 30, 60

REFUSED, TAKEN = 3, 4


def _take(kind: str, path: Path) -> None:
    """Open the file as what it claims to be."""
    if kind == "snapshot":
        if Snapshots(path.parent).latest() is None:
            raise PackError("passed over")
    elif kind == "journal":
        Journal.open(path)
    elif kind == "segment":
        list(decompress(path.read_bytes()))
    elif kind == "config":
        config.from_mapping(config.from_toml(path)).canonical()
    elif kind == "data":
        check_file("torture", path)
    elif kind == "trace":
        load_trace(path)


class _Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


def _npz(**columns: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in columns.items():
            archive.writestr(f"{name}.npy", data)
    return out.getvalue()


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + data


def _pack(index: dict, size: int = 0, length: int | None = None) -> bytes:
    header = json.dumps({"meta": {"round": 1}, "arrays": index, "size": size}).encode()
    data = b"fcpack01" + (len(header) if length is None else length).to_bytes(8, "little") + header + bytes(size)
    return data + hashlib.sha256(data).digest()


def _deep() -> bytes:
    data = b"fcpack01" + (400_000).to_bytes(8, "little") + b"[" * 400_000
    return data + hashlib.sha256(data).digest()


def cases(mark: Path) -> list[tuple[str, str, str, bytes]]:
    """(what, kind, file name, content)."""
    evil = pickle.dumps(_Bomb(mark))
    objects = io.BytesIO()
    np.save(objects, np.array([_Bomb(mark)], object), allow_pickle=True)
    plain = io.BytesIO()
    np.save(plain, np.zeros(4, np.int64))
    huge = _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}\n")
    bomb = _npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296,)}\n", bytes(200 << 20))
    header = _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 2_000_000 + ")}\n")
    call = _npy("{'descr': __import__('os').system('touch " + str(mark) + "'), 'fortran_order': False, 'shape': ()}\n")
    snap = "round-00000001.snapshot"
    return [
        ("pickle as snapshot", "snapshot", snap, evil),
        ("pickle with a digest", "snapshot", snap, evil + hashlib.sha256(evil).digest()),
        ("objects in a snapshot", "snapshot", snap, _pack({"x": ["|O", [1], 0]}, 8)),
        ("array past the end", "snapshot", snap, _pack({"x": ["<f8", [10**12], 0]}, 8)),
        ("shape that overflows", "snapshot", snap, _pack({"x": ["<f8", [2**62, 8], 0]}, 8)),
        ("negative offset", "snapshot", snap, _pack({"x": ["<f8", [1], -8]}, 8)),
        ("endless header", "snapshot", snap, _pack({}, 0, 2**63)),
        ("deep JSON", "snapshot", snap, _deep()),
        ("pickle as journal", "journal", "journal.db", evil),
        ("zip as journal", "journal", "journal.db", _npz(x=plain.getvalue())),
        ("segment bomb", "segment", "s", (2**31).to_bytes(8, "little") + zlib.compress(bytes(1 << 28))),
        ("segment beyond the limit", "segment", "s", (2**60).to_bytes(8, "little") + zlib.compress(bytes(1 << 20))),
        ("pickle as configuration", "config", "c.toml", evil),
        ("configuration that is an expression", "config", "c.toml", b"selector = \"__import__('os').system('id')\""),
        ("configuration with a foreign key", "config", "c.toml", b'command = "touch x"\n'),
        ("deep TOML", "config", "c.toml", b"a = " + b"[" * 100_000),
        ("binary TOML", "config", "c.toml", bytes(range(256)) * 50),
        ("pickle as data", "data", "d.npz", evil),
        ("object array as data", "data", "d.npz", _npz(x=objects.getvalue(), y=plain.getvalue())),
        ("array of a terabyte", "data", "d.npz", _npz(x=huge, y=plain.getvalue())),
        ("zip bomb", "data", "d.npz", _npz(x=bomb, y=plain.getvalue())),
        ("endless array header", "data", "d.npz", _npz(x=header, y=plain.getvalue())),
        ("expression in a header", "data", "d.npz", _npz(x=call, y=plain.getvalue())),
        ("truncated zip", "data", "d.npz", _npz(x=plain.getvalue())[:-30]),
        ("pickle as trace", "trace", "t.json", evil),
        ("deep JSON trace", "trace", "t.json", b"[" * 200_000),
    ]


def malicious(only: int | None = None) -> dict:
    """How many were refused in one sentence, how many ended otherwise, and whether anything was run."""
    refused, other, ran = 0, [], 0
    with scratch() as folder:
        mark = folder / "ran"
        found = cases(mark)[:only] if only else cases(mark)
        for number, (what, kind, name, content) in enumerate(found):
            place = folder / str(number)
            place.mkdir()
            (place / name).write_bytes(content)
            code = _child(kind, place / name)
            refused += code == REFUSED
            ran += mark.exists()
            if code != REFUSED:
                other.append(f"{what}: {code}")
    return {"files": len(found), "refused": refused, "payloads run": ran, "other ends": other}


def _child(kind: str, path: Path) -> int | str:
    """REFUSED when it was refused in one sentence, TAKEN when it was believed; otherwise what went wrong."""
    report = path.with_name("report")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (_now() + MEMORY, _now() + MEMORY))
            signal.alarm(SECONDS)
            _take(kind, path)
            code = TAKEN
        except (FedcohortError, PackError):
            code = REFUSED
        except BaseException as error:
            report.write_text(f"{type(error).__name__}: {error}"[:200])
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code in (REFUSED, TAKEN) else report.read_text() if report.exists() else f"ended with {code}"


def _now() -> int:
    """Bytes of address space that this process has already."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
