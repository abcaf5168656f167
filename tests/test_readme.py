"""The README's example runs, and prints what the README says it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks():
    text = (ROOT / "README.md").read_text()
    code = re.search(r"<!-- example -->\n```python\n(.*?)```", text, re.DOTALL)
    answer = re.search(r"<!-- answer -->\n```\n(.*?)```", text, re.DOTALL)
    return code.group(1), answer.group(1)


def test_the_example_prints_its_answer(tmp_path):
    """Numbers may differ in their last digit on another processor; words and the cohort may not."""
    code, answer = blocks()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    printed, promised = done.stdout.strip().splitlines(), answer.strip().splitlines()
    assert [re.sub(r"[\d.]+", "#", x) for x in printed[:-1]] == [re.sub(r"[\d.]+", "#", x) for x in promised[:-1]]
    assert printed[-1] == promised[-1]
    for ours, said in zip(printed[:-1], promised[:-1], strict=True):
        a, b = (float(re.search(r"accuracy ([\d.]+),", x).group(1)) for x in (ours, said))
        assert abs(a - b) <= 0.03


def test_the_example_is_about_a_dozen_lines():
    code, _ = blocks()
    assert len([x for x in code.splitlines() if x.strip()]) <= 12


def test_every_linked_file_is_there():
    for target in re.findall(r"\]\(((?!https?:)[^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
