"""The model that a run ends with: its tensors by name, as a torch module, as a file, and its predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.engines.networks import Network
from fedcohort.errors import ConfigError, StoreError
from fedcohort.types import Array, Arrays, Model

PARTS = ("params", "buffers", "counters")  # of a flat model
STATISTICS = ("running_mean", "running_var")  # of batch normalisation, as PyTorch names them
COUNTER = "num_batches_tracked"
Factory = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor of a model: its name, its shape, and which part of the flat model it is cut from, in order."""

    name: str
    shape: tuple[int, ...]
    part: str = "params"


@dataclass(frozen=True)
class StoredParts:
    """What a run folder keeps of a torch module beside the flat model, so that nothing needs to make it again."""

    constants: Arrays = field(default_factory=dict)  # what nobody trains
    names: Mapping[str, str] = field(default_factory=dict)  # key of the module's state_dict -> the tensor it holds


@dataclass(frozen=True)
class TrainedModel:
    """The model after the last round: `history.model`.

    `flat` holds it as the engines do, `layout` says how tensors are cut from it, and `tensors()` are those by name, as
    torch calls them. `to_torch()` is the module itself, `predict(x)` its answers.

    >>> model = TrainedModel(Model(np.arange(6, dtype=np.float32)), layout_of(Network((2,), ())))
    >>> model.tensors()["params"].shape
    (6,)
    """

    flat: Model
    layout: tuple[TensorPlace, ...] = ()
    made_from: Network | Factory | None = None  # what makes the module, where it is known
    logits: Callable[[Array], Array] | None = field(default=None, repr=False)  # of samples as the dataset has them
    class_names: tuple[int | str, ...] = ()
    stored: StoredParts | None = None  # of a model that was read from a folder

    @property
    def params(self) -> Array:
        """The trainable parameters as one flat vector."""
        return self.flat.params

    def tensors(self) -> Arrays:
        """Every tensor by its name; the flat vector as `params` where the task does not say how it is cut."""
        if not self.layout:
            return {part: getattr(self.flat, part) for part in PARTS if getattr(self.flat, part).size}
        out: Arrays = {}
        at = dict.fromkeys(PARTS, 0)
        for tensor in self.layout:
            size = math.prod(tensor.shape)
            whole: Array = getattr(self.flat, tensor.part)
            if at[tensor.part] + size > whole.size:
                raise StoreError(
                    f"tensor {tensor.name}", f"the model has {whole.size} {tensor.part}, fewer than its layout", "check"
                )
            out[tensor.name] = whole[at[tensor.part] : at[tensor.part] + size].reshape(tensor.shape)
            at[tensor.part] += size
        return out | self.beside().constants

    def beside(self) -> StoredParts:
        """What a torch module has beside the flat model: its frozen parameters and complex buffers, and its names."""
        if self.made_from is None or isinstance(self.made_from, Network):
            return self.stored or StoredParts()
        from fedcohort.engines.torch_modules import constants, module_of, saved_names

        module = module_of(self.made_from)
        found = constants(module).items()
        arrays = {n: (t.float() if t.is_floating_point() else t).cpu().numpy() for n, t in found}
        return StoredParts(arrays, saved_names(module))

    def state_dict(self) -> dict[str, Any]:
        """The tensors for `module.load_state_dict`; those of a torch module are exactly the ones that it asks for."""
        from fedcohort.engines.torch_device import torch_package

        torch = torch_package()
        if self.made_from is not None and not isinstance(self.made_from, Network):
            found = self.to_torch().state_dict()
            return {n: t.detach().cpu().clone() if isinstance(t, torch.Tensor) else t for n, t in found.items()}
        tensors = self.tensors()
        names = self.beside().names or {name: name for name in tensors}
        return {key: torch.from_numpy(np.array(tensors[name])) for key, name in names.items() if name in tensors}

    def to_torch(self) -> Any:
        """The `torch.nn.Module` with these weights, in evaluation mode."""
        if self.made_from is None:
            raise ConfigError(
                "to_torch()", "what makes the module is not known here", "make it and load state_dict() into it"
            )
        from fedcohort.engines.torch_modules import Flat, build, module_of

        module = build(self.made_from) if isinstance(self.made_from, Network) else module_of(self.made_from)
        Flat(module).write(self.flat.params, self.flat.buffers, self.flat.counters)
        return module.eval()

    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """The class of each sample, under its own name; samples are as in the dataset, before normalisation."""
        if self.logits is None:
            raise ConfigError("predict()", "this model is not a classifier that was trained here", "use to_torch()")
        best = np.asarray(self.logits(np.asarray(x))).argmax(axis=-1)
        return np.asarray(np.array(self.class_names)[best] if self.class_names else best)

    def save(self, path: str | Path) -> Path:
        """Write the tensors to a file: .npz, or .pt (a torch state_dict)."""
        file = Path(path)
        if not file.parent.is_dir():
            raise StoreError(f"file {file}", f"there is no folder {file.parent}", "create it first")
        if file.suffix == ".npz":
            values: dict[str, Any] = dict(self.tensors())
            np.savez(file, **values)
        elif file.suffix in (".pt", ".pth"):
            from fedcohort.engines.torch_device import torch_package

            torch_package().save(self.state_dict(), file)
        else:
            raise ConfigError(f"file {file}", "a model is written as .npz, .pt or .pth", "change its ending")
        return file


def layout_of(model: Network | Factory) -> tuple[TensorPlace, ...]:
    """How the flat model of a network or of a torch module is cut into tensors."""
    if isinstance(model, Network):
        found = [TensorPlace(t.name, t.shape) for t in model.tensors]
        for name, channels in model.normalised.items():
            found += [TensorPlace(f"{name}.{kind}", (channels,), "buffers") for kind in STATISTICS]
            found.append(TensorPlace(f"{name}.{COUNTER}", (), "counters"))
        return tuple(found)
    from fedcohort.engines.torch_modules import is_counter, module_of

    module = module_of(model)
    found = [TensorPlace(n, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad]
    kept = [(n, b) for n, b in module.named_buffers() if not b.is_complex()]
    return (*found, *(TensorPlace(n, tuple(b.shape), "counters" if is_counter(b) else "buffers") for n, b in kept))


def plain_layout(layout: Sequence[TensorPlace]) -> list[list[Any]]:
    """A layout as JSON holds it."""
    return [[t.name, list(t.shape), t.part] for t in layout]


def deployed_layout(arrays: Sequence[Any]) -> list[list[Any]]:
    """The arrays of a deployed model (name, shape, type), in the form of :func:`plain_layout`.

    >>> deployed_layout([["w", [2, 3], "<f4"], ["bn.running_var", [3], "<f4"], ["seen", [], "<i8"]])
    [['w', [2, 3], 'params'], ['bn.running_var', [3], 'buffers'], ['seen', [], 'counters']]
    """

    def part(name: str, dtype: str) -> str:
        if dtype[1:2] != "f":  # as in "<f4"
            return "counters"
        return "buffers" if name.endswith(STATISTICS) else "params"

    return [[name, shape, part(str(name), str(dtype))] for name, shape, dtype in arrays]


def layout_from(plain: Sequence[Any]) -> tuple[TensorPlace, ...]:
    """Inverse of :func:`plain_layout`."""
    try:
        found = tuple(TensorPlace(str(name), tuple(int(n) for n in shape), str(part)) for name, shape, part in plain)
    except (TypeError, ValueError):
        return ()
    return found if all(t.part in PARTS and all(n >= 0 for n in t.shape) for t in found) else ()
