"""State of a method that remembers something about every client, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from fedcohort.core.table import Table, TableError
from fedcohort.errors import StateMismatch


def load_columns(state: Table, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
    """Load saved columns, with the error that methods promise where they do not fit."""
    try:
        state.load_arrays(arrays)
    except TableError as error:
        raise StateMismatch(f"state of {name}", str(error), "load it into the method that wrote it") from error
