"""What a history keeps of many rounds, packed: eight bytes for a number or a client, not a Python object for each."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from sys import intern
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.types import Index

Layout = tuple[tuple[str, bool], ...]  # names of a row in their order, and whether each is a number
T = TypeVar("T")


class Packed(Sequence[T], Generic[T]):
    """Reads as a list; each item is made when it is looked at."""

    def _item(self, at: int) -> T:
        raise NotImplementedError

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        there = range(len(self))[at]
        return self._item(there) if isinstance(there, int) else [self._item(i) for i in there]

    def __repr__(self) -> str:
        return repr(list(self))


class Rows(Packed[dict[str, Any]]):
    """Rows of a table whose columns come and go.

    >>> rows = Rows([{"clock": 9.0}, {"clock": 20.0, "accuracy": 0.5, "names": {"3": "ward-7"}}])
    >>> rows[-1], rows.column("accuracy").tolist()
    ({'clock': 20.0, 'accuracy': 0.5, 'names': {'3': 'ward-7'}}, [nan, 0.5])
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._layouts: dict[Layout, int] = {}
        self._known: list[Layout] = []
        self._layout = array("q")  # of each row
        self._numbers, self._others = array("d"), list[Any]()
        self._first_number, self._first_other = array("q"), array("q")  # of each row
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return len(self._layout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def append(self, row: Mapping[str, Any]) -> None:
        """One more row."""
        layout = tuple((intern(name), type(value) is float) for name, value in row.items())
        if layout not in self._layouts:
            self._layouts[layout] = len(self._known)
            self._known.append(layout)
        self._layout.append(self._layouts[layout])
        self._first_number.append(len(self._numbers))
        self._first_other.append(len(self._others))
        for value, (_, number) in zip(row.values(), layout, strict=True):
            if number:
                self._numbers.append(value)
            else:
                self._others.append(_shared(value))

    def _item(self, at: int) -> dict[str, Any]:
        number, other = self._first_number[at], self._first_other[at]
        row: dict[str, Any] = {}
        for name, is_number in self._known[self._layout[at]]:
            row[name] = self._numbers[number] if is_number else self._others[other]
            number, other = number + is_number, other + (not is_number)
        return row

    @property
    def names(self) -> list[str]:
        """Every name that a row has, in the order in which they came."""
        return list(dict.fromkeys(name for layout in self._known for name, _ in layout))

    def column(self, name: str) -> NDArray[np.float64]:
        """One number per row; NaN where a row has none."""
        places = [_place(layout, name) for layout in self._known]

        def number(at: int) -> float:
            found = places[self._layout[at]]
            if found is None:
                return math.nan
            is_number, place = found
            if is_number:
                return self._numbers[self._first_number[at] + place]
            other = self._others[self._first_other[at] + place]
            return math.nan if other is None else float(other)

        return np.array([number(at) for at in range(len(self))], np.float64)


class Groups(Packed[Index]):
    """Clients of each round.

    >>> Groups([[4, 1], [], [2]])[0]
    array([4, 1])
    """

    def __init__(self, groups: Iterable[ArrayLike] = ()) -> None:
        self._clients, self._ends = array("q"), array("q")
        for group in groups:
            self.append(group)

    def __len__(self) -> int:
        return len(self._ends)

    def append(self, group: ArrayLike) -> None:
        """The clients of one more round."""
        self._clients.frombytes(np.asarray(group, np.int64).tobytes())
        self._ends.append(len(self._clients))

    def _item(self, at: int) -> Index:
        return np.array(self._clients[self._ends[at - 1] if at else 0 : self._ends[at]], np.int64)


def _place(layout: Layout, name: str) -> tuple[bool, int] | None:
    """Whether this is a number in such rows, and its place among the numbers or among the rest."""
    before = [0, 0]
    for known, number in layout:
        if known == name:
            return number, before[number]
        before[number] += 1
    return None


def _shared(value: Any) -> Any:
    """The same, without copies of names that many rows have."""
    if isinstance(value, str):
        return intern(value)
    if isinstance(value, dict):
        return {intern(k) if isinstance(k, str) else k: _shared(v) for k, v in value.items()}
    return value
