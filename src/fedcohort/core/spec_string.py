"""Texts such as "oort(explore=0.8)": a name and keyword arguments, read without evaluating anything.

A name may also be of the form module:Class, or name a file: csv:FILE, npz:FILE, parquet:FILE. Behind a file, words
need no quotes.

>>> parse("oort(explore=0.8, preset='paper')")
('oort', {'explore': 0.8, 'preset': 'paper'})
>>> parse("csv:my data (1).csv(target=ill, client='site')")
('csv:my data (1).csv', {'target': 'ill', 'client': 'site'})
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

LONGEST = 4000  # characters of a text
FILES = ("csv", "npz", "parquet")
_TEXT = re.compile(r"^\s*([A-Za-z0-9_.\-]+(?::[A-Za-z0-9_.]+)?)\s*(?:\((.*)\))?\s*$", re.DOTALL)


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
    if file_of(text):
        return _parse_file(text.strip())
    match = _TEXT.match(text)
    if not match:
        rule = "it must have the form name(key=value, ...)"
        raise SpecStringError(repr(text), rule, "write e.g. oort(explore=0.8)")
    return match.group(1), _arguments(text, match.group(2) or "")


def file_of(name: str) -> str:
    """The kind of file that a text names ("csv", "npz" or "parquet"); nothing where it names none."""
    kind, colon, path = name.strip().partition(":")
    return kind.lower() if colon and path.strip() and kind.lower() in FILES else ""


def _parse_file(text: str) -> tuple[str, dict[str, Any]]:
    """A file's name may hold brackets itself: the arguments are the first bracket that reads as such."""
    kind, _, rest = text.partition(":")
    problem = None
    for at in [i for i, letter in enumerate(rest) if letter == "("] if rest.endswith(")") else []:
        try:
            found = _arguments(text, rest[at + 1 : -1], words=True)
        except SpecStringError as error:
            problem = error
            continue
        return f"{kind.lower()}:{rest[:at].strip()}", found
    if problem is not None:
        raise problem
    return f"{kind.lower()}:{rest.strip()}", {}


class _Words(ast.NodeTransformer):
    """Bare words as texts."""

    def visit_Name(self, node: ast.Name) -> ast.Constant:
        return ast.copy_location(ast.Constant(node.id), node)


def _arguments(text: str, inside: str, words: bool = False) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # about what is refused below
            call: Any = ast.parse(f"f({inside})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):  # f(1).g(a=2) parses, too
            raise ValueError
        if words:
            call.keywords = [_Words().visit(k) for k in call.keywords]
        if call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        names = [str(k.arg) for k in call.keywords]
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise SpecStringError(repr(text), f"{twice} is given {names.count(twice)} times", "give it once")
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except SpecStringError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        rule = "arguments must be key=literal pairs"
        raise SpecStringError(repr(text), rule, "write e.g. oort(explore=0.8, preset='paper')") from None
