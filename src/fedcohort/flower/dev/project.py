"""Write a new Flower project that is ready to run: digits, a small NumPy model, clients chosen by a selector.

The folder `template/` is itself such a project, named my-app; a new project is a copy of it under another name.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedcohort.errors import BadParameter, RunExists

TEMPLATE = Path(__file__).parent / "template"


def write_project(folder: Path) -> list[Path]:
    """Write a new project, named after its folder, which must be new or empty; returns the files written."""
    name = folder.resolve().name
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise BadParameter(
            f"project name {name!r}",
            "it must start with a letter and hold only lower-case letters, digits, - and _",
            "choose e.g. my-app",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunExists(f"{folder}", "it exists and is not empty", "choose another name")
    written = []
    for source in sorted(p for p in TEMPLATE.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        target = folder / _renamed(str(source.relative_to(TEMPLATE)), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_renamed(source.read_text(encoding="utf-8"), name), encoding="utf-8")
        written.append(target)
    return written


def _renamed(text: str, name: str) -> str:
    return text.replace("my_app", name.replace("-", "_")).replace("my-app", name)
