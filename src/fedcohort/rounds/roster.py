"""External ids to slots. A slot is dense, given once, and never re-used; the rest of the program knows slots only."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedcohort.errors import BadParameter, UnknownName
from fedcohort.types import Index


class Roster:
    """Two-way mapping between external client ids (text) and slots.

    >>> roster = Roster(["phone-7", "phone-9"])
    >>> roster.register("phone-9"), roster.register("tablet-1"), roster.ids
    (1, 2, ('phone-7', 'phone-9', 'tablet-1'))
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._ids: list[str] = []
        self._slots: dict[str, int] = {}
        for name in ids:
            if name in self._slots:
                raise BadParameter(
                    f"client id {name!r}", "each id may appear once in a saved roster", "remove the copy"
                )
            self.register(name)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, in slot order: enough to make the roster again."""
        return tuple(self._ids)

    def register(self, name: str) -> int:
        """The slot of this id; a new one if it was never seen."""
        if not name:
            raise BadParameter("client id ''", "an id must not be empty", "give every client a stable id")
        if name not in self._slots:
            self._slots[name] = len(self._ids)
            self._ids.append(name)
        return self._slots[name]

    def register_all(self, names: Iterable[str]) -> Index:
        """Slots of these ids, registering new ones."""
        return np.fromiter((self.register(n) for n in names), np.int64)

    def slot(self, name: str) -> int:
        """The slot of a registered id."""
        try:
            return self._slots[name]
        except KeyError:
            raise UnknownName.among("client id", name, self._ids[:1000]) from None

    def name(self, slot: int) -> str:
        """The id behind a slot."""
        if not 0 <= slot < len(self._ids):
            raise BadParameter(f"slot {slot}", f"the roster has slots 0 to {len(self._ids) - 1}", "use one of those")
        return self._ids[slot]
