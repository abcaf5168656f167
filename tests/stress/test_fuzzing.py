"""A short fuzzing of every reader of bytes from outside, what was found so far, and that anything can be found."""

from __future__ import annotations

import io
import os
import signal

import numpy as np
import pytest
from tests.stress.fuzz_targets import TARGETS
from tests.stress.fuzzing import Target, fuzz

from fedcohort.core.pack import pack

SLOW = {
    "journal file": 30,
    "journal record, hashes right": 12,
    "Flower reply": 120,
    "dashboard request": 120,
    "csv": 120,
}
DEEP = b'{"name": "mine", "clients": ' + b"[" * 3000


def _bad_name():
    """An .npz file whose first name is said to be UTF-8 and is not."""
    file = io.BytesIO()
    np.savez(file, x=np.zeros(2))
    data = bytearray(file.getvalue())
    at = data.index(b"PK\x01\x02")
    data[at + 8 : at + 10], data[at + 46] = (0x800).to_bytes(2, "little"), 0xB0
    return bytes(data)


FOUND = {  # what once ended in a foreign error
    "parquet": [b"PAR1" + b"\x15\x04" * 40 + b"\x10\x00\x00\x00PAR1"],
    "world file": [DEEP],
    "run file (TOML)": [b"rounds = " + b"9" * 5000],
    "npz": [_bad_name()],
    "trace (json)": [b'{"period": 9, "devices": [[[' + b"9" * 400 + b", 5]]]}"],
    "pack": [pack({"x": np.zeros(2)}).replace(b'"<f8"', b'",i2"')],
    "csv": [b"age,label,client\n1,a,inf\n2,b,inf\n", b"age,label\n1e999,a\n2,b\n"],
}


@pytest.mark.parametrize("name", TARGETS)
def test_only_our_own_errors(name):
    """No foreign exception, no hang, no memory beyond the bound; the same inputs in every run."""
    if name == "parquet":
        pytest.importorskip("pyarrow")
    if name.startswith("Flower"):
        pytest.importorskip("flwr")
    found = fuzz(TARGETS[name], 20, executions=SLOW.get(name, 300))
    assert found.findings == []
    assert found.executions == SLOW.get(name, 300)
    assert found.taken


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, inputs in FOUND.items() for data in inputs])
def test_what_was_found_stays_fixed(name, data, tmp_path):
    with pytest.raises(TARGETS[name].errors):
        TARGETS[name].read(data, tmp_path)


def _hang(data, folder):
    if b"x" in data:
        while True:
            pass


def _allocate(data, folder):
    return bytearray(1 << 32) if b"x" in data else None


def _die(data, folder):
    if b"x" in data:
        os.kill(os.getpid(), signal.SIGKILL)


def _foreign(data, folder):
    if b"x" in data:
        raise KeyError("foreign")


@pytest.mark.parametrize(
    ("read", "what"),
    [(_hang, "Hung"), (_allocate, "MemoryError"), (_die, "the process ended with -9"), (_foreign, "KeyError")],
)
def test_the_fuzzer_sees_what_it_is_for(read, what, monkeypatch):
    monkeypatch.setattr("tests.stress.fuzzing.SECONDS", 0.2)
    found = fuzz(Target("control", lambda: [b"a", b"b"], read, (b"x",)), 1, executions=10)
    assert found.findings
    assert all(f["what"].startswith(what) for f in found.findings)
