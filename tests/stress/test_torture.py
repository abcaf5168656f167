"""The short version of `make torture`: every row but the slow selectors, with small numbers, all goals reached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_short_torture_reaches_every_goal():
    pytest.importorskip("apsw")
    run = subprocess.run(
        [sys.executable, "tests/stress/torture", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 below their goal" in run.stdout
