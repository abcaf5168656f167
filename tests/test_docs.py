"""The documentation points at things that exist: links, files, modules, tests, packages."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest

from fedcohort.registry.catalogue import ENTRIES
from fedcohort.rounds.session import Session
from fedcohort.storage import Journal
from fedcohort.testing import SelectorContract

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_site"))

import entry_cards  # noqa: E402
import fill_numbers  # noqa: E402
import public_names  # noqa: E402

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


def test_every_public_name_is_documented():
    assert public_names.undocumented() == []


def test_an_undocumented_name_would_be_found():
    bare = ast.parse("class Mine:\n    def run(self): ...\n    def _own(self): ...").body[0]
    assert list(public_names.missing_in(bare)) == ["Mine", "Mine.run"]
    described = ast.parse('class Mine(Selector):\n    """Words."""\n    def select(self): ...').body[0]
    assert list(public_names.missing_in(described)) == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.kind}-{e.name}")
def test_every_selector_and_method_has_a_card(entry):
    card = entry_cards.card(entry.kind, entry.name)
    for part in ("Command line", "Python", "Flower", "| family |", "| cost per round |", "## Parameters"):
        assert part in card
    assert re.search(r"^## (Departures from the paper|Choices made here)$", card, re.MULTILINE)
    assert ("| signals |" in card and "| privacy |" in card) == (entry.kind == "selector")
    page = ROOT / "docs" / f"{entry.kind}s" / f"{entry.name}.md"
    if page.exists():  # what the card says is not typed again
        assert not re.search(r"^\| (paper|privacy) \||^\*\*Departures|^## Departures", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").rglob("*.svg")), ids=lambda p: p.stem)
def test_pictures_are_for_light_and_dark_and_ask_nobody(picture):
    text = picture.read_text(encoding="utf-8")
    ET.fromstring(text)
    assert "prefers-color-scheme" in text
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)


STARTS = [p for p in PAGES if p.parent.name == "start" or p.name in ("clusters.md",)]


@pytest.mark.parametrize("page", STARTS, ids=lambda p: p.stem)
def test_python_of_the_first_pages_runs(page, tmp_path, monkeypatch):
    code = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    if "torch" in "".join(code):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec("\n".join(code), {"__name__": "page"})
    assert ("accuracy" in said.getvalue()) == bool(code)


@pytest.mark.parametrize(("crash", "again"), [("train", 9), ("tell", 9), ("done", 6)])
def test_the_loop_of_the_page_goes_on_after_a_crash(crash, again, tmp_path, monkeypatch):
    """In round 2 of 5: while a client trains, when the model is kept but not the round, or right after it.

    An open round is done again with the cohort that was asked and the model that it was asked for."""
    code = re.search(r"```python\n(.*?)\nprint\(", (ROOT / "docs/start/own-loop.md").read_text("utf-8"), re.DOTALL)
    exec(code.group(1), space := {"__name__": "page"})
    monkeypatch.chdir(tmp_path)
    train, tell, calls, before = space["train"], Session.tell, [], 0

    def trained(site, model):
        calls.append((site, float(np.abs(model).sum())))
        assert (crash, len(calls), before) != ("train", 8, 0), "power cut"
        return train(site, model)

    def told(session, *result):
        assert (crash, session.index) != ("tell", 2), "power cut"
        tell(session, *result)
        assert (crash, session.index) != ("done", 3), "power cut"

    space |= {"train": trained, "rng": np.random.default_rng(0)}
    with monkeypatch.context() as patched:
        patched.setattr(Session, "tell", told)
        with pytest.raises(AssertionError, match="power cut"):
            space["federate"](5)
    before = len(calls)
    space["federate"](5)
    kinds = [record.kind for record in Journal.read(tmp_path / "my-run" / "journal.db").records()]
    assert kinds == ["open", *["ask", "tell"] * 5]
    assert len(calls) - before == again
    assert (calls[before] == calls[6]) == (crash != "done")


class TestTheSelectorOfTheTutorial(SelectorContract):
    """The page recommends the contract right below its selector."""

    def make(self):
        text = (ROOT / "docs" / "start" / "own-selector.md").read_text(encoding="utf-8")
        space = {"__name__": "page"}
        exec(re.search(r"```python\n(.*?)\nfor selector in", text, re.DOTALL).group(1), space)
        return space["Brisk"]()


@pytest.mark.parametrize("page", [p for p in PAGES if "docs" in p.parts], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_says_what_it_is_for_and_shows_something_to_type(page):
    """Selectors and methods begin with their card, which has both."""
    text = page.read_text(encoding="utf-8")
    first = text.split("\n\n")[1].strip()
    assert text.startswith("# ")
    assert not first.startswith(("#", "|", "```", "- "))
    if page.parent.name not in ("selectors", "methods"):
        assert re.search(r"```|^    \S|`fedcohort [a-z]|`from fedcohort", text[:2500], re.MULTILINE)


@pytest.mark.parametrize("name", fill_numbers.PAGES)
def test_numbers_are_those_of_the_results(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert fill_numbers.filled(text) == text, "run python docs/_site/fill_numbers.py"


def test_every_made_number_is_on_a_page_that_is_filled():
    marked = [p.relative_to(ROOT).as_posix() for p in PAGES if "<!-- made: " in p.read_text(encoding="utf-8")]
    assert set(marked) <= set(fill_numbers.PAGES)


@pytest.mark.parametrize("result", sorted((ROOT / "results").glob("*-laptop.json")), ids=lambda p: p.stem)
def test_every_reproduced_table_has_a_picture(result):
    picture = ROOT / "docs" / "pictures" / "papers" / f"{result.stem.removesuffix('-laptop')}.svg"
    assert picture.exists(), "run python docs/pictures/make_pictures.py papers"
