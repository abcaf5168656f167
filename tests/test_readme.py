"""The README's command and example run, and print what the README says they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def block(mark: str, language: str = "") -> str:
    found = re.search(rf"<!-- {mark} -->\n```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return found.group(1)


def printed(command, folder) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def same(ours: str, promised: str) -> None:
    """Numbers may differ in their last digit on another processor; words may not."""
    assert re.sub(r"[\d.]+", "#", ours) == re.sub(r"[\d.]+", "#", promised)
    a, b = (float(re.search(r"accuracy ([\d.]+),", x).group(1)) for x in (ours, promised))
    assert abs(a - b) <= 0.03


def test_the_command_prints_its_answer(tmp_path):
    command, answer = block("command", "console").strip().splitlines()
    words = shlex.split(command.removeprefix("$ fedcohort "))
    same(printed([sys.executable, "-m", "fedcohort.cli.main", *words], tmp_path)[0], answer)


def test_the_example_prints_its_answer(tmp_path):
    ours, promised = printed([sys.executable, "-c", block("example", "python")], tmp_path), block("answer").splitlines()
    assert len(ours) == len(promised)
    assert ours[-1] == promised[-1]  # the cohort is the same on every machine
    for a, b in zip(ours[:-1], promised[:-1], strict=True):
        same(a, b)


def test_the_example_is_about_a_dozen_lines():
    assert len([x for x in block("example", "python").splitlines() if x.strip()]) <= 12


def test_every_linked_file_is_there():
    for target in re.findall(r"\]\(((?!https?:)[^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
