"""The short version of `make torture`: every row but the slow ones, all goals reached; and the page of figures."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
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


@pytest.mark.parametrize(
    ("program", "results"), [("tests/stress/torture/table.py", "torture.json"), ("benchmarks/load.py", "load.json")]
)
def test_the_page_shows_the_figures_of_the_file(program, results):
    spec = spec_from_file_location("table", ROOT / program)
    table = module_from_spec(spec)
    spec.loader.exec_module(table)
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert table.markdown(ROOT / "benchmarks" / "results" / results) in page
