"""What a few forward passes tell of a torch module: which layer comes last, and whether one sample is enough for it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedcohort.engines.interface import ClientData
from fedcohort.engines.torch_device import seeded, torch_package
from fedcohort.engines.torch_modules import owners

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What was found; a module that cannot be run is told apart elsewhere and has nothing special here."""

    last: str | None = None  # the module that is called last, of those with parameters of their own to train
    trains_one: bool = True  # whether it can be trained on a batch of one sample: not under BatchNorm1d
    answers_one: bool = True  # whether it can be evaluated on one: not with track_running_stats=False either


def rehearse(module: nn.Module, data: ClientData, again: Callable[[], nn.Module], device: str = "cpu") -> Rehearsal:
    """Run a copy of the module on two samples and on one, in training and in evaluation.

    `again` makes another one, for modules that cannot be copied (those with torch's old weight_norm, with a lock).
    """
    rows = data.train.index if data.train.index.size else np.arange(len(data.x))
    if not rows.size:
        return Rehearsal()
    x = torch_package().from_numpy(data.x[np.resize(rows[:2], 2)]).to(device)
    with seeded(device, 0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = _twin(module, again, device)
        if twin is None:
            return Rehearsal()
        return Rehearsal(_last_called(twin.eval(), x), _takes_one(twin.train(), x), _takes_one(twin.eval(), x))


def _twin(module: nn.Module, again: Callable[[], nn.Module], device: str) -> nn.Module | None:
    """A module like this one that may be changed; None where a factory only hands out the same object."""
    try:
        return copy.deepcopy(module)
    except Exception:  # a module's own code may raise anything
        other = again()
        return None if other is module else other.to(device)


def _last_called(module: nn.Module, x: Tensor) -> str | None:
    called: list[str] = []
    hooks = [m.register_forward_pre_hook(lambda *_, name=name: called.append(name)) for name, m in owners(module)]
    runs = _runs(module, x)
    for hook in hooks:
        hook.remove()
    return called[-1] if runs and called else None


def _takes_one(module: nn.Module, x: Tensor) -> bool:
    return _runs(module, x[:1]) or not _runs(module, x)


def _runs(module: nn.Module, x: Tensor) -> bool:
    try:
        module(x)
    except Exception:  # a module's own code may raise anything
        return False
    return True
