"""Max-pools that run before the ReLU in front of them: the same numbers, and fewer of them to pass through the ReLU."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

FRESH = (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)  # layers whose output is a tensor of its own
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class PoolFirst(nn.Sequential):
    """An `nn.Sequential` that, called as a whole, runs every max-pool behind a ReLU before it.

    The largest of a window is the same before and after a ReLU, and so is whom its gradient goes to, to the last bit.
    Its layers stay where they are: who takes them one by one, by number or in slices, gets what was written.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The layers in their cheaper order."""
        for layer in pooled_first(list(self)):
            input = layer(input)
        return input


def pooled_first(layers: list[nn.Module]) -> list[nn.Module]:
    """The layers in the order in which they run."""
    out = list(layers)
    for at in range(len(out) - 1):
        if _may_swap(layers[at - 1] if at else None, out[at], out[at + 1]):
            out[at], out[at + 1] = out[at + 1], out[at]
    return out


def pool_first(module: nn.Module) -> int:
    """Let every max-pool behind a ReLU run before it, in each Sequential that is called as a whole; how many may."""
    count = 0
    for chain in [m for m in module.modules() if type(m) is nn.Sequential]:
        layers = list(chain)
        moved = sum(type(a) is nn.ReLU and a is not b for a, b in zip(layers, pooled_first(layers), strict=True))
        if moved:
            cast("Any", chain).__class__ = PoolFirst
            count += moved
    return count


def _may_swap(before: nn.Module | None, relu: nn.Module, pool: nn.Module) -> bool:
    """Whether nobody can tell: no hooks, no indices, and no tensor of somebody else that the ReLU would change."""
    if type(relu) is not nn.ReLU or type(pool) is not nn.MaxPool2d or pool.return_indices:
        return False
    if any(getattr(m, name) for m in (relu, pool) for name in HOOKS):
        return False
    return not relu.inplace or (type(before) in FRESH and not cast("nn.Module", before)._forward_hooks)
