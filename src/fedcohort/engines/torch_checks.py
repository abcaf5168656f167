"""A dry run of a torch model at the start: what does not fit is said in one sentence, before anybody trains."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.engines.interface import ClientData
from fedcohort.engines.losses import CROSS_ENTROPY
from fedcohort.engines.recipe import Modeled, Recipe, named, recipe_of, said
from fedcohort.engines.torch_device import torch_package
from fedcohort.engines.torch_losses import IGNORED, Criterion
from fedcohort.engines.torch_modules import build, constants
from fedcohort.engines.torch_rehearsal import rehearse
from fedcohort.errors import FedcohortError, TrainingError, check

if TYPE_CHECKING:
    from torch import Tensor, nn

FEW = 3  # samples of the dry run


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a dry run found."""

    per_sample: bool  # whether the loss gives one number per sample
    output: Tensor  # of a few samples
    target: Tensor


def dry_run(model: Modeled, data: ClientData) -> DryRun:
    """Put a few samples through the module, its loss and its optimiser, on the CPU; refuse what cannot work."""
    recipe, torch = recipe_of(model), torch_package()
    with torch.random.fork_rng(devices=[]):
        module = build(recipe.model)
        name = type(module).__name__
        if not any(p.requires_grad for p in module.parameters()):
            raise TrainingError(f"module {name}", "it has no parameters to train", "give it some, with requires_grad")
        _check_tensors(name, module, recipe)
        rows = data.train.index[:FEW] if data.train.index.size else np.arange(min(FEW, len(data.x)))
        x = torch.from_numpy(np.array(data.x[rows]))
        x = _augmented(recipe, x)
        output = _output(name, module, x)
        y = torch.from_numpy(_answers(data, rows))
        each = _loss(recipe, data, name, output, y)
        _optimiser(recipe, module)
    return DryRun(bool(each.ndim), output.detach(), y)


def single_samples(model: Modeled, data: ClientData, batch: int) -> str:
    """What becomes of clients whose last batch has one sample, where the module cannot be trained on one.

    Empty where there are none; refused where every batch has one sample.
    """
    recipe, sizes = recipe_of(model), data.train.sizes
    module = build(recipe.model)
    if rehearse(module, data, lambda: build(recipe.model)).trains_one:
        return ""
    cannot, remedy = f"module {type(module).__name__} cannot be trained on one sample", "GroupNorm instead of BatchNorm"
    check(batch > 1, f"batch_size = {batch}", f"{cannot}, so every client would fail", f"use 2 or more, or {remedy}")
    counts = {
        "leave one out of every epoch": int(((sizes > batch) & (sizes % batch == 1)).sum()),
        "own only one and fail": int((sizes == 1).sum()),
    }
    found = " and ".join(f"{n} of {sizes.size} clients {what}" for what, n in counts.items() if n)
    return f"{cannot}: with batch_size {batch}, {found}; use another batch_size, or {remedy}" if found else ""


def _check_tensors(name: str, module: nn.Module, recipe: Recipe) -> None:
    """Trainable parameters are real numbers, and what nobody trains is the same whenever the module is made."""
    torch = torch_package()
    for key, p in module.named_parameters():
        if p.requires_grad and p.is_complex():
            remedy = "keep its real and its imaginary part as two parameters"
            raise TrainingError(f"parameter {key} of module {name}", "it is complex, and models are real", remedy)
    first = constants(module)
    again = constants(build(recipe.model)) if first else {}
    for key, value in first.items():
        if key not in again or not torch.equal(value.nan_to_num(), again[key].nan_to_num()):
            rule = "nobody trains it, and the factory makes another one each time"
            raise TrainingError(
                f"tensor {key} of module {name}", rule, "draw it with torch alone, or from a fixed seed"
            )


def _answers(data: ClientData, rows: Any) -> Any:
    if data.target is not None:
        return np.array(data.target[rows])
    return np.array(data.train.label[: len(rows)] if data.train.label.size else np.zeros(len(rows), np.int64))


def _augmented(recipe: Recipe, x: Tensor) -> Tensor:
    if recipe.augmentation is None:
        return x
    try:
        made = recipe.augmentation(x.clone(), generator(0, "augment", 0, 0, 0, 0))
    except Exception as error:
        raise TrainingError("the augmentation", said(error), "it takes a batch and a numpy generator") from None
    if getattr(made, "shape", None) is None or len(made) != len(x):
        what = f"shape {tuple(made.shape)}" if hasattr(made, "shape") else f"type {type(made).__name__}"
        raise TrainingError(f"an augmentation of {what}", f"it must keep the {len(x)} samples", "return the batch")
    changed: Tensor = made
    return changed


def _output(name: str, module: nn.Module, x: Tensor) -> Tensor:
    """The module's output in eval mode, where a batch may be small."""
    torch = torch_package()
    value = f"module {name} on a batch of shape {tuple(x.shape)}, {str(x.dtype).removeprefix('torch.')}"
    module.eval()
    try:
        output = module(x)
    except Exception as error:
        raise TrainingError(value, said(error), "make its first layer fit the data") from None
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        kind = str(output.dtype) if isinstance(output, torch.Tensor) else type(output).__name__
        raise TrainingError(value, f"it returns {kind}", "return one tensor of floating-point numbers")
    if not output.ndim or len(output) != len(x):
        raise TrainingError(value, f"its output has shape {tuple(output.shape)}", "return one row per sample")
    found: Tensor = output
    return found


def _loss(recipe: Recipe, data: ClientData, name: str, output: Tensor, y: Tensor) -> Tensor:
    """The loss of the samples, checked: classes, shape, type, finite, and a way back to the parameters."""
    torch = torch_package()
    if recipe.loss is None and tuple(output.shape[1:]) != (data.classes,):
        rule = f"the data have {data.classes} classes, and cross-entropy wants {(len(output), data.classes)}"
        raise TrainingError(
            f"an output of shape {tuple(output.shape)} from module {name}", rule, "change its last layer, or the loss"
        )
    what = "cross-entropy" if recipe.loss is None else named(recipe.loss)
    value = f"loss {what} of outputs {tuple(output.shape)} and targets {tuple(y.shape)}, {str(y.dtype)[6:]}"
    _in_range(value, recipe, output, data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # torch warns of shapes that are made alike by repetition
            each, _ = Criterion(recipe.loss, "cpu").of(CROSS_ENTROPY, output, y, None)
        torch.autograd.backward(each.mean())
    except FedcohortError:
        raise
    except Exception as error:
        same = output.numel() == y.numel() and output.shape != y.shape
        remedy = f"give targets of shape (n, {', '.join(map(str, output.shape[1:]))})" if same else "let them fit"
        raise TrainingError(value, said(error), remedy) from None
    if not bool(torch.isfinite(each).all()):
        raise TrainingError(value, "it is not finite for the first model", "check the loss, the inputs and targets")
    return each


def _in_range(value: str, recipe: Recipe, output: Tensor, data: ClientData) -> None:
    """Class numbers of all targets must be classes of the output."""
    target = data.target
    if target is None or target.dtype.kind not in "iu" or not target.size:
        return
    from fedcohort.engines.torch_losses import binary_cross_entropy, token_cross_entropy

    top, low = int(target.max()), int(target[target != IGNORED].min(initial=0))
    if recipe.loss is token_cross_entropy and (top >= output.shape[-1] or low < 0):
        rule = f"targets from {low} to {top} are not among the {output.shape[-1]} classes of the output"
        raise TrainingError(value, rule, "number the classes from 0, or widen the last layer")
    if recipe.loss is binary_cross_entropy and (top > 1 or low < 0):
        raise TrainingError(value, f"targets from {low} to {top} are not 0 or 1", "give one 0 or 1 for each label")


def _optimiser(recipe: Recipe, module: nn.Module) -> None:
    if recipe.optimiser is None:
        return
    torch, params = torch_package(), [p for p in module.parameters() if p.requires_grad]
    remedy = "give a function such as lambda params, lr: torch.optim.AdamW(params, lr)"
    try:
        made = recipe.optimiser(params, 0.1)
    except Exception as error:
        raise TrainingError(f"optimiser {named(recipe.optimiser)}", said(error), remedy) from None
    if not isinstance(made, torch.optim.Optimizer):
        value = f"optimiser {named(recipe.optimiser)}"
        raise TrainingError(value, f"it returns {type(made).__name__}, not a torch.optim.Optimizer", remedy)
