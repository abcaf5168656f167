"""Names that a package exports and loads on first use, so that importing the package stays cheap.

The names are listed once, in the package's TYPE_CHECKING block, where type checkers and editors see them::

    if TYPE_CHECKING:
        from fedcohort.selectors.oort import Oort as Oort
    else:
        __getattr__, __dir__, __all__ = exports(__name__)
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

Exports = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]
OnMissing = Callable[[str, ModuleNotFoundError], Exception]


def exports(package: str, on_missing: OnMissing | None = None, packages: Sequence[str] = ()) -> Exports:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    `on_missing(name, error)` makes the error to raise when a name needs a dependency that is not installed. `packages`
    inside this one are imported when they are named: `import fedcohort as fc; fc.arena.run(...)`.

    >>> get, names, __all__ = exports("fedcohort.storage")
    >>> "Journal" in __all__, get("Journal").__module__
    (True, 'fedcohort.storage.journal')
    """
    home = declared(package)

    def get(name: str) -> Any:
        if name in packages:
            return importlib.import_module(f".{name}", package)
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(home[name]), name)
        except ModuleNotFoundError as error:
            if on_missing is None:
                raise
            raise on_missing(f"{package}.{name}", error) from None

    return get, lambda: sorted([*home, *packages]), sorted(home)


def declared(package: str) -> dict[str, str]:
    """name -> module of everything that the TYPE_CHECKING block of a package imports."""
    loader = importlib.util.find_spec(package).loader  # type: ignore[union-attr]
    source = loader.get_source(package)  # type: ignore[union-attr]
    blocks = (
        n for n in ast.parse(source or "").body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"
    )
    lines = (line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom))
    return {name.asname or name.name: str(line.module) for line in lines for name in line.names}
