"""Memory for the updates of a round into which other processes of this machine write their rows.

The memory has no name in a file system: others open it through this process (`/proc/PID/fd/N`), so that nothing is
left behind however this process ends. Its label carries random digits, so that nobody who is told of it on another
machine takes something else for it. Where the system has no such memory, or not enough of it, rows are sent instead.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.fused.buffer_pool import BufferPool

Floats = NDArray[np.float32]

_SEEN = 2  # mappings that a writer keeps: those of the buffers that are used in turn


class SharedPool(BufferPool):
    """Buffers that are used again, with an address for other processes.

    >>> pool = SharedPool()
    >>> delta = pool.take(2, 3)
    >>> place = pool.place_of(delta)
    >>> place is None or write_rows(place, np.array([1]), np.ones((1, 3), np.float32))
    True
    >>> place is None or float(delta[1].sum()) == 3.0
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[int, str] = {}  # by the identity of a buffer that is held

    def place_of(self, taken: Floats) -> str | None:
        """What a writer has to be told; None if this memory is for this process alone."""
        return self._places.get(id(taken.base))

    def spoil(self, taken: Floats) -> None:
        """Never hand this memory out again: somebody may still write into it."""
        self._held = [one for one in self._held if one is not taken.base]

    def _make(self, size: int) -> Floats:
        found, place = _memory(size)
        kept = {id(one) for one in self._held}
        self._places = {key: where for key, where in self._places.items() if key in kept}
        if place is not None:
            self._places[id(found)] = place
        return found


class _Mapped(mmap.mmap):
    """Memory that closes its file when nobody needs it any more."""

    file = -1

    def __del__(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _memory(size: int) -> tuple[Floats, str | None]:
    """Floats and where others find them; plain memory where that is all there is."""
    if not (hasattr(os, "memfd_create") and hasattr(os, "posix_fallocate")) or not size:
        return np.empty(size, np.float32), None
    label = f"fedcohort-{secrets.token_hex(8)}"
    file = -1
    try:
        file = os.memfd_create(label, os.MFD_CLOEXEC)
        os.posix_fallocate(file, 0, 4 * size)  # pages that are missing later would end the process that writes
        mapped = _Mapped(file, 4 * size)
    except OSError:
        if file >= 0:
            os.close(file)
        return np.empty(size, np.float32), None
    mapped.file = file
    return np.frombuffer(mapped, np.float32), f"{os.getpid()} {file} {label}"


_mapped: OrderedDict[str, Floats] = OrderedDict()


def write_rows(place: str, rows: NDArray[np.int64], values: Floats) -> bool:
    """Write these rows of a buffer of this machine; False if it is none, or not to be reached from here."""
    memory = _reached(place)
    if memory is None:
        return False
    columns = values.shape[1]
    memory[: memory.size // columns * columns].reshape(-1, columns)[rows] = values
    return True


def _reached(place: str) -> Floats | None:
    if place not in _mapped:
        process, file, label = place.split()
        path = f"/proc/{process}/fd/{file}"
        try:
            if not os.readlink(path).startswith(f"/memfd:{label}"):
                return None
            handle = os.open(path, os.O_RDWR)
        except OSError:
            return None
        try:
            _mapped[place] = np.frombuffer(mmap.mmap(handle, 0), np.float32)
        except OSError:
            return None
        finally:
            os.close(handle)
        while len(_mapped) > _SEEN:
            _mapped.popitem(last=False)
    return _mapped[place]
