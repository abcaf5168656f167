"""Every script in examples/ runs as it is, in small, and prints what it promises; notebooks repeat their outputs.

What the pages of the gallery show was recorded from the very scripts that are here.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedcohort.testing import SelectorContract

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(ROOT / "docs" / "_site"))

from gallery import NOTEBOOKS, TITLES, digest, notebook_cells, recorded  # noqa: E402
from record_examples import run_cells  # noqa: E402

SMALL = {  # script -> arguments, modules that it needs, words that it prints
    "analyst_skew.py": ([], [], ["Delft: asthma 73%"]),
    "asynchronous_rounds.py": ([], [], ["rounds of 10", "first 10 of 13", "buffer of 5"]),
    "own_data.py": (["--rounds", "4", "--seeds", "2"], [], ["press-1", "the model is right about"]),
    "own_selector.py": ([], [], ["seed 3: after", "ahead in 4 of 4 seeds"]),
    "own_torch_model.py": ([], ["torch"], ["oort: mean absolute error", "first three stations"]),
    "student.py": (["--rounds", "3", "--seeds", "2"], ["torch"], ["given:Patient", "student.png"]),
    "sweep_and_report.py": (
        ["--rounds", "2", "--seeds", "1"],
        [],
        ["runs, 0 failed", "oort(explore=0.3)", "report.html"],
    ),
    "three_heterogeneities.py": (["--rounds", "6"], [], ["wrong labels", "flash", "everybody"]),
    "tune_with_optuna.py": (["--trials", "2", "--rounds", "3"], ["optuna"], ["trials:", "test accuracy"]),
}


def test_every_example_is_run_and_has_a_page():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SMALL)
    assert {Path(name).stem for name in SMALL} | {"flower_app"} == set(TITLES)
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(NOTEBOOKS)


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


class TestTheSelectorOfTheExample(SelectorContract):
    def make(self):
        module = sys.modules["own_selector"] = ModuleType("own_selector")  # dataclasses look their module up
        exec((EXAMPLES / "own_selector.py").read_text(encoding="utf-8"), module.__dict__)
        return module.Quick()


@pytest.mark.parametrize("name", SMALL)
def test_the_page_shows_what_this_script_prints(name):
    script, said = recorded(Path(name).stem)
    assert script == digest(Path(name).stem), "run python docs/_site/record_examples.py"
    for word in SMALL[name][2]:
        assert word in said


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_repeat_what_they_show(name, tmp_path, monkeypatch):
    """Texts are the same, numbers within a few hundredths; pictures are there."""
    if "torch" in name:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    cells = notebook_cells(name)
    kept = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    assert sum(map(len, kept)) >= 3
    for now, before in zip(run_cells(cells), kept, strict=True):
        assert [list(o.get("data", ["text"])) for o in now] == [list(o.get("data", ["text"])) for o in before]
        for ours, shown in zip(now, before, strict=True):
            a, b = "".join(ours.get("text", [])), "".join(shown.get("text", []))
            assert re.sub(r"[\d.]+", "#", a) == re.sub(r"[\d.]+", "#", b)
            for x, y in zip(re.findall(r"\d+\.\d+", a), re.findall(r"\d+\.\d+", b), strict=True):
                assert abs(float(x) - float(y)) <= 0.05 + 0.02 * abs(float(y))
