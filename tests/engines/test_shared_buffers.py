"""Memory that other processes write their rows into: found by its label only, used again when nobody is at it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedcohort.engines import ray_engine, shared_buffers
from fedcohort.engines.shared_buffers import SharedPool, write_rows

_WRITER = """
import sys
import numpy as np
from fedcohort.engines.shared_buffers import write_rows
rows = np.array([1, 3])
print(write_rows(sys.argv[1], rows, np.arange(10, dtype=np.float32).reshape(2, 5)))
"""


def taken():
    pool = SharedPool()
    delta = pool.take(4, 5)
    place = pool.place_of(delta)
    if place is None:
        pytest.skip("this system has no such memory")
    return pool, delta, place


def test_another_process_writes_its_rows_and_no_others():
    _, delta, place = taken()
    delta[:] = -1.0
    done = subprocess.run([sys.executable, "-c", _WRITER, place], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
    np.testing.assert_array_equal(delta[[1, 3]], np.arange(10).reshape(2, 5))
    assert (delta[[0, 2]] == -1.0).all()


def test_what_is_not_this_memory_is_not_written_to():
    """On another machine the same number may be anything; and there may be no such process at all."""
    _, delta, place = taken()
    delta[:] = 0.0
    process, file, label = place.split()
    ones = np.ones((1, 5), np.float32)
    for wrong in (f"{process} {file} fedcohort-0123", f"{process} 0 {label}", f"999999999 {file} {label}"):
        assert not write_rows(wrong, np.array([0]), ones)
    assert not delta.any()


def test_memory_is_used_again_unless_somebody_holds_it_or_may_still_write():
    pool, delta, place = taken()
    other = pool.take(4, 5)
    assert pool.place_of(other) not in (None, place)
    del delta, other
    again = pool.take(4, 5)
    assert pool.place_of(again) == place
    pool.spoil(again)
    del again
    assert all(pool.place_of(pool.take(4, 5)) != place for _ in range(3))


def test_without_such_memory_rows_are_sent(monkeypatch):
    def none(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_buffers.os, "posix_fallocate", none, raising=False)
    pool = SharedPool()
    delta = pool.take(2, 3)
    assert delta.shape == (2, 3)
    assert pool.place_of(delta) is None


def test_parts_of_a_cohort_become_smaller_and_hold_everybody_once():
    work = np.random.default_rng(0).integers(0, 90, size=355)
    parts = ray_engine.tapered(work, 2)
    assert sorted(np.concatenate(parts)) == list(range(355))
    loads = [int(np.maximum(work[rows], 1).sum()) for rows in parts]
    total = np.maximum(work, 1).sum()
    assert loads[0] <= total / 4 + 90
    assert max(loads[-4:]) <= total / 40
    assert len(parts) < 30
    assert [rows.tolist() for rows in ray_engine.tapered(np.array([5]), 3)] == [[0]]
