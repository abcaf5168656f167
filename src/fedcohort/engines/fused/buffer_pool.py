"""Memory for the updates of a round, used again once nobody looks at it any more.

A large round has hundreds of megabytes of updates. Taken anew from the system every time, they cost a page fault per
4 KiB and a pass that clears them, which was a tenth of a round of many small clients.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

_KEPT = 2  # the round at hand, and the one before, which the caller often still holds


def _references(held: list[NDArray[np.float32]], at: int) -> int:
    """How many references there are to one buffer, this question included."""
    return sys.getrefcount(held[at])


_UNSEEN = _references([np.empty(1, np.float32)], 0)  # what a list alone makes differs between versions of Python


class BufferPool:
    """The last buffers handed out. Every array that is a view of a buffer refers to it, so that its use is seen."""

    def __init__(self) -> None:
        self._held: list[NDArray[np.float32]] = []

    def take(self, rows: int, columns: int) -> NDArray[np.float32]:
        """A (rows, columns) array with any content, that nobody else can see."""
        size = rows * columns
        for at in range(len(self._held)):
            if _references(self._held, at) <= _UNSEEN and self._held[at].size // 2 <= size <= self._held[at].size:
                return self._held[at][:size].reshape(rows, columns)
        self._held = [*self._held[-_KEPT + 1 :], self._make(size)]
        return self._held[-1].reshape(rows, columns)

    def _make(self, size: int) -> NDArray[np.float32]:
        """New memory."""
        return np.empty(size, np.float32)
