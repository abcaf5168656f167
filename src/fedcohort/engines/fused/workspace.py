"""From a network to the tables that the kernels read: stages, and where everything lies in one workspace.

A stage is a convolution or a linear layer together with the ReLU and the max-pool behind it. Activations lie as
[channel][y][x][sample], dense, with a zero border where the next convolution wants padding. Rows and columns of a
convolution that its pool would drop are never computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.networks import Conv, Flatten, Layer, Linear, MaxPool, Network, ReLU
from fedcohort.errors import TrainingError

from .vectors import LANES, SLACK

BLOCK = 64  # samples that travel through the network together; larger batches are cut into such blocks

GROUP = 8  # samples whose pixels are turned at a time

_LINE = 16  # floats of a cache line

# Columns of the stage table.
(
    CONV,  # 1: convolution, 0: linear
    CI,  # input channels, or features
    HI,  # input rows without border
    WI,  # input columns without border
    PAD,  # border of the input
    CO,  # output channels, or features
    KERNEL,
    OH,  # rows of the convolution that are computed
    OW,  # columns of the convolution that are computed
    RELU,
    POOL,  # window of the max-pool (1: none)
    WEIGHT,  # offset of the weight in the parameters
    BIAS,  # offset of the bias
    ACT,  # workspace: input of this stage
    GRAD,  # workspace: gradient by that input, [sample][y][x][channel] with borders or [sample][feature]
    ROWS,  # workspace: rows of the convolution before the pool
    SPACED,  # channels of one pixel in the layout of the backward pass, [sample][y][x][channel]
    VECTORS,  # vectors of one row of taps in that layout
    TAPS,  # workspace: weight gradient as [output][ky][kx][channel]
    SPREAD,  # workspace: weights in the same order
    PIXELS,  # workspace: input of a few samples as [sample][y][x][channel]
    TURNED,  # workspace: input of a linear stage as [sample][feature]
    WINNER,  # byte workspace: positions of the pool's maxima
    PANELS,  # addresses of compiled parts: `panels`,
    GATHER,  # `gather_taps`,
    SCATTER,  # `spread_taps`,
    FORWARD,  # this kind of stage forward
    BACKWARD,  # and backward,
    TAKE,  # `take`,
    MEASURE,  # `measure`,
    BY_LOGITS,  # `by_logits`,
    GRADIENT,  # `add_gradient`
    MOVE,  # and `move`
    COLUMNS,
) = range(34)


@dataclass(frozen=True, slots=True)
class Workspace:
    """What the kernels need to know about a network: one row per stage, then a last row for the logits."""

    table: NDArray[np.int64]
    floats: int  # workspace, in float32
    bytes: int  # workspace of winners, in int8

    def workspace(self) -> tuple[NDArray[np.float32], NDArray[np.int8], NDArray[np.int64]]:
        """Memory of one worker: floats, winners, and the block size that the borders were cleared for."""
        room = np.zeros(self.floats + _LINE + SLACK, np.float32)
        start = -room.ctypes.data // room.itemsize % _LINE  # vectors that straddle two cache lines cost 3 % of a step
        return room[start : start + self.floats], np.zeros(self.bytes, np.int8), np.zeros(1, np.int64)


@dataclass(slots=True)
class _Stage:
    layer: Conv | Linear
    at: int  # position of the layer in the network
    relu: bool = False
    pool: int = 1


def refuse(at: int, layer: Layer | tuple[Layer, ...], why: str) -> TrainingError:
    """The error for a layer that the fused engine does not take."""
    return TrainingError(f"layer {at} ({layer})", f"the fused engine {why}", "use torch_workers or torch_reference")


def _is_plain_pool(layer: Layer) -> TypeGuard[MaxPool]:
    """Whether this is a max-pool of at most 11 x 11, side by side and without a border."""
    return isinstance(layer, MaxPool) and layer.size <= 11 and layer.stride in (0, layer.size) and not layer.padding


def stages_of(network: Network) -> list[_Stage]:
    """Group layers into stages, or raise TrainingError that names the layer which does not fit."""
    found: list[_Stage] = []
    for at, layer in enumerate(network.layers):
        last = found[-1] if found else None
        if isinstance(layer, Conv | Linear):
            if not layer.bias or getattr(layer, "stride", 1) != 1:
                raise refuse(at, layer, "takes layers with a bias and a stride of 1 only")
            found.append(_Stage(layer, at))
        elif isinstance(layer, Flatten):
            continue
        elif last is None:
            raise refuse(at, layer, "wants a convolution or a linear layer first")
        elif isinstance(layer, ReLU):
            last.relu = True
        elif _is_plain_pool(layer) and isinstance(last.layer, Conv) and last.pool == 1:
            last.pool = layer.size
        else:
            raise refuse(at, layer, "takes one max-pool of at most 11 x 11 after each convolution")
    if not found or not isinstance(found[-1].layer, Linear) or found[-1].relu:
        raise refuse(len(network.layers) - 1, network.layers[-1:], "wants a linear layer last")
    return found


def layout_of(network: Network) -> Workspace:
    """Tables of a network, with room for `BLOCK` samples at a time."""
    stages = stages_of(network)
    table = np.zeros((len(stages) + 1, COLUMNS), np.int64)
    weights = network.tensors
    for i, stage in enumerate(stages):
        row = table[i]
        shape = network.shapes[stage.at]
        row[WEIGHT], row[BIAS] = weights[2 * i].start, weights[2 * i + 1].start
        row[CO], row[RELU], row[POOL] = stage.layer.out, stage.relu, stage.pool
        row[CI], row[HI], row[WI] = (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, 1)
        if isinstance(stage.layer, Conv):
            side = [n + 2 * stage.layer.padding - stage.layer.kernel + 1 for n in shape[1:]]
            row[CONV], row[KERNEL], row[PAD] = 1, stage.layer.kernel, stage.layer.padding
            row[OH], row[OW] = (n // stage.pool * stage.pool for n in side)
    table[-1, CI], table[-1, HI], table[-1, WI] = network.classes, 1, 1
    return _place(table, BLOCK)


def _place(table: NDArray[np.int64], block: int) -> Workspace:
    """Give every buffer its place. Scratch that lives within one stage is shared."""
    floats = bytes_ = 0
    rows = pixels = turned = 0
    for i, row in enumerate(table):
        border = 2 * row[PAD]
        plane = (row[HI] + border) * (row[WI] + border)
        row[ACT], floats = floats, floats + _room(row[CI] * plane * block)
        row[SPACED] = row[CI] if i == 0 else -(-row[CI] // LANES) * LANES
        if i > 0:
            room = plane * row[SPACED] if row[CONV] else row[CI]
            row[GRAD], floats = floats, floats + _room(room * block)
        if row[CONV]:
            row[VECTORS] = -(-row[KERNEL] * row[SPACED] // LANES)
            taps = row[CO] * row[KERNEL] * row[VECTORS] * LANES
            row[TAPS], floats = floats, floats + _room(taps)
            row[SPREAD], floats = floats, floats + (_room(taps) if i > 0 else 0)
            row[WINNER], bytes_ = bytes_, bytes_ + _room(row[CO] * row[OH] * row[OW] // row[POOL] ** 2 * block)
            rows = max(rows, row[CO] * row[POOL] * (row[OW] * block + LANES))
            pixels = max(pixels, plane * row[SPACED] * GROUP)
        elif i == 0:
            row[TURNED], floats = floats, floats + _room(row[CI] * block)
        else:
            turned = max(turned, row[CI] * block)
    table[:, ROWS], floats = floats, floats + _room(rows)
    table[:, PIXELS], floats = floats, floats + _room(pixels)
    table[1:, TURNED], floats = floats, floats + _room(turned)
    return Workspace(table, int(floats), int(bytes_) + LANES)


def _room(elements: int) -> int:
    """Rounded up, with slack for reads past the end and an odd number of cache lines against aliasing."""
    return int(-(-(elements + 2 * LANES) // 16) * 16 + 16)
