"""Buffers are used again, but never while anybody can still see them."""

from __future__ import annotations

import gc

import numpy as np

from fedcohort.engines.fused.buffer_pool import BufferPool


def test_a_room_that_nobody_sees_is_used_again() -> None:
    rooms = BufferPool()
    first = rooms.take(3, 5)
    address = first.ctypes.data
    del first
    gc.collect()
    assert rooms.take(3, 5).ctypes.data == address


def test_a_room_is_not_used_again_while_a_view_of_it_lives() -> None:
    rooms = BufferPool()
    kept = rooms.take(4, 6)[2, 1:3]  # only a view of a view is left
    kept[:] = 7.0
    others = [rooms.take(4, 6) for _ in range(4)]
    for other in others:
        assert not np.shares_memory(other, kept)
        other[:] = 0.0
    assert (kept == 7.0).all()
    for i, one in enumerate(others):
        assert not any(np.shares_memory(one, other) for other in others[:i])


def test_rooms_are_bounded_and_not_wasted_on_small_rounds() -> None:
    rooms = BufferPool()
    big = rooms.take(100, 10)
    address = big.ctypes.data
    del big
    assert rooms.take(2, 10).ctypes.data != address  # a fiftieth of the buffer
    for rows in range(1, 9):
        rooms.take(1 << rows, 4)
    assert len(rooms._held) <= 2
