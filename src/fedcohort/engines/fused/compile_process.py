"""A process that compiles kernels into the folder on disk; its arguments name them as module:function."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Compile what nobody else has compiled meanwhile."""
    for where in sys.argv[1:]:
        module, _, name = where.partition(":")
        kernel = getattr(importlib.import_module(module), name)
        if not kernel.on_disk:
            _ = kernel.made


if __name__ == "__main__":
    main()
