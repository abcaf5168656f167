"""One thread for the matrix products of small networks: the same bits on any number of cores, and no spinning."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def _controller() -> Any:
    """The process's linear-algebra libraries; None where threadpoolctl (part of scikit-learn) is not installed."""
    try:
        return importlib.import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's matrix products run in the calling thread only."""
    controller = _controller()
    if controller is None:
        yield
        return
    with controller.limit(limits=1, user_api="blas"):
        yield
