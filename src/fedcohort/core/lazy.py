"""Names that a package exports and loads on first use, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Exports = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]
OnMissing = Callable[[str, ModuleNotFoundError], Exception]


def exports(
    package: str,
    places: Mapping[str, Sequence[str]],
    on_missing: OnMissing | None = None,
    packages: Sequence[str] = (),
) -> Exports:
    """`__getattr__`, `__dir__` and `__all__` of a package from {module: names}; modules are relative to the package.

    Type checkers do not follow it: the package repeats the names in a TYPE_CHECKING block, and a test compares the two.
    `on_missing(name, error)` makes the error to raise when a name needs a dependency that is not installed. `packages`
    inside this one are imported when they are named: `import fedcohort as fc; fc.arena.run(...)`.

    >>> get, names, __all__ = exports("fedcohort.core", {"table": ("Table", "column"), "rng": ("generator",)})
    >>> __all__
    ['Table', 'column', 'generator']
    >>> get("Table").__module__
    'fedcohort.core.table'
    """
    home = {name: f".{module}" for module, names in places.items() for name in names}

    def get(name: str) -> Any:
        if name in packages:
            return importlib.import_module(f".{name}", package)
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(home[name], package), name)
        except ModuleNotFoundError as error:
            if on_missing is None:
                raise
            raise on_missing(f"{package}.{name}", error) from None

    return get, lambda: sorted([*home, *packages]), sorted(home)
