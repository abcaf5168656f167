"""How kernels are compiled: on first use, GIL released, sums may be reordered, NaN keeps its meaning, kept on disk.

Numba links what a function calls into it and optimises it again, at every level, and a program of all layers takes
half a minute to compile. So the parts that hold most of the code are functions of their own (`part`), called by their
address, and a network compiles the parts that it uses, once per machine.

Numba's own cache looks only at the file of the function itself, not at what that function calls. The folder used here
carries a digest of all sources of this package and of everything else that Numba looks at (its version, the processor,
the files' times), so a change anywhere makes a new folder, and what is in a folder can be loaded.

A called function that LLVM does not inline is a symbol that every object which contains a copy of it offers to all
others, and the first one wins. The copies are optimised in different company and may add in another order, so that the
bits would depend on who was compiled or loaded before. Here every object keeps its copies to itself (`_Closed`).
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import cfunc, config, njit
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from fedcohort.engines.cache import cache_folder

from .compile_process import Partner
from .processor import processor

_RELAXED = {"contract", "reassoc", "nsz", "arcp"}
_OPTIONS: dict[str, Any] = {"fastmath": _RELAXED, "error_model": "numpy"}

_OURS = "_ZN9fedcohort"  # how the symbols of our functions begin
HELP = 4  # kernels to compile for which a second process is worth its start
PATIENCE = 60.0  # seconds after which nobody waits for it any more

_log = logging.getLogger("fedcohort.engine")
_turn = threading.RLock()
_partner = Partner()


def _kernel_folder() -> Path | None:
    """The folder for compiled kernels of exactly these sources on this processor; None if it cannot be made."""
    here = Path(__file__).resolve().parent
    machine = (
        numba.__version__,
        sys.version_info[:2],
        processor(),
        llvm.get_host_cpu_features().flatten(),
    )
    digest = hashlib.sha256(repr((here, *machine)).encode())
    for source in sorted(here.glob("*.py")):
        digest.update(f"{source.name} {source.stat().st_mtime_ns}".encode() + source.read_bytes())
    base = Path(config.CACHE_DIR) if config.CACHE_DIR else cache_folder()
    folder = base / f"kernels-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder


_FOLDER = _kernel_folder()


class _Closed(JITCodeLibrary):  # type: ignore[misc]
    """The code of one compiled function, in which nobody else sees the copies of what it calls."""

    outermost = ""  # the function that is being compiled; what it calls is closed as part of it

    def _finalize_final_module(self) -> None:
        if self.name == _Closed.outermost:
            for function in self._final_module.functions:
                copied = function.linkage == llvm.Linkage.linkonce_odr and not function.is_declaration
                if copied and function.name.startswith(_OURS):
                    function.linkage = llvm.Linkage.internal
        super()._finalize_final_module()


@contextlib.contextmanager
def _closed(name: str) -> Iterator[None]:
    """While Numba compiles the function of this name into our folder instead of the global one.

    Python's search for garbage was 7 % of the time that Numba takes, and finds next to nothing: it waits.
    """
    collects = gc.isenabled()
    gc.disable()
    codegen = cpu_target.target_context.codegen()
    before = config.CACHE_DIR, codegen._library_class, _Closed.outermost
    config.CACHE_DIR, codegen._library_class, _Closed.outermost = str(_FOLDER or ""), _Closed, name
    try:
        yield
    finally:
        config.CACHE_DIR, codegen._library_class, _Closed.outermost = before
        if collects:
            gc.enable()


def kernel(function: Callable[..., Any]) -> Any:
    """A function for other kernels, compiled into those that call it."""
    return njit(function, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)


class Compiled:
    """A function that is compiled for one signature when it is first needed."""

    def __init__(self, function: Callable[..., Any], signature: Any, compiler: Callable[..., Any]) -> None:
        self._function, self._signature, self._compiler = function, signature, compiler
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self.where = f"{function.__module__}:{function.__name__}"

    @property
    def on_disk(self) -> bool:
        """Whether it was compiled on this machine before."""
        return _FOLDER is not None and any(_FOLDER.glob(f"*/*.{self.__name__}-*.nbi"))

    @property
    def absent(self) -> bool:
        """Whether it has to be compiled."""
        return "made" not in vars(self) and not self.on_disk

    @cached_property
    def made(self) -> Any:
        """Numba's object, loaded from our folder instead of the global one or compiled into it."""
        with _turn, _closed(self.__name__):
            return self._compiler(self._signature, cache=_FOLDER is not None, **_OPTIONS)(self._function)

    @property
    def address(self) -> int:
        """Where the machine code is."""
        found: int = self.made.address
        return found

    def __call__(self, *arguments: Any) -> Any:
        """Run it."""
        return self.made(*arguments)


def entry(signature: Any) -> Callable[[Callable[..., Any]], Compiled]:
    """A function that Python calls, compiled for these types only."""
    return lambda function: Compiled(function, signature, lambda *types, **more: njit(*types, nogil=True, **more))


def part(signature: Any) -> Callable[[Callable[..., Any]], Compiled]:
    """A function that kernels call by its address (see :func:`caller`)."""
    return lambda function: Compiled(function, signature, cfunc)


def caller(signature: Any) -> Callable[..., Any]:
    """What a kernel calls a part of this signature with: its address, and a tuple of arguments."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        returns, *kinds = (context.get_value_type(kind) for kind in (signature.return_type, *signature.args))
        function = builder.inttoptr(args[0], ir.FunctionType(returns, kinds).as_pointer())
        given = [builder.extract_value(args[1], i) for i in range(len(kinds))]
        each = zip(given, sig.args[1], signature.args, strict=True)
        return builder.call(function, [context.cast(builder, *one) for one in each])

    @intrinsic  # type: ignore[untyped-decorator]
    def call(typing: Any, address: Any, arguments: Any) -> Any:
        return signature.return_type(address, arguments), codegen

    return call  # type: ignore[no-any-return]


def prepare(wanted: Sequence[Compiled], later: Sequence[Compiled] = ()) -> None:
    """Load these from disk, and compile those that are not there, which is said and counted.

    A second process compiles from the other end, where there is a processor for it, and continues with what is needed
    `later`. What it has compiled is on disk, where this process finds it.
    """
    with _turn:
        missing, ahead = ([one for one in some if one.absent] for some in (wanted, later))
        listed = list(dict.fromkeys([*missing, *ahead]))
        if missing and len(listed) >= HELP and _FOLDER is not None and (os.cpu_count() or 1) > 1:
            _partner.start([one.where for one in reversed(listed)])
        for done, one in enumerate(_in_turn(missing)):
            _tell(done, len(missing))
            _ = one.made
        if missing:
            _tell(len(missing), len(missing))
        for one in wanted:
            _ = one.made


def _in_turn(missing: Sequence[Compiled]) -> Iterator[Compiled]:
    """All of them; those that the second process is just compiling when it has done so."""
    waiting, limit = deque(missing), time.monotonic() + PATIENCE
    while waiting:
        one = waiting.popleft()
        if _partner.now != one.where or one.on_disk or time.monotonic() > limit:
            yield one
        else:
            waiting.append(one)
            if len(waiting) == 1:
                time.sleep(0.02)


def _tell(done: int, total: int) -> None:
    """A progress line on a terminal; elsewhere one line in the log."""
    text = "compiling kernels, once per machine"
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"\r{text}: {done} of {total}" + "\n" * (done == total))
        sys.stderr.flush()
    elif not done:
        _log.warning("%s: %d of them, about a second each", text, total)
