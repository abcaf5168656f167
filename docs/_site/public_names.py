"""Which public names have no documentation: every exported class and function, and the public members of classes.

Read from the source, so that nothing optional has to be installed. `make docs` fails when there is one, and so does
tests/test_docs.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def packages() -> list[str]:
    """The packages of the front door, as docs/api.md heads its sections."""
    return re.findall(r"^## (fedcohort[\w.]*)$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE)


def exported(package: str) -> dict[str, str]:
    """Name -> the module that it lives in."""
    from fedcohort.core.lazy import declared

    return dict(sorted(declared(package).items(), key=lambda item: item[0].lower()))


def about(package: str) -> str:
    """What a package says about itself, in one paragraph."""
    text = ast.get_docstring(ast.parse(SRC.joinpath(*package.split("."), "__init__.py").read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def undocumented() -> list[str]:
    """Every public name without a docstring, by its full name."""
    out: set[str] = set()
    for package in packages():
        for name, home in exported(package).items():
            found = definitions(home).get(name)
            if found is not None:  # a constant: docs/api.md says what it is
                out |= {f"{home}.{missing}" for missing in missing_in(found)}
    return sorted(out)


def missing_in(found: Defined) -> Iterator[str]:
    """The name itself if it has no docstring, and the public members of a class without one.

    A member is described where a class that it extends describes it.
    """
    if not ast.get_docstring(found):
        yield found.name
    if not isinstance(found, ast.ClassDef):
        return
    for member in found.body:
        if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) or member.name.startswith("_"):
            continue
        changed = any(isinstance(d, ast.Attribute) and d.attr in ("setter", "deleter") for d in member.decorator_list)
        if not changed and not _described(found, member.name, frozenset()):
            yield f"{found.name}.{member.name}"


def _described(where: ast.ClassDef, member: str, seen: frozenset[str]) -> bool:
    own = [m for m in where.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef) and m.name == member]
    if any(ast.get_docstring(m) for m in own):
        return True
    names = [n.id for base in where.bases for n in ast.walk(base) if isinstance(n, ast.Name)]
    extended = [classes()[n] for n in names if n in classes() and n not in seen]
    return any(_described(each, member, seen | {each.name}) for each in extended)


@cache
def definitions(module: str) -> dict[str, Defined]:
    """What a module defines at its top level."""
    place = SRC.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return {n.name: n for n in ast.parse(path.read_text("utf-8")).body if isinstance(n, Defined)}


@cache
def classes() -> dict[str, ast.ClassDef]:
    """Every class of the package by its name: no name occurs twice."""
    trees = (ast.parse(path.read_text("utf-8")) for path in (SRC / "fedcohort").rglob("*.py"))
    return {n.name: n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
