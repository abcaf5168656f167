"""Every script in examples/ runs as it is, in small, and prints what it promises."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {  # script -> arguments, modules that it needs, words that it prints
    "analyst_skew.py": ([], [], ["Delft: asthma 73%"]),
    "own_data.py": (["--rounds", "4", "--seeds", "2"], [], ["press-1", "the model is right about"]),
    "student.py": (["--rounds", "3", "--seeds", "2"], ["torch"], ["given:Patient", "undecided", "student.png"]),
    "sweep_and_report.py": (
        ["--rounds", "2", "--seeds", "1"],
        [],
        ["6 runs, 0 failed", "oort(explore=0.3)", "report.html"],
    ),
    "tune_with_optuna.py": (["--trials", "2", "--rounds", "3"], ["optuna"], ["best of 2 trials", "test accuracy"]),
}


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_example(name, tmp_path, monkeypatch, capsys):
    arguments, needed, words = SMALL[name]
    for module in needed:
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    said = capsys.readouterr().out
    for word in words:
        assert word in said
    pictures = [p for p in tmp_path.rglob("*") if p.suffix in (".png", ".html")]
    assert all(p.stat().st_size > 5000 for p in pictures)
