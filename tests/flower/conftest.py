"""Fixtures of the Flower tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory where there is one: the journal syncs every record, and a shared disk makes that slow."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None, prefix="fedcohort-") as folder:
        yield Path(folder)
