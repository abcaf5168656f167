"""One thread for the matrix products of small networks: the same bits on any number of cores, and no spinning."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@cache
def _controller() -> Any:
    """The process's linear-algebra libraries."""
    return importlib.import_module("threadpoolctl").ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's matrix products run in the calling thread only."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


def in_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose matrix products run in the calling thread only."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with one_thread():
            return function(*args, **kwargs)

    return limited
