"""Next-character prediction on a text of your own: the text is cut into pieces, and every piece is a client's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.core.constraints import Count
from fedcohort.errors import DataError, checked
from fedcohort.tasks.torch_task import TorchTask

CHARACTERS = 256  # at most so many different ones; rarer ones are one and the same


@checked
def next_character(
    text: str | Path, *, pieces: Count = 20, length: Count = 32, hidden: Count = 64, **more: Any
) -> TorchTask:
    """A task that learns to predict the next character of a text, given as text or as the path of a file.

    The text is cut into `pieces` that follow each other, the natural owners of their windows of `length` characters; a
    small GRU with `hidden` units reads a window and predicts, at each place, the character that comes next. `more` goes
    to :class:`TorchTask`: options of local training, metrics, an optimiser. `accuracy` is the share of characters that
    are predicted right.

    >>> task = next_character("to be or not to be, that is the question. " * 30, pieces=4, length=8)
    >>> task.owners().size == task.labels().size, task.features("test").shape[1:]
    (True, (8,))
    """
    name, whole = _read(text)
    alphabet, numbers, count = np.unique(np.array(list(whole)), return_inverse=True, return_counts=True)
    if alphabet.size > CHARACTERS:
        order = np.argsort(-count, kind="stable")
        place = np.full(alphabet.size, CHARACTERS - 1)
        place[order[: CHARACTERS - 1]] = np.arange(CHARACTERS - 1)
        numbers = place[numbers]
    windows = (numbers.size - 1) // length
    if windows < 5 * pieces:
        value = f"a text of {numbers.size:,} characters"
        rule = f"{pieces} pieces with five windows of {length} need {5 * pieces * length + 1:,}"
        raise DataError(value, rule, "give a longer text, or fewer pieces or a smaller length")
    x = numbers[: windows * length].reshape(windows, length)
    y = numbers[1 : windows * length + 1].reshape(windows, length)
    owner = np.arange(windows) * pieces // windows
    model = partial(_model, min(alphabet.size, CHARACTERS), hidden)
    options = {"split": "within", "optimiser": "adam", "lr": 5e-3, "batch_size": 16, "name": name, **more}
    return TorchTask(model, (x, y), client=owner, **options)


def _read(text: str | Path) -> tuple[str, str]:
    """A name and the text: of a file, where this is the path of one."""
    if isinstance(text, str) and ("\n" in text or len(text) > 200):
        return "text", text
    path = Path(text).expanduser()
    if path.is_file():
        try:
            return path.stem, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{path}", "it is not a text in UTF-8", "convert it") from None
    if isinstance(text, Path) or path.suffix in (".txt", ".md"):
        raise DataError(f"{path}", "there is no such file", "check the path; it is looked up from where you are")
    return "text", text


def _model(characters: int, hidden: int) -> Any:
    from fedcohort.engines.torch_networks import character_gru

    return character_gru(characters, hidden=hidden)
