"""From a network of any known layers to the table of steps that the kernels of a layer graph walk through.

Every value has a buffer for itself and one for its gradient, with a border of zeros where a convolution reads beyond
the edge. ReLU, dropout and additions work in place; where somebody else still needs what they would overwrite, a copy
is made first. A gradient is written by the last step that reads the value, and added to by all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines import dropout_masks, networks
from fedcohort.engines.networks import Layer, Network, window_of
from fedcohort.errors import TrainingError

from . import graph_places as places
from . import graph_rows as at
from . import graph_tiles
from .blocks import panels
from .compile import Compiled
from .compile import prepare as compile_all
from .dots import weight_sums
from .graph_norms import norm_backward_step, norm_forward_step
from .graph_products import conv_backward_step, conv_forward_step, linear_backward_step, linear_forward_step
from .kernels import take
from .loss import by_logits, measure
from .vectors import LANES, SLACK
from .workspace import ACT, CI, COLUMNS, CONV, GRAD, HI, PAD, WI

Shape = tuple[int, int, int]

# Forward and backward of every kind of step. A network compiles those that it uses.
KINDS: dict[str, tuple[Compiled, Compiled]] = {
    "conv": (conv_forward_step, conv_backward_step),
    "linear": (linear_forward_step, linear_backward_step),
    "norm": (norm_forward_step, norm_backward_step),
    "relu": (places.relu_forward_step, places.relu_backward_step),
    "add": (places.add_forward_step, places.add_backward_step),
    "copy": (places.copy_forward_step, places.copy_backward_step),
    "max": (places.max_forward_step, places.max_backward_step),
    "mean": (places.mean_forward_step, places.mean_backward_step),
    "dropout": (places.dropout_forward_step, places.dropout_backward_step),
}
_PARTS = (take, measure, by_logits)


@dataclass(slots=True, eq=False)
class _Buffer:
    """One value and its gradient."""

    shape: Shape
    border: int = 0
    edge: int = 0  # border of the gradient
    value: int = 0  # place in the workspace
    gradient: int = 0
    learns: bool = True  # whether anybody wants its gradient

    @property
    def sizes(self) -> tuple[int, int]:
        """Floats of value and gradient for one sample."""
        c, h, w = self.shape
        return tuple(c * (h + 2 * b) * (w + 2 * b) for b in (self.border, self.edge))  # type: ignore[return-value]


@dataclass(slots=True, eq=False)
class _Value:
    """A buffer as it is at one moment."""

    buffer: _Buffer
    shared: bool = False  # somebody else reads it later
    sealed: bool = False  # the step that made it needs it in the backward pass


@dataclass(slots=True)
class _Step:
    kind: str
    source: _Buffer
    out: _Buffer
    second: _Buffer | None = None
    fields: dict[int, int] = field(default_factory=dict)
    kept: int = 0  # floats per sample that the backward step needs
    scratch: int = 0  # floats per sample
    constants: tuple[float, ...] = ()
    fixed: int = 0  # floats that the backward step needs, whatever the number of samples
    shapes: tuple[Shape, Shape] = ((0, 0, 0), (0, 0, 0))

    def __post_init__(self) -> None:
        self.shapes = self.source.shape, self.out.shape


@dataclass(frozen=True, slots=True)
class Program:
    """What the kernels need to know of a network, with room for `room` samples at a time."""

    steps: NDArray[np.int64]
    first: NDArray[np.int64]  # the input, as a row of a stage table
    last: NDArray[np.int64]  # the logits, likewise
    edged: NDArray[np.int64]  # (k, 2): buffers with a border: place, floats of one sample
    constants: tuple[tuple[int, float], ...]
    floats: int
    room: int
    kinds: tuple[str, ...]
    parts: NDArray[np.int64]  # addresses of what takes the samples, measures losses and makes gradients of them

    def prepare(self, gradients: bool, users: Sequence[Compiled]) -> None:
        """Compile or load what these steps need, and those who run them; write the addresses into the tables."""
        if self.steps[0, at.BACKWARD if gradients else at.FORWARD]:
            return
        pairs = [KINDS[kind] for kind in self.kinds]
        forward = list(dict.fromkeys([panels, *_PARTS, *(one for one, _ in pairs)]))
        backward = list(dict.fromkeys([weight_sums, *(other for _, other in pairs)]))
        compile_all([*forward, *(backward if gradients else ()), *users], backward)
        self.parts[:] = [one.address for one in _PARTS]
        self.steps[:, at.PANELS] = panels.address
        self.steps[:, at.FORWARD] = [one.address for one, _ in pairs]
        if gradients:
            self.steps[:, at.SUMS] = weight_sums.address
            self.steps[:, at.BACKWARD] = [other.address for _, other in pairs]

    def workspace(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Memory of one worker, and the block size that the borders were cleared for."""
        found = np.zeros(self.floats + 16 + SLACK, np.float32)
        start = -found.ctypes.data // found.itemsize % 16
        ws = found[start : start + self.floats]
        for place, number in self.constants:
            ws[place] = number
        return ws, np.zeros(1, np.int64)


class _Builder:
    """Turns layers into steps."""

    def __init__(self, network: Network) -> None:
        if not network.tensors:
            raise refuse(network, "wants a layer with parameters")
        self.steps: list[_Step] = []
        self.input = _Buffer(_spatial(network.input_shape), learns=False)
        self.buffers = [self.input]
        self._tensors = iter(network.tensors)
        self._statistics = self._dropouts = 0
        self.output = self._chain(network.layers, _Value(self.input)).buffer
        if len(network.shapes[-1]) != 1:
            raise refuse(network, "wants one row of scores for every sample at the end")
        if self._dropouts > dropout_masks.LAYERS:
            raise refuse(network, f"takes at most {dropout_masks.LAYERS} dropouts")
        if self.output.edge or self.output.border:
            self.output = self._copy(_Value(self.output)).buffer

    def _chain(self, layers: tuple[Layer, ...], value: _Value) -> _Value:
        for layer in layers:
            value = self._layer(layer, value)
        return value

    def _new(self, shape: Shape) -> _Buffer:
        self.buffers.append(_Buffer(shape))
        return self.buffers[-1]

    def _copy(self, value: _Value) -> _Value:
        out = self._new(value.buffer.shape)
        self.steps.append(_Step("copy", value.buffer, out))
        return _Value(out)

    def _own(self, value: _Value) -> _Value:
        """The value, in a buffer that may be overwritten."""
        return self._copy(value) if value.shared else value

    def _layer(self, layer: Layer, value: _Value) -> _Value:
        match layer:
            case networks.Conv():
                return self._conv(layer, value)
            case networks.Linear():
                return self._linear(layer, value)
            case networks.ReLU():
                return self._relu(value)
            case networks.GroupNorm(groups, eps):
                return self._norm(value, groups, (eps,))
            case networks.BatchNorm(eps, momentum):
                return self._norm(value, 0, (eps, momentum))
            case networks.Dropout(p):
                return self._dropout(value, p)
            case networks.Residual(body, shortcut):
                return self._residual(body, shortcut, value)
            case networks.Flatten():
                return self._flatten(value)
            case networks.GlobalAvgPool():
                _, high, wide = value.buffer.shape
                return self._pool("mean", value, (high, wide), max(high, wide), 0)
            case networks.MaxPool() | networks.AvgPool():
                size, stride, padding = window_of(layer)
                kind = "max" if isinstance(layer, networks.MaxPool) else "mean"
                return self._pool(kind, value, (size, size), stride, padding)

    def _weights(self, bias: bool) -> dict[int, int]:
        found = {at.WEIGHT: next(self._tensors).start}
        return {**found, at.BIAS: next(self._tensors).start if bias else -1}

    def _conv(self, layer: networks.Conv, value: _Value) -> _Value:
        source, k, stride, pad = value.buffer, layer.kernel, layer.stride, layer.padding
        c, high, wide = source.shape
        side = [(n + 2 * pad - k) // stride + 1 for n in (high, wide)]
        out = self._new((layer.out, side[0], side[1]))
        across = -(-(wide + 2 * pad) // stride)
        tiled, fixed = False, 0
        if stride == 1:
            source.border = max(source.border, pad)
            out.edge = max(k - 1 - pad, 0)
            kept = scratch = 0
            if tiled := graph_tiles.pays(k, c, side[1]):
                fixed, kept, scratch = graph_tiles.room(k, (c, layer.out), (high, side[0]), side[1], pad)
        else:
            down = -(-(high + 2 * pad) // stride)
            out.edge = max((k - 1) // stride, down - side[0], across - side[1])
            kept, scratch = c * (high + 2 * pad) * stride * across, c * stride * across
        fields = {at.SIZE_Y: k, at.SIZE_X: k, at.STRIDE: stride, at.PAD: pad, at.TILED: int(tiled)}
        fields |= self._weights(layer.bias)
        self.steps.append(_Step("conv", source, out, None, fields, kept, scratch, fixed=fixed))
        return _Value(out)

    def _linear(self, layer: networks.Linear, value: _Value) -> _Value:
        source = value.buffer
        out = self._new((layer.out, 1, 1))
        self.steps.append(_Step("linear", source, out, None, self._weights(layer.bias), 0, source.shape[0]))
        return _Value(out)

    def _relu(self, value: _Value) -> _Value:
        last = self.steps[-1] if self.steps else None
        if last and last.kind in ("norm", "add") and last.out is value.buffer and not value.shared:
            last.fields[at.RELU] = 1
            return _Value(value.buffer, sealed=True)
        own = self._own(value).buffer
        self.steps.append(_Step("relu", own, own))
        return _Value(own, sealed=True)

    def _norm(self, value: _Value, groups: int, constants: tuple[float, ...]) -> _Value:
        source = value.buffer
        channels, high, wide = source.shape
        fields = {at.GROUPS: groups, **self._weights(True)}
        if not groups:
            fields[at.STATS] = self._statistics
            self._statistics += 2 * channels
        if (channels // groups if groups else 1) * high * wide == 1:
            value_, rule = (
                f"a normalisation of shape {source.shape}",
                "the fused engine wants more than one value in each",
            )
            raise TrainingError(value_, rule, "use torch_workers or torch_reference")
        out = self._new(source.shape)
        self.steps.append(_Step("norm", source, out, None, fields, 2 * (groups or channels), 0, constants))
        return _Value(out)

    def _dropout(self, value: _Value, p: float) -> _Value:
        own = self._own(value)
        fields = {at.ORDER: self._dropouts, at.THRESHOLD: dropout_masks.threshold(p)}
        self._dropouts += 1
        self.steps.append(_Step("dropout", own.buffer, own.buffer, None, fields, 0, 0, (1.0 / (1.0 - p),)))
        return _Value(own.buffer, sealed=own.sealed)

    def _residual(self, body: tuple[Layer, ...], shortcut: tuple[Layer, ...], value: _Value) -> _Value:
        value = _Value(value.buffer, shared=True, sealed=value.sealed)
        sides = self._chain(body, value), self._chain(shortcut, value)
        one, other = sides if not (sides[0].shared or sides[0].sealed) else sides[::-1]
        if one.shared or one.sealed:
            one = self._copy(one)
        self.steps.append(_Step("add", one.buffer, one.buffer, other.buffer))
        return _Value(one.buffer)

    def _flatten(self, value: _Value) -> _Value:
        """[channel][y][x] is one axis already, unless there are borders in it."""
        source = value.buffer
        made = self._copy(value) if value.shared or source.border or source.edge else value
        made.buffer.shape = (math.prod(source.shape), 1, 1)
        return made

    def _pool(self, kind: str, value: _Value, window: tuple[int, int], stride: int, padding: int) -> _Value:
        source = value.buffer
        c, high, wide = source.shape
        side = [(n + 2 * padding - size) // stride + 1 for n, size in zip((high, wide), window, strict=True)]
        out = self._new((c, side[0], side[1]))
        fields = {at.SIZE_Y: window[0], at.SIZE_X: window[1], at.STRIDE: stride, at.PAD: padding}
        kept = math.prod(out.shape) if kind == "max" else 0
        self.steps.append(_Step(kind, source, out, None, fields, kept))
        return _Value(out)


def _spatial(shape: tuple[int, ...]) -> Shape:
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, 1)


def refuse(network: Network, why: str) -> TrainingError:
    """The error for a network that the fused engine does not take."""
    end = len(network.layers) - 1
    value = f"layer {end} ({network.layers[end]})" if network.layers else "a network without layers"
    return TrainingError(value, f"the fused engine {why}", "use torch_workers or torch_reference")


def program_of(network: Network, room: int) -> Program:
    """The steps of a network, with buffers for `room` samples."""
    made = _Builder(network)
    floats = _room(1)  # the zero
    for buffer in made.buffers:
        value, gradient = buffer.sizes
        buffer.value, floats = floats, floats + _room(value * room)
        if buffer.learns:
            buffer.gradient, floats = floats, floats + _room(gradient * room)
    scratch, floats = floats, floats + _room(max((s.scratch for s in made.steps), default=0) * room)
    table = np.zeros((len(made.steps), at.WIDTH), np.int64)
    constants: list[tuple[int, float]] = []
    for row, step in zip(table, made.steps, strict=True):
        for column, number in step.fields.items():
            row[column] = number
        row[at.SCRATCH] = scratch
        row[at.KEPT], floats = floats, floats + _room(step.kept * room + step.fixed)
        row[at.CONSTANTS], floats = floats, floats + _room(len(step.constants))
        constants += [(int(row[at.CONSTANTS]) + i, number) for i, number in enumerate(step.constants)]
        _describe(row, step)
    _share_out(table, made)
    edged = [(b.value, b.sizes[0]) for b in made.buffers if b.border]
    edged += [(b.gradient, b.sizes[1]) for b in made.buffers if b.edge and b.learns]
    first, last = _ends(made)
    places = np.array(edged, np.int64).reshape(-1, 2)
    return Program(
        table,
        first,
        last,
        places,
        tuple(constants),
        floats,
        room,
        tuple(s.kind for s in made.steps),
        np.zeros(3, np.int64),
    )


def _describe(row: NDArray[np.int64], step: _Step) -> None:
    """Shapes and places of a step's values."""
    a, b = step.source, step.out
    row[at.S_C : at.S_W + 1], row[at.D_C : at.D_W + 1] = step.shapes
    row[at.S_B : at.S_GAT + 1] = a.border, a.value, a.edge, a.gradient
    row[at.D_B : at.D_GAT + 1] = b.border, b.value, b.edge, b.gradient
    if step.second is not None:
        c = step.second
        row[at.T_B : at.T_GAT + 1] = c.border, c.value, c.edge, c.gradient


def _share_out(table: NDArray[np.int64], made: _Builder) -> None:
    """Who writes a gradient and who adds to it: backward, the first one writes."""
    written: set[_Buffer] = set()

    def how(buffer: _Buffer) -> int:
        if not buffer.learns:
            return -1
        found = int(buffer in written)
        written.add(buffer)
        return found

    for row, step in zip(table[::-1], reversed(made.steps), strict=True):
        if step.second is not None:
            row[at.T_WRITES] = how(step.second)
        if step.source is not step.out:
            row[at.WRITES] = how(step.source)
        elif not step.source.learns:
            row[at.WRITES] = -1


def _ends(made: _Builder) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Input and logits as rows of the tables that `take` and the loss read."""
    first, last = np.zeros((2, COLUMNS), np.int64)
    first[CONV], first[PAD], first[ACT] = 1, made.input.border, made.input.value
    first[CI], first[HI], first[WI] = made.input.shape
    last[CI], last[ACT], last[GRAD] = made.output.shape[0], made.output.value, made.output.gradient
    return first, last


def _room(elements: int) -> int:
    """Rounded up, with slack for reads past the end and an odd number of cache lines against aliasing."""
    return int(-(-(elements + 2 * LANES) // 16) * 16 + 16)
