"""Networks and factories as torch modules, and modules as flat arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.networks import Network
from fedcohort.engines.recipe import Factory, named, said
from fedcohort.engines.torch_device import seeded, torch_package
from fedcohort.errors import FedcohortError, TrainingError
from fedcohort.types import Mask, Model

if TYPE_CHECKING:
    from torch import Tensor, nn

FROZEN_SEED = 0  # of torch, where a factory draws what stays frozen


def build(model: Network | Factory) -> nn.Module:
    """A module from a network or a factory; what it drops out is drawn per client, alike in every engine."""
    from fedcohort.engines import torch_layers

    return torch_layers.sequential(model) if isinstance(model, Network) else torch_layers.seeded(module_of(model))


def module_of(factory: Factory) -> nn.Module:
    """What a factory makes, from one fixed seed of torch: what is frozen is the same in every engine and export."""
    with seeded("cpu", FROZEN_SEED):
        return _made(factory)


def _made(factory: Factory) -> nn.Module:
    """What a factory makes of torch's generator as it is; an exception in it is one sentence."""
    torch = torch_package()
    try:
        made = factory()
    except FedcohortError:
        raise
    except Exception as error:
        remedy = "give a function that makes the module without arguments, e.g. lambda: MyNet(hidden=32)"
        raise TrainingError(f"factory {named(factory)}", f"it raises {said(error)}", remedy) from error
    if not isinstance(made, torch.nn.Module):
        raise TrainingError(f"a {type(made).__name__}", "a factory must make a torch.nn.Module", "return one")
    module: nn.Module = made
    return module


def initial(model: Network | Factory, rng: np.random.Generator) -> Model:
    """A fresh model drawn from this generator alone; torch's own generator is left as it was."""
    if isinstance(model, Network):
        return model.fresh(rng)
    with seeded("cpu", int(rng.integers(1 << 62))):
        return Flat(_made(model)).read()


def constants(module: nn.Module) -> dict[str, Tensor]:
    """What nobody trains, averages or sends, by name: frozen parameters and complex buffers."""
    found = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
    return found | {n: b.detach() for n, b in module.named_buffers() if b.is_complex()}


def saved_names(module: nn.Module) -> dict[str, str]:
    """Each key of the module's state_dict() with the tensor it holds, under that one's first name.

    Tied weights have several keys; buffers that are not persistent have none.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    first = {id(tensor): name for name, tensor in tensors}
    found = {key: first.get(id(value)) for key, value in module.state_dict(keep_vars=True).items()}
    return {key: name for key, name in found.items() if name is not None}


def owners(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that have parameters of their own to train, by name, in the order in which they are defined."""
    return [(n, m) for n, m in module.named_modules() if any(p.requires_grad for p in m.parameters(recurse=False))]


class Flat:
    """A module seen as flat arrays; its constants stay in it, neither read nor written."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.params: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        self.floats: list[Tensor] = [b for b in module.buffers() if b.is_floating_point()]
        self.counters: list[Tensor] = [b for b in module.buffers() if is_counter(b)]
        self.size = sum(p.numel() for p in self.params)

    def read(self) -> Model:
        """The module's present state."""
        return Model(
            flat_array(self.params, np.float32),
            flat_array(self.floats, np.float32),
            flat_array(self.counters, np.int64),
        )

    def write(self, params: Any, buffers: Any = None, counters: Any = None) -> None:
        """Set the module's state from arrays or tensors; empty or missing buffers stay as they are."""
        _fill(self.params, params)
        if buffers is not None and len(buffers):
            _fill(self.floats, buffers)
        if counters is not None and len(counters):
            _fill(self.counters, counters)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The module's present state as flat tensors on its device: parameters, float buffers, counters."""
        torch = torch_package()
        kinds = ((self.params, torch.float32), (self.floats, torch.float32), (self.counters, torch.int64))
        flat = [
            torch.cat([t.detach().reshape(-1) for t in ts]).to(d) if ts else torch.empty(0, dtype=d) for ts, d in kinds
        ]
        return flat[0], flat[1], flat[2]

    def last_layer(self, name: str | None = None) -> slice | Mask:
        """Weight and bias of the module of this name, or else of the last one with parameters of its own to train.

        A slice where they lie side by side; tied weights may lie elsewhere.
        """
        found = dict(owners(self.module))
        if not found:
            return slice(self.size, self.size)
        last = found[name] if name in found else [*found.values()][-1]
        own = {id(p) for p in last.parameters(recurse=False)}
        mask: Mask = np.concatenate([np.full(p.numel(), id(p) in own) for p in self.params])
        at = np.flatnonzero(mask)
        start, stop = int(at[0]), int(at[-1]) + 1
        return slice(start, stop) if stop - start == at.size else mask

    def split(self, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter with its part of a flat tensor."""
        start = 0
        for p in self.params:
            yield p, flat[start : start + p.numel()].view_as(p)
            start += p.numel()


def is_counter(buffer: Tensor) -> bool:
    """Whether a buffer holds whole numbers, or yes and no."""
    return not (buffer.is_floating_point() or buffer.is_complex())


def flat_array(tensors: list[Tensor], dtype: Any) -> NDArray[Any]:
    """Tensors of any shape and device as one flat array."""
    if not tensors:
        return np.empty(0, dtype)
    return np.concatenate([t.detach().cpu().numpy().reshape(-1) for t in tensors]).astype(dtype)


def _fill(tensors: list[Tensor], values: Any) -> None:
    torch = torch_package()
    need = sum(t.numel() for t in tensors)
    if len(values) != need:
        raise TrainingError(f"{len(values)} values", f"the model has {need}", "use a model of this task")
    given = values if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values))
    start = 0
    with torch.no_grad():
        for t in tensors:
            t.copy_(given[start : start + t.numel()].view(t.shape))
            start += t.numel()
