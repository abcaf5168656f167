"""The documentation points at things that exist: links, files, modules, tests, packages."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "src" / "fedcohort"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")])
TAGS = {"fedcohort.run", "fedcohort.engine"}  # the tag of an MLflow run, a logger
EXAMPLES = {"freshest.py", "test_freshest.py", "freshest.md"}  # the selector that CONTRIBUTING builds


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_files(page):
    text = page.read_text(encoding="utf-8")
    missing = [t for t in re.findall(r"\]\(((?!https?:)[^)#]+)\)", text) if not (page.parent / t).exists()]
    for name in re.findall(r"`(?:python )?([\w./-]+/[\w.-]+\.(?:py|md|json|js|toml))\b", text):
        places = (ROOT, ROOT / "src", HOUSE, page.parent, HOUSE / "engines", ROOT / "benchmarks")
        if Path(name).name not in EXAMPLES and name == name.lower() and not any((p / name).exists() for p in places):
            missing.append(name)
    assert not missing


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_modules(page):
    for name in set(re.findall(r"\bfedcohort(?:\.[A-Za-z_]+)+\b", page.read_text(encoding="utf-8"))) - TAGS:
        resolve_name(name)


def test_every_package_is_in_the_tree_of_the_architecture_page():
    tree = re.search(r"```\nsrc/fedcohort/\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)
    named = set(re.findall(r"(\w+)/(?=\s)", tree.group(1)))
    packages = {p.parent.name for p in HOUSE.rglob("__init__.py") if p.parent != HOUSE and "template" not in p.parts}
    assert packages <= named, packages - named
    top = {line.split("/")[0].strip() for line in tree.group(1).splitlines() if re.match(r"  \w+/ ", line)}
    assert top <= packages, top - packages


def test_every_clause_of_the_testing_page_is_a_test():
    kit = "".join(p.read_text() for p in (HOUSE / "testing").glob("*.py"))
    for name in re.findall(r"`(test_\w+)`", (ROOT / "docs" / "testing.md").read_text()):
        assert f"def {name}(" in kit, name
