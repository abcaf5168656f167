"""A second process that compiles kernels into the folder on disk; its arguments name them as module:function.

It works through a list from one end while the process that needs the kernels works from the other, and says on its
standard output which one it is at.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence


class Partner:
    """The other process, as the one sees it that needs the kernels. It is started at most once at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._text = b""

    def start(self, names: Sequence[str]) -> None:
        """Let it compile these, unless it is still at work on others."""
        if self.now:
            return
        self.end()
        command = [sys.executable, "-m", __name__, *names]
        path = os.pathsep.join(p for p in sys.path if p)
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            os.set_blocking(self._stream, False)
            self._text = b"start\n"
            atexit.register(self.end)

    @property
    def now(self) -> str:
        """What it is at: "start" at first, the name of a kernel, "" if there is no such process (any more)."""
        if self._process is None:
            return ""
        with contextlib.suppress(BlockingIOError):
            while found := os.read(self._stream, 1 << 12):
                self._text += found
            self.end()
            return ""
        return self._text.split(b"\n")[-2].decode()

    def end(self) -> None:
        """End it; what it has compiled is on disk."""
        if self._process is not None:
            atexit.unregister(self.end)
            self._process.kill()
            self._process.communicate()
            self._process = None

    @property
    def _stream(self) -> int:
        pipe = None if self._process is None else self._process.stdout
        return -1 if pipe is None else pipe.fileno()


def main() -> None:
    """Compile what nobody else has compiled meanwhile."""
    for where in sys.argv[1:]:
        module, _, name = where.partition(":")
        kernel = getattr(importlib.import_module(module), name)
        if not kernel.on_disk:
            print(where, flush=True)
            _ = kernel.made


if __name__ == "__main__":
    main()
