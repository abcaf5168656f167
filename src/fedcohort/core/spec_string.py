"""Texts such as "oort(explore=0.8)": a name and keyword arguments, read without evaluating anything.

>>> parse("oort(explore=0.8, preset='paper')")
('oort', {'explore': 0.8, 'preset': 'paper'})
"""

from __future__ import annotations

import ast
import re
from typing import Any

LONGEST = 4000  # characters of a text
_TEXT = re.compile(r"^\s*([A-Za-z0-9_.\-]+)\s*(?:\((.*)\))?\s*$", re.DOTALL)


class SpecStringError(ValueError):
    """The text does not have the form name(key=literal, ...). `value`, `rule` and `remedy` make the message."""

    def __init__(self, value: str, rule: str, remedy: str) -> None:
        super().__init__(f"{value}: {rule}; {remedy}.")
        self.value, self.rule, self.remedy = value, rule, remedy


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split "name(key=literal, ...)" into a name and keyword arguments."""
    if len(text) > LONGEST:
        shown = f"{text[:40]!r}... of {len(text)} characters"
        raise SpecStringError(shown, f"a text has at most {LONGEST}", "write e.g. oort(explore=0.8)")
    match = _TEXT.match(text)
    if not match:
        rule = "it must have the form name(key=value, ...)"
        raise SpecStringError(repr(text), rule, "write e.g. oort(explore=0.8)")
    name, arguments = match.group(1), match.group(2) or ""
    try:
        call = ast.parse(f"f({arguments})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        names = [str(k.arg) for k in call.keywords]
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise SpecStringError(repr(text), f"{twice} is given {names.count(twice)} times", "give it once")
        return name, {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except SpecStringError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        rule = "arguments must be key=literal pairs"
        raise SpecStringError(repr(text), rule, "write e.g. oort(explore=0.8, preset='paper')") from None
