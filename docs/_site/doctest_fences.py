"""Examples in docstrings, shown as code: a Griffe extension that puts doctests between fences."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

import griffe


class DoctestFences(griffe.Extension):
    """Fences around every run of lines from ">>>" to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        """Change the docstring of every object that has one."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(cleandoc(obj.docstring.value))


def fenced(text: str) -> str:
    """The text with its doctests between fences."""
    out: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if line.startswith(">>>") and not inside:
            out.append("```pycon")
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line)
    return "\n".join(out).rstrip()
