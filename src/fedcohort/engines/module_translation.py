"""From a torch module to a `Network`, where every layer is one of those that the fused engine knows.

The module is traced with torch.fx. Its graph must be a chain of known layers, in which two ways from one value may
meet in an addition (a residual). The network then has the same parameters in the same order, so that models of one
are models of the other. What is not exactly the same (dilation, ceil_mode, other padding, shared layers ...) is
refused with the reason; at the end both are run on a few inputs, so that what slips through is found.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedcohort.engines.networks import (
    AvgPool,
    BatchNorm,
    Conv,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GroupNorm,
    Layer,
    Linear,
    MaxPool,
    Network,
    ReLU,
    Residual,
)
from fedcohort.errors import TrainingError

SUPPORTED = (
    "Conv2d, Linear, ReLU, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d(1), Flatten, GroupNorm, BatchNorm2d, Dropout, "
    "Identity and additions"
)
TOLERANCE = 1e-4  # between module and network, of the largest output


class Untranslatable(TrainingError):
    """The module is not a chain of layers that the fused engine knows; the sentence says which layer is not."""


def translate(module: Any, input_shape: tuple[int, ...]) -> Network:
    """The network equal to this torch module on inputs of this shape (without the batch axis).

    Raises :class:`Untranslatable` with the reason where there is none. The module is left as it was.

    >>> from torch import nn
    >>> translate(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (4,)).n_params
    67
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise _no(f"a {type(module).__name__}", "only a torch.nn.Module can be translated")
    odd = next((n for n, p in module.named_parameters() if p.dtype != torch.float32 or not p.requires_grad), None)
    if odd is not None:
        raise _no(f"parameter {odd}", "it is not a trainable float32 parameter")
    for name, m in module.named_modules():
        if any(getattr(m, kind) for kind in _HOOKS) or hasattr(m, "parametrizations"):
            raise _no(f"layer {name or type(m).__name__}", "it has hooks or parametrisations")
    modes = {m: m.training for m in module.modules()}
    try:
        reader = _Reader(module, _traced(module, tuple(input_shape)))
        network = Network(tuple(input_shape), reader.layers())
        _check(module, network, reader.order)
    finally:
        for m, training in modes.items():
            m.training = training
    return network


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _no(value: str, rule: str) -> Untranslatable:
    return Untranslatable(value, rule, "use a torch engine, or other layers")


def _traced(module: Any, shape: tuple[int, ...]) -> Any:
    """The module's graph with the shape of every value; refused where training and evaluation run other code."""
    import torch
    from torch import fx
    from torch.fx.passes.shape_prop import ShapeProp

    name = type(module).__name__
    try:
        graphs = [fx.Tracer().trace(module.train(mode)) for mode in (True, False)]
        with torch.no_grad():
            module(torch.zeros(2, *shape))  # what does not run is said in the module's words, not in those of torch.fx
            ShapeProp(fx.GraphModule(module, graphs[1])).propagate(torch.zeros(2, *shape))
    except Exception as error:  # a module's own code may raise anything
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise _no(f"module {name} on inputs of shape {shape}", f"torch.fx cannot trace it ({text[:160]})") from None
    if str(graphs[0]) != str(graphs[1]):
        raise _no(f"module {name}", "its forward runs other code in training than in evaluation")
    return graphs[1]


@dataclass(frozen=True, slots=True)
class _Traced:
    """How a value is made from an earlier one: by no layer, one or several, which belong to these modules."""

    parent: _Traced | None
    layers: tuple[Layer, ...]
    modules: tuple[str, ...]
    depth: int


class _Reader:
    """Walks the graph from its input to its output; every value knows the one value it is made from."""

    def __init__(self, module: Any, graph: Any) -> None:
        self._modules = dict(module.named_modules())
        self._nodes = list(graph.nodes)
        self._rank = {name: at for at, (name, _) in enumerate(module.named_parameters())}
        self._values: dict[Any, _Traced] = {}
        self._used: set[str] = set()
        self.order: tuple[str, ...] = ()  # modules behind the network's layers, one after the other

    def layers(self) -> tuple[Layer, ...]:
        """All layers from the input to the output."""
        for node in self._nodes:
            if node.op == "placeholder":
                if self._values and node.users:
                    raise _no(f"input {node.name}", "a network has one input")
                self._values[node] = _Traced(None, (), (), 0)
            elif node.op == "output":
                given = node.args[0]
                if given not in self._values:
                    raise _no(f"an output of type {type(given).__name__}", "a network gives one tensor")
                shape = _shape(given)
                if len(shape) != 1:
                    raise _no(f"outputs of shape {shape}", "a network gives one row of scores for every sample")
                layers, self.order = _path(self._values[given], None)
                return layers
            elif node.users or node.op == "call_module":
                self._read(node)
        raise _no("a graph without an output", "a network gives one tensor")

    def _read(self, node: Any) -> None:
        if node.op == "call_module":
            found = self._module_layers(node)
        elif node.op in ("call_function", "call_method"):
            if _is_size(node):
                return
            if _name(node) in _ADD:
                self._values[node] = self._sum(node)
                return
            found = _function_layers(node), ()
        else:
            raise _no(f"value {node.name}", "it is read from outside the chain of layers")
        if not node.args or node.args[0] not in self._values:
            raise _no(f"layer {node.name}", "its input is not a value of the chain")
        before = self._values[node.args[0]]
        self._values[node] = _Traced(before, *found, before.depth + 1)

    def _module_layers(self, node: Any) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
        name, m = node.target, self._modules[node.target]
        owns = any(True for _ in m.parameters())
        if name in self._used and (owns or "Dropout" in type(m).__name__):
            raise _no(f"layer {name}", "it is used more than once")
        self._used.add(name)
        layers = _layers_of(name, m, _shape(node.args[0]))
        return layers, (name,) if owns else ()

    def _sum(self, node: Any) -> _Traced:
        """The residual that ends in this addition."""
        if len(node.args) != 2 or node.kwargs or any(a not in self._values for a in node.args):
            raise _no(f"addition {node.name}", "only two values of the chain can be added")
        a, b = (self._values[n] for n in node.args)
        if _shape(node.args[0]) != _shape(node.args[1]):
            raise _no(f"addition {node.name}", "its two values have different shapes")
        meet = _meeting(a, b)
        ways = [_path(a, meet), _path(b, meet)]
        ways.sort(key=lambda way: (not way[0], self._first(way[1])))  # the body's parameters come first
        (body, mine), (shortcut, other) = ways
        return _Traced(meet, (Residual(body, shortcut),), mine + other, meet.depth + 1)

    def _first(self, modules: tuple[str, ...]) -> int:
        names = (f"{m}.weight" for m in modules)
        return min((self._rank[n] for n in names if n in self._rank), default=len(self._rank))


def _path(end: _Traced, start: _Traced | None) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Layers and modules that lead from `start` to `end`."""
    layers: tuple[Layer, ...] = ()
    modules: tuple[str, ...] = ()
    at: _Traced | None = end
    while at is not None and at is not start:
        layers, modules, at = at.layers + layers, at.modules + modules, at.parent
    return layers, modules


def _meeting(a: _Traced, b: _Traced) -> _Traced:
    """The last value that both are made from."""
    while a is not b:
        if a.depth >= b.depth and a.parent is not None:
            a = a.parent
        elif b.parent is not None:
            b = b.parent
    return a


def _shape(node: Any) -> tuple[int, ...]:
    meta: Any = getattr(node, "meta", {}).get("tensor_meta")
    return tuple(meta.shape[1:]) if hasattr(meta, "shape") else ()


def _one(name: str, kind: str, value: Any) -> int:
    """A number that is the same in both directions."""
    both = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value, value)
    if len(both) != 2 or both[0] != both[1] or not isinstance(both[0], int):
        raise _no(f"layer {name} with {kind} = {value!r}", "it must be the same whole number in both directions")
    return both[0]


def _refuse(name: str, m: Any, **plain: Any) -> None:
    """Refuse options that differ from these."""
    for option, value in plain.items():
        given = getattr(m, option)
        if given not in (value, (value, value)):
            raise _no(f"layer {name} with {option} = {given!r}", f"a network's {type(m).__name__} has {value!r}")


def _layers_of(name: str, m: Any, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    """The layers of one torch module; subclasses may do anything and are refused."""
    made = _MODULES.get(f"{type(m).__module__.partition('.')[0]}.{type(m).__name__}")
    if made is None:
        raise _no(f"layer {name} ({type(m).__name__})", f"it is not one of {SUPPORTED}")
    return made(name, m, shape)


def _conv(name: str, m: Any, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    _refuse(name, m, groups=1, dilation=1, padding_mode="zeros")
    kernel, stride = _one(name, "kernel_size", m.kernel_size), _one(name, "stride", m.stride)
    padding = m.padding
    if padding == "valid":
        padding = 0
    elif padding == "same" and kernel % 2 == 1:
        padding = kernel // 2
    return (Conv(m.out_channels, kernel, _one(name, "padding", padding), stride, m.bias is not None),)


def _max_pool(name: str, m: Any, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    _refuse(name, m, dilation=1, ceil_mode=False, return_indices=False)
    size, stride = _one(name, "kernel_size", m.kernel_size), _one(name, "stride", m.stride)
    return (MaxPool(size, 0 if stride == size else stride, _one(name, "padding", m.padding)),)


def _avg_pool(name: str, m: Any, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    _refuse(name, m, ceil_mode=False, padding=0, divisor_override=None)
    size, stride = _one(name, "kernel_size", m.kernel_size), _one(name, "stride", m.stride)
    return (AvgPool(size, 0 if stride == size else stride),)


def _global_pool(name: str, m: Any, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    _refuse(name, m, output_size=1)
    return (GlobalAvgPool(),)


def _flatten(name: str, m: Any, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    _refuse(name, m, start_dim=1)
    if m.end_dim not in (-1, len(shape)):
        raise _no(f"layer {name} with end_dim = {m.end_dim}", "a network flattens all axes")
    return (Flatten(),)


def _group_norm(name: str, m: Any, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    _refuse(name, m, affine=True)
    return (GroupNorm(m.num_groups, m.eps),)


def _batch_norm(name: str, m: Any, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    _refuse(name, m, affine=True, track_running_stats=True)
    if m.momentum is None:
        raise _no(f"layer {name} with momentum = None", "a network's running statistics have a momentum")
    return (BatchNorm(m.eps, m.momentum),)


def _dropout(name: str, m: Any, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    if m.p >= 1.0:
        raise _no(f"layer {name} with p = {m.p}", "a network's dropout keeps something")
    return (Dropout(m.p),)


_MODULES = {
    "torch.Conv2d": _conv,
    "torch.Linear": lambda name, m, shape: (Linear(m.out_features, m.bias is not None),),
    "torch.ReLU": lambda name, m, shape: (ReLU(),),
    "torch.MaxPool2d": _max_pool,
    "torch.AvgPool2d": _avg_pool,
    "torch.AdaptiveAvgPool2d": _global_pool,
    "torch.Flatten": _flatten,
    "torch.GroupNorm": _group_norm,
    "torch.BatchNorm2d": _batch_norm,
    "torch.Dropout": _dropout,
    "torch.Identity": lambda name, m, shape: (),
    "fedcohort.SeededDropout": _dropout,
}
_ADD = ("add", "add_", "iadd")
_RESHAPES = ("view", "reshape")


def _name(node: Any) -> str:
    """Name of the function or method that a node calls, if that is torch's or an operator's own."""
    if node.op != "call_function":
        return str(node.target)
    home = getattr(node.target, "__module__", "") or ""
    own = home.startswith(("torch", "_operator", "operator")) or node.target in (operator.add, operator.iadd, getattr)
    return str(node.target.__name__) if own else f"own function {node.target.__name__}"


def _is_size(node: Any) -> bool:
    """Whether this is x.size(...), x.shape or an entry of it, which reshapes use."""
    if node.op == "call_method":
        return bool(node.target == "size")
    if _name(node) == "getattr":
        return bool(node.args[1] == "shape")
    return _name(node) == "getitem" and hasattr(node.args[0], "op") and _is_size(node.args[0])


def _function_layers(node: Any) -> tuple[Layer, ...]:
    """The layers of a call of a function or method."""
    name, arguments, shape = _name(node), node.args[1:], _shape(node.args[0] if node.args else node)
    if name in ("relu", "relu_"):
        return (ReLU(),)
    flat = name == "flatten" and (arguments in ((1,), (1, -1)) or (not arguments and node.kwargs == {"start_dim": 1}))
    if flat or (name in _RESHAPES and _flattens(node, arguments, shape)):
        return (Flatten(),)
    if name == "adaptive_avg_pool2d" and arguments in ((1,), ((1, 1),)):
        return (GlobalAvgPool(),)
    if name == "mean" and len(shape) == 3 and arguments in (((2, 3),), ([2, 3],), ((-2, -1),), ([-2, -1],)):
        return (GlobalAvgPool(),) if node.kwargs.get("keepdim") else (GlobalAvgPool(), Flatten())
    if name in ("max_pool2d", "boolean_dispatch", "fn") and "max_pool2d" in node.name:
        return _pooling(node, arguments, MaxPool)
    if name == "avg_pool2d":
        return _pooling(node, arguments, AvgPool)
    raise _no(f"layer {node.name} ({name})", f"it is not one of {SUPPORTED}")


def _pooling(node: Any, arguments: tuple[Any, ...], kind: type[MaxPool | AvgPool]) -> tuple[Layer, ...]:
    options = dict(zip(("kernel_size", "stride"), arguments, strict=False))
    options |= {k: v for k, v in node.kwargs.items() if v not in (False, None, 0) or k in ("kernel_size", "stride")}
    harmless = {"dilation": 1, "count_include_pad": True}
    odd = [k for k, v in options.items() if k not in ("kernel_size", "stride") and harmless.get(k) != v]
    if odd or len(arguments) > 2:
        raise _no(f"layer {node.name}", "only the size and the stride of a pooling function can be given")
    size = _one(node.name, "kernel_size", options["kernel_size"])
    stride = _one(node.name, "stride", options.get("stride") or size)
    return (kind(size, 0 if stride == size else stride),)


def _flattens(node: Any, arguments: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """Whether a reshape is to (samples, all features)."""
    if len(arguments) == 1 and isinstance(arguments[0], tuple | list):
        arguments = tuple(arguments[0])
    if len(arguments) != 2 or not shape:
        return False
    rows, columns = arguments
    whole = columns == math.prod(shape) or columns == -1
    if hasattr(rows, "op"):
        return whole and _is_size(rows)
    return bool(whole and rows == -1 and columns != -1)


def _check(module: Any, network: Network, order: tuple[str, ...]) -> None:
    """Same parameters and buffers in the same order, and the same outputs on a few inputs."""
    import torch

    from fedcohort.engines.torch_layers import sequential

    try:
        twin = sequential(network).eval()
    except TrainingError as error:
        raise _no(error.value, error.rule) from None
    modules = dict(module.named_modules())
    for kind in ("named_parameters", "named_buffers"):
        own = [name for name, _ in getattr(module, kind)()]
        used = [f"{m}.{name}" if m else name for m in order for name, _ in getattr(modules[m], kind)(recurse=False)]
        if sorted(own) != sorted(used):
            idle = sorted(set(own) ^ set(used))[0]
            raise _no(f"{kind[6:-1]} {idle}", "no layer of the chain uses it")
        if own != used:
            raise _no(f"module {type(module).__name__}", "its layers are used in another order than they are defined")
    pairs = [
        *zip(module.parameters(), twin.parameters(), strict=True),
        *zip(module.buffers(), twin.buffers(), strict=True),
    ]
    with torch.no_grad():
        for mine, other in pairs:
            other.copy_(mine)
        x = torch.linspace(-2.0, 2.0, 3 * math.prod(network.input_shape)).sin().reshape(3, *network.input_shape)
        a, b = module.eval()(x), twin(x)
    if a.shape != b.shape or not bool((a - b).abs().max() <= TOLERANCE * max(float(a.abs().max()), 1e-6)):
        raise _no(f"module {type(module).__name__}", "the network made from it gives other outputs")
