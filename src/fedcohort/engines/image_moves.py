"""How images are moved about and mirrored in training: the draws, which are the same for every engine.

An augmentation draws for every batch from a generator that is a function of (seed, round, client, epoch, batch).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.errors import check
from fedcohort.types import Index, Plan

PAD = 4  # pixels by which a crop may move
DOWN, RIGHT, MIRRORED = range(3)  # columns of moves: by how many pixels the window moves, then whether it is mirrored

Moves = Callable[[int, np.random.Generator], Index]  # of n images


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


def check_images(shape: tuple[int, ...]) -> None:
    """Refuse inputs that are no images."""
    rule = "crop-flip and flip are for images (n, channels, height, width)"
    check(len(shape) == 4, f"inputs of shape {tuple(shape)}", rule, "leave the augmentation out")
