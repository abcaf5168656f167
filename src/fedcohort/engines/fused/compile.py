"""How kernels are compiled: GIL released, sums may be reordered, NaN keeps its meaning, kept on disk.

Numba's own cache looks only at the file of the function itself, not at what that function calls. The folder used
here carries a digest of all sources of this package, so a change anywhere makes a new folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import cfunc, config, njit

from fedcohort.engines.cache import cache_folder

_RELAXED = {"contract", "reassoc", "nsz", "arcp"}


def _kernel_folder() -> str | None:
    """The folder for compiled kernels of exactly these sources; None if it cannot be made."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    base = Path(config.CACHE_DIR) if config.CACHE_DIR else cache_folder()
    folder = base / f"kernels-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder)


_FOLDER = _kernel_folder()


def _kept(compiler: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Apply a Numba decorator with our cache folder instead of the global one."""
    before = config.CACHE_DIR
    try:
        config.CACHE_DIR = _FOLDER or ""
        return compiler(*arguments, cache=_FOLDER is not None, **options)
    finally:
        config.CACHE_DIR = before


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first call."""
    return _kept(njit, function, nogil=True, fastmath=_RELAXED, error_model="numpy")


def entry(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile now for these types only, so that no call ever compiles again by surprise."""

    def decorate(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {"nogil": True, "fastmath": _RELAXED, "error_model": "numpy"}
        return _kept(lambda f, **kept: njit(signature, **options, **kept)(f), function)

    return decorate


def c_function(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile now, to be called by address."""

    def decorate(function: Callable[..., Any]) -> Any:
        return _kept(lambda f, **options: cfunc(signature, **options)(f), function)

    return decorate
