"""Names that a package exports and loads on first use, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Exports = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def exports(package: str, places: Mapping[str, Sequence[str]]) -> Exports:
    """`__getattr__`, `__dir__` and `__all__` of a package from {module: names}; modules are relative to the package.

    ::

        __getattr__, __dir__, __all__ = exports(__name__, {"oort": ("Oort",), "uniform": ("Uniform",)})
    """
    home = {name: f"{package}.{module}" for module, names in places.items() for name in names}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    return get, lambda: sorted(home), sorted(home)
