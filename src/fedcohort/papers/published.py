"""The numbers that a paper printed, as data: `<paper>_published.json` in the paper's folder.

Each table has `about` (what the numbers are and where they come from), `columns` and `rows`; a row is a list of numbers
in the order of the columns (null: not printed), or a group of rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from fedcohort.errors import UnknownName


@cache
def published(paper: str, table: str) -> dict[str, Any]:
    """A table as nested dictionaries: group (where there are any), row, column.

    >>> published("flash", "table1")["noise"]["Oort"]["FedProx"]
    66.8
    """
    tables = json.loads((files(f"fedcohort.papers.{paper}") / f"{paper}_published.json").read_text(encoding="utf-8"))
    if table not in tables:
        raise UnknownName.among(f"table of {paper}", table, tables)
    return _named(tables[table]["rows"], tables[table]["columns"])


def _named(rows: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    return {
        name: _named(row, columns) if isinstance(row, dict) else dict(zip(columns, row, strict=True))
        for name, row in rows.items()
    }
