"""Every line of the threat model names tests that exist, and so does every procedure of the runbook."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if line.startswith("|") and not re.match(r"\| (cannot|can) \||\|---", line)]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def named_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_line_has_a_test_and_every_test_exists():
    assert len(LINES) > 30
    for line in LINES:
        claim, shown_by = line.strip("| ").rsplit(" | ", 1)
        found = NAMED.findall(shown_by)
        assert found, f"no test: {claim}"
        for path, name in found:
            assert (ROOT / path).exists(), path
            assert name in named_in(path), f"{path} has no {name}"


def test_the_tests_of_the_runbook_exist():
    found = NAMED.findall((ROOT / "docs" / "runbook.md").read_text(encoding="utf-8"))
    assert len(found) > 10
    assert [f"{path}::{name}" for path, name in found if name not in named_in(path)] == []


def test_all_four_are_there():
    for heading in ("A malicious client", "A visitor of the dashboard", "A stolen state folder", "A curious server"):
        assert f"\n## {heading}" in PAGE
