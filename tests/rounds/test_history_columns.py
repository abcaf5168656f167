"""A packed history reads as the lists it replaces, and a round of it takes little memory."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcohort.rounds.history import History
from fedcohort.rounds.history_columns import Groups, Rows

VALUES = st.one_of(
    st.floats(allow_nan=False), st.integers(), st.none(), st.text(max_size=3), st.lists(st.integers(), max_size=2)
)
TABLES = st.lists(st.dictionaries(st.sampled_from("abcde"), VALUES), max_size=8)


@given(TABLES)
def test_rows_read_as_the_list_of_dicts(table):
    rows = Rows(table)
    assert rows == table
    assert list(rows) == table
    assert [list(row) for row in rows] == [list(row) for row in table]  # names in their order
    assert rows.names == list(dict.fromkeys(name for row in table for name in row))
    assert rows[1:] == table[1:]
    assert rows[::-1] == table[::-1]
    assert [type(v) for row in rows for v in row.values()] == [type(v) for row in table for v in row.values()]


def test_a_column_has_a_number_for_each_row():
    rows = Rows([{"a": 1.0, "n": {"0": "x"}}, {"n": {}, "b": 2.0, "a": 3}, {"a": None}, {}])
    np.testing.assert_array_equal(rows.column("a"), [1.0, 3.0, np.nan, np.nan])
    np.testing.assert_array_equal(rows.column("b"), [np.nan, 2.0, np.nan, np.nan])
    assert np.isnan(rows.column("other")).all()


def test_a_row_that_is_read_is_a_copy_and_ends_are_errors():
    rows = Rows([{"a": 1.0}])
    rows[0]["a"] = 5.0
    assert rows[-1] == {"a": 1.0}
    assert rows != [{"a": 5.0}]
    with pytest.raises(IndexError):
        rows[1]


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=6))
def test_groups_read_as_the_list_of_arrays(groups):
    packed = Groups(groups)
    assert [g.tolist() for g in packed] == groups
    assert [g.tolist() for g in packed[1:]] == groups[1:]
    assert all(g.dtype == np.int64 for g in packed)


def test_ten_thousand_rounds_take_half_a_kilobyte_each():
    """As they come out of a journal: no string is shared with the round before."""
    numbers = json.dumps(
        {f"metric-{i}": i / 7 for i in range(20)} | {"names": {str(i): f"client-{i}" for i in range(5)}}
    )
    population = np.arange(100_000)  # a cohort may be a view of something large
    tracemalloc.start()
    try:
        history = History(100_000)
        for _ in range(10_000):
            history.append(json.loads(numbers), population[:5], {}, population[:4])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 10_000 < 800
    assert history.rows[9_999]["names"]["4"] == "client-4"
