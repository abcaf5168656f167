"""The base of selectors that remember: state as a table, saved and loaded as plain arrays.

A selector does not have to use it: any class that fulfils :class:`fedcohort.protocols.Selector` will do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, TypeVar, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import Table
from fedcohort.protocols import Selector
from fedcohort.types import Arrays, Cohort, Round, RoundResult

S = TypeVar("S", bound=Table)


@dataclass
class NoState(Table):
    """For selectors that remember nothing."""


class StatefulSelector(ABC, Generic[S]):
    """Carries `state_dict` and `load_state_dict`; a subclass adds `needs`, `select` and `observe`.

    The state is a dataclass of columns, named in brackets behind the base. It is made without arguments; a selector
    that wants another one sets `self.state` in its constructor. A selector that holds other selectors lists the names
    of these attributes in `nested`: their state is saved under "name.key".

    >>> from fedcohort.core import draw
    >>> from fedcohort.core.table import column
    >>> @dataclass
    ... class Turns(Table):
    ...     times: NDArray[np.int64] = column(0, np.int64)
    >>> class LeastAsked(StatefulSelector[Turns]):
    ...     def select(self, rnd, rng):
    ...         self.state.grow(rnd.population)
    ...         at = draw.top(-self.state.times[rnd.available], rnd.size, rng)
    ...         return Cohort(rnd.available[at])
    ...     def observe(self, result):
    ...         self.state.times[result.clients] += 1
    >>> LeastAsked().state_dict()
    {'times': array([], dtype=int64)}
    """

    needs: frozenset[str] = frozenset()  # the signals it reads: a promise and a privacy statement
    exempt: Mapping[str, str] = MappingProxyType({})  # clause of testing.SelectorContract -> why it cannot hold
    reads_score: bool = False  # whether it learns from `RoundResult.score`: a session warns where there is none
    learns_from: Mapping[str, str] = MappingProxyType({})  # signal -> what it does where a session has none of it
    does_without: Mapping[str, str] = MappingProxyType({})  # signal -> arguments with which it is not read
    nested: tuple[str, ...] = ()  # attributes that are selectors with a state of their own
    _table: type[Table] = NoState

    @cached_property
    def state(self) -> S:
        """Made on first use, so that a constructor of your own need not call this class's."""
        return self._table()  # type: ignore[return-value]

    def __init_subclass__(cls, **keys: Any) -> None:
        super().__init_subclass__(**keys)
        for base in cls.__dict__.get("__orig_bases__", ()):
            if issubclass(get_origin(base) or object, StatefulSelector) and isinstance(get_args(base)[0], type):
                cls._table = get_args(base)[0]

    @abstractmethod
    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Choose at most `rnd.size` of `rnd.available`; the same state, round and generator give the same cohort."""

    @abstractmethod
    def observe(self, result: RoundResult) -> None:
        """Learn from one row per dispatched client."""

    def state_dict(self) -> Arrays:
        """Everything needed to continue in another process: the table, then the nested selectors' arrays."""
        arrays = self.state.to_arrays()
        for name in self.nested:
            arrays |= {f"{name}.{key}": value for key, value in self._selector(name).state_dict().items()}
        return arrays

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`. Refuses what does not fit, and then changes nothing."""
        prefixes = tuple(f"{name}." for name in self.nested)
        fresh = replace(self.state)
        fresh.load_arrays({key: value for key, value in arrays.items() if not key.startswith(prefixes)})
        inner = [self._selector(name) for name in self.nested]
        before = [selector.state_dict() for selector in inner]
        try:
            for prefix, selector in zip(prefixes, inner, strict=True):
                mine = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
                selector.load_state_dict(mine)
        except Exception:
            for selector, saved in zip(inner, before, strict=True):
                selector.load_state_dict(saved)
            raise
        self.state = fresh

    def _selector(self, name: str) -> Selector:
        found: Selector = getattr(self, name)
        return found
