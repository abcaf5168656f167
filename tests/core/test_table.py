"""State as columns: growth, saving, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fedcohort.core.table import Table, TableError, block, column, ragged


@dataclass
class State(Table):
    value: np.ndarray = column(0.5)
    seen: np.ndarray = column(-1, np.int64)
    pair: np.ndarray = column(0.0, width=2)
    matrix: np.ndarray = block((2, 2), 1.0)
    history: np.ndarray = ragged(np.float64)
    rounds: int = 0
    pace: float = 1.0
    warm: bool = False


def filled():
    s = State()
    s.grow(3)
    s.value[1], s.seen[2], s.pair[0, 1] = 2.0, 7, 3.0
    s.history, s.rounds, s.pace, s.warm = np.array([1.0, 2.0]), 4, 0.25, True
    return s


def test_growth_for_clients_covers_the_largest_slot():
    s = filled()
    before = s.rows
    s.grow_for(np.empty(0, np.int64))
    assert s.rows == before
    s.grow_for(np.array([7, 2]))
    assert s.rows == 8


def test_growth_keeps_what_is_there_and_fills_with_defaults():
    s = filled()
    s.grow(5)
    assert s.rows == 5
    assert s.value.tolist() == [0.5, 2.0, 0.5, 0.5, 0.5]
    assert s.seen.tolist() == [-1, -1, 7, -1, -1]
    assert s.pair.shape == (5, 2)
    assert s.matrix.shape == (2, 2)
    s.grow(2)
    assert s.rows == 5


def test_two_tables_share_nothing():
    a, b = State(), State()
    a.grow(2)
    a.matrix[0, 0] = 9.0
    assert b.rows == 0
    assert b.matrix[0, 0] == 1.0


def test_round_trip_restores_types_and_values():
    saved, other = filled().to_arrays(), State()
    other.load_arrays(saved)
    for name, value in saved.items():
        again = other.to_arrays()[name]
        assert again.dtype == value.dtype
        assert again.tobytes() == value.tobytes()
    assert (type(other.rounds), type(other.pace), type(other.warm)) == (int, float, bool)


def test_saved_and_loaded_arrays_are_copies():
    s = filled()
    saved = s.to_arrays()
    s.value[0] = 99.0
    assert saved["value"][0] == 0.5
    other = State()
    other.load_arrays(saved)
    saved["value"][0] = 7.0
    assert other.value[0] == 0.5


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("value", np.zeros(3, np.float64)),
        ("value", np.zeros((3, 1), np.float32)),
        ("value", np.zeros(4, np.float32)),
        ("pair", np.zeros((3, 3), np.float32)),
        ("matrix", np.zeros((3, 3))),
        ("history", np.zeros((2, 2))),
        ("rounds", np.array(1.5)),
        ("rounds", np.array([1])),
        ("pace", np.array("fast")),
        ("warm", np.array(3)),
        ("seen", np.array([None] * 3)),
    ],
)
def test_a_wrong_shape_or_type_is_refused_and_changes_nothing(name, wrong):
    s = filled()
    before = s.to_arrays()
    with pytest.raises(TableError):
        s.load_arrays({**before, name: wrong})
    after = s.to_arrays()
    assert all(after[k].tobytes() == before[k].tobytes() for k in before)


def test_other_keys_are_refused_and_named():
    saved = filled().to_arrays()
    with pytest.raises(TableError, match="speed"):
        State().load_arrays({**saved, "speed": np.zeros(3)})
    saved.pop("pair")
    with pytest.raises(TableError, match="pair"):
        State().load_arrays(saved)
