"""Ready-made augmentations of images: functions of a batch and a generator, drawn for each image on its own.

An augmentation is called for every batch of local training with the inputs, (n, channels, height, width) on the device,
and a NumPy generator that is a function of (seed, round, client, epoch, batch); evaluation is never augmented.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.engines.torch_device import torch_package
from fedcohort.errors import UnknownName, check

if TYPE_CHECKING:
    from torch import Tensor

PAD = 4  # pixels by which a crop may move


def crop_flip(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Each image moved by up to 4 pixels (zeros come in from outside) and half of them mirrored left to right."""
    check(x.ndim == 4, f"inputs of shape {tuple(x.shape)}", "crop-flip is for images", "leave the augmentation out")
    torch, (n, _, height, width) = torch_package(), x.shape
    down, right = rng.integers(0, 2 * PAD + 1, (2, n))
    columns = right[:, None] + np.arange(width)
    columns = np.where(rng.random(n)[:, None] < 0.5, columns[:, ::-1], columns)
    rows = torch.from_numpy(down[:, None] + np.arange(height)).to(x.device)
    wide = torch.nn.functional.pad(x, (PAD, PAD, PAD, PAD))
    image = torch.arange(n, device=x.device)[:, None, None]
    picked = wide.permute(0, 2, 3, 1)[image, rows[:, :, None], torch.from_numpy(columns).to(x.device)[:, None, :]]
    moved: Tensor = picked.permute(0, 3, 1, 2).contiguous()
    return moved


def flip(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Half of the images mirrored left to right."""
    check(x.ndim == 4, f"inputs of shape {tuple(x.shape)}", "flip is for images", "leave the augmentation out")
    torch = torch_package()
    mirrored = torch.from_numpy(rng.random(len(x)) < 0.5).to(x.device)
    found: Tensor = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
    return found


AUGMENTATIONS: dict[str, Callable[[Any, Any], Any]] = {"crop-flip": crop_flip, "flip": flip}


def augmentation(given: str | Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any] | None:
    """An augmentation by name, or yours; "none" and None are none."""
    if given is None or given == "none":
        return None
    if isinstance(given, str):
        if given not in AUGMENTATIONS:
            raise UnknownName.among("augmentation", given, ("none", *AUGMENTATIONS))
        return AUGMENTATIONS[given]
    check(callable(given), f"augmentation = {given!r}"[:80], "it must be a name or a function", "use e.g. 'crop-flip'")
    return given
