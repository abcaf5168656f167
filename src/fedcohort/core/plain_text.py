"""Text from outside, made fit for journals, logs and terminals."""

from __future__ import annotations

LONGEST = 200  # characters of a text from outside that are kept


def shown(text: str, longest: int = LONGEST) -> str:
    """Text from outside as it may enter journals, logs and terminals: printable, on one line, not too long.

    >>> shown("loss\\x1b[2J\\nround 9: all is well")
    'loss?[2J?round 9: all is well'
    """
    plain = "".join(c if c.isprintable() else "?" for c in text[: 4 * longest])
    return plain if len(plain) <= longest and len(text) <= 4 * longest else plain[: longest - 3] + "..."
