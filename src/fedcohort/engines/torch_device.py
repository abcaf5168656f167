"""Where torch computes: the names of devices, what is there, and the few places in which devices differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from fedcohort.engines.interface import DEVICES, PRECISIONS
from fedcohort.errors import BadParameter, MissingExtra, TrainingError, UnknownName

_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # the last two are the CPU's


def torch_package(what: str = "the torch_reference engine") -> Any:
    """The torch package, or the error that says how to get it."""
    try:
        import torch
    except ImportError:
        raise MissingExtra.of(what, "torch") from None
    return torch


def known(device: str) -> str:
    """This name of a device, refused if there is none of that form."""
    if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", device):
        raise UnknownName.among("device", str(device), DEVICES)
    return device


def resolve(device: str) -> str:
    """The device behind a name: "auto" is the first CUDA device, or the CPU. One that is absent is refused."""
    torch = torch_package()
    if known(device) == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(device[5:] or 0) >= count:
            there = f"torch {torch.__version__} sees {count or 'no'} CUDA device{'' if count == 1 else 's'} here"
            raise BadParameter(f"device = {device!r}", there, "use device='cpu', or install torch with CUDA")
    if device == "mps" and not torch.backends.mps.is_available():
        raise BadParameter(f"device = {device!r}", "there is no Apple GPU (Metal) here", "use device='cpu'")
    return device


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """Forward passes in bfloat16 where asked for; else nothing."""
    if precision not in PRECISIONS:
        raise UnknownName.among("precision", precision, PRECISIONS)
    if precision == "float32":
        return nullcontext()
    torch = torch_package()
    kind = device.partition(":")[0]
    if kind == "mps":
        raise BadParameter(f"precision = {precision!r} on mps", "it is for cuda and cpu", "use precision='float32'")
    mixed: AbstractContextManager[Any] = torch.autocast(kind, dtype=torch.bfloat16)
    return mixed


def sum_type(device: str) -> Any:
    """In what sums are kept: float64, where the device has it."""
    torch = torch_package()
    return torch.float32 if device == "mps" else torch.float64


@contextmanager
def seeded(device: str, seed: int) -> Iterator[None]:
    """Torch's own generators start from this seed, and are afterwards as they were."""
    torch = torch_package()
    kind, _, number = device.partition(":")
    state = torch.mps.get_rng_state() if kind == "mps" else None
    with torch.random.fork_rng(devices=[int(number or 0)] if kind == "cuda" else []):
        torch.manual_seed(seed)
        yield
    if state is not None:
        torch.mps.set_rng_state(state)


def out_of_memory(error: BaseException) -> bool:
    """Whether this is a device, or the machine, that has no memory left."""
    torch = torch_package()
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MEMORY)


def too_large(what: str, device: str) -> TrainingError:
    """The error for work that does not fit the device in its smallest portion."""
    return TrainingError(
        f"{what} on {device}", "the device is out of memory", "use a smaller batch_size or model, or device='cpu'"
    )


class Resident:
    """Arrays that live on the device: sent once, then indexed there. On the CPU they stay NumPy's.

    The arrays used last are kept: inputs, targets and labels of the clients, and the server's own data.
    """

    KEPT = 8

    def __init__(self, device: str) -> None:
        self._torch, self._device = torch_package(), device
        self._held: dict[int, tuple[Any, Any]] = {}  # id -> the array itself (so that the id stays its own), its copy

    def tensor(self, array: Any) -> Any:
        """The whole array on the device."""
        if self._device == "cpu":
            return self._torch.from_numpy(np.ascontiguousarray(array))
        found = self._held.pop(id(array), None)
        if found is None:
            found = (array, self._torch.from_numpy(np.ascontiguousarray(array)).to(self._device))
        self._held[id(array)] = found  # the newest is last
        if len(self._held) > self.KEPT:
            del self._held[next(iter(self._held))]
        return found[1]

    def rows(self, array: Any, at: Any) -> Any:
        """These rows of the array, on the device."""
        if self._device == "cpu":
            return self._torch.from_numpy(array[at])
        return self.tensor(array)[self._torch.from_numpy(np.ascontiguousarray(at)).to(self._device)]
