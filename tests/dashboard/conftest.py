"""One store and one server for the tests that only look."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the extra 'dashboard' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'dashboard' is not installed")

from tests.dashboard.runs import Served, write


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """Three runs of seven rounds, and a file outside that nobody may get."""
    place = tmp_path_factory.mktemp("dashboard")
    (place / "secret.txt").write_text("CANARY")
    for name in ("one", "two", "three"):
        write(place / "runs" / name, rounds=7, seed=len(name))
    with Served(place / "runs") as found:
        yield found
