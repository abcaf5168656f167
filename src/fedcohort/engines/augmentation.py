"""Ready-made augmentations of images, each image moved and mirrored by its own draws.

An augmentation is called for every batch of local training with the inputs, (n, channels, height, width) on the device,
and a NumPy generator that is a function of (seed, round, client, epoch, batch); evaluation is never augmented. Those
made here only move images about: :data:`MOVES` says how, so that engines without torch can do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.engines.torch_device import torch_package
from fedcohort.errors import UnknownName, check
from fedcohort.types import Index, Plan

if TYPE_CHECKING:
    from torch import Tensor

PAD = 4  # pixels by which a crop may move
DOWN, RIGHT, MIRRORED = range(3)  # columns of moves: by how many pixels the window moves, then whether it is mirrored

Moves = Callable[[int, np.random.Generator], Index]


def crop_flip_moves(n: int, rng: np.random.Generator) -> Index:
    """Where the windows of n images go, (n, 3): up to 4 pixels in each direction, half of them mirrored.

    >>> crop_flip_moves(2, np.random.default_rng(0))
    array([[ 3,  0,  1],
           [ 1, -2,  1]])
    """
    moved = rng.integers(0, 2 * PAD + 1, (2, n)) - PAD
    return np.column_stack([*moved, rng.random(n) < 0.5]).astype(np.int64)


def flip_moves(n: int, rng: np.random.Generator) -> Index:
    """The same for windows that stay where they are."""
    found = np.zeros((n, 3), np.int64)
    found[:, MIRRORED] = rng.random(n) < 0.5
    return found


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


def check_images(shape: tuple[int, ...]) -> None:
    """Refuse inputs that are no images."""
    rule = "crop-flip and flip are for images (n, channels, height, width)"
    check(len(shape) == 4, f"inputs of shape {tuple(shape)}", rule, "leave the augmentation out")


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


def batch_generator(plan: Plan, client: int, epoch: int, at: int) -> np.random.Generator:
    """What the batch of a client that starts at this position is augmented with."""
    return generator(plan.seed, "augment", plan.round, client, epoch, at)


def moves_of(draw: Moves, plan: Plan, client: int, epochs: int, n: int) -> Index:
    """All moves of a client's training, (epochs, n, 3), as its batches come."""
    found = np.empty((epochs, n, 3), np.int64)
    for epoch in range(epochs):
        for at in range(0, n, plan.batch_size):
            few = min(plan.batch_size, n - at)
            found[epoch, at : at + few] = draw(few, batch_generator(plan, client, epoch, at))
    return found
