"""Ready-made augmentations of images, each image moved and mirrored by its own draws.

An augmentation is called for every batch of local training with the inputs, (n, channels, height, width) on the device,
and a NumPy generator (`image_moves`); evaluation is never augmented. Those made here only move images about:
:data:`MOVES` says how, so that engines without torch can do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.engines.image_moves import (
    DOWN,
    MIRRORED,
    PAD,
    RIGHT,
    Moves,
    check_images,
    crop_flip_moves,
    flip_moves,
)
from fedcohort.engines.torch_device import torch_package
from fedcohort.errors import UnknownName, check
from fedcohort.types import Index

if TYPE_CHECKING:
    from torch import Tensor


def moved(x: Tensor, moves: Index) -> Tensor:
    """What the moved windows show of each image; outside of it are zeros."""
    torch, (n, _, height, width) = torch_package(), x.shape
    rows = PAD + moves[:, DOWN, None] + np.arange(height)
    columns = PAD + moves[:, RIGHT, None] + np.arange(width)
    columns = np.where(moves[:, MIRRORED, None] == 1, columns[:, ::-1], columns)
    wide = torch.nn.functional.pad(x, (PAD, PAD, PAD, PAD)).permute(0, 2, 3, 1)
    image, down, right = (torch.from_numpy(at).to(x.device) for at in (np.arange(n)[:, None], rows, columns))
    found: Tensor = wide[image[..., None], down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2).contiguous()
    return found


def crop_flip(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Each image moved by up to 4 pixels (zeros come in from outside) and half of them mirrored left to right."""
    check_images(tuple(x.shape))
    return moved(x, crop_flip_moves(len(x), rng))


def flip(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Half of the images mirrored left to right."""
    check_images(tuple(x.shape))
    return moved(x, flip_moves(len(x), rng))


AUGMENTATIONS: dict[str, Callable[[Any, Any], Any]] = {"crop-flip": crop_flip, "flip": flip}
MOVES: dict[Callable[[Any, Any], Any], Moves] = {crop_flip: crop_flip_moves, flip: flip_moves}


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
