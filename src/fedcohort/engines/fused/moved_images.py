"""Images seen through windows that move and mirror them, for ready-made augmentations (`engines/image_moves.py`)."""

from __future__ import annotations

import numpy as np
from numba import types

from .compile import entry, kernel
from .kernels import Floats, Index
from .signatures import IS, XS, N


@kernel
def show(x: Floats, rows: Index, moves: Index, high: int, wide: int, out: Floats) -> None:
    """out[i] = sample rows[i] of x as its window shows it: moved down and right, then mirrored; outside are zeros."""
    for i in range(rows.size):
        down, right, mirrored = moves[i, 0], moves[i, 1], moves[i, 2] == 1
        image, shown = x[rows[i]], out[i]
        side = right if mirrored else -right
        first, end = max(side, 0), min(wide + side, wide)
        for line in range(image.size // wide):
            y = line % high + down
            to = shown[line * wide : (line + 1) * wide]
            to[:] = np.float32(0.0)
            if y < 0 or y >= high:
                continue
            source = image[(line + down) * wide : (line + down + 1) * wide]
            if mirrored:
                for u in range(first, end):
                    to[u] = source[wide - 1 - u + right]
            else:
                for u in range(first, end):
                    to[u] = source[u + right]


@entry(types.void(XS, IS, types.int64[:, ::1], N, N, types.float32[:, ::1]))
def show_moved(x: Floats, rows: Index, moves: Index, high: int, wide: int, out: Floats) -> None:
    """The same, to be called from Python."""
    show(x, rows, moves, high, wide, out)
