"""Ways to run the same PyTorch training: memory layout, compilation. Which one is fastest depends on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedcohort.engines.interface import ClientData
from fedcohort.engines.recipe import Modeled
from fedcohort.engines.torch_reference import Learned, ReferenceEngine
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Part, Plan

if TYPE_CHECKING:
    from torch import Tensor

HELD = 1 << 28  # bytes of one client's inputs that are brought together before it trains


@dataclass(frozen=True, slots=True)
class Variant:
    """How the training of torch_reference is run."""

    channels_last: bool = False
    compiled: bool = False
    recurrent: bool = False  # GRUs in the kernels of the fused engine

    def __str__(self) -> str:
        kinds = (
            ("channels-last", self.channels_last),
            ("torch.compile", self.compiled),
            ("recurrent kernels", self.recurrent),
        )
        return " + ".join(name for name, on in kinds if on) or "plain"


class VariantEngine(ReferenceEngine):
    """The loop of torch_reference with another layout, compiled or not, and one call per optimiser step."""

    name = "torch_workers"

    def __init__(self, model: Modeled, data: ClientData, variant: Variant) -> None:
        super().__init__(model, data)
        from fedcohort.engines.torch_pooling import pool_first

        self._channels_last = variant.channels_last
        module: Any = self._flat.module
        pool_first(module)
        if variant.channels_last:
            module.to(memory_format=self._torch.channels_last)
        if variant.recurrent:
            from fedcohort.engines.torch_gru import use_fused_gru

            use_fused_gru(module)
        if variant.compiled:
            self._flat.module = self._torch.compile(module)
        self._held: tuple[int, Tensor, Tensor] | None = None  # first sample, inputs and targets of one client

    @property
    def has_recurrence(self) -> bool:
        """Whether the module holds a GRU."""
        return any(isinstance(m, self._torch.nn.GRU) for m in self._flat.module.modules())

    @property
    def may_turn(self) -> bool:
        """Whether channels may come last: PyTorch 2.13 damages memory in narrow strided 1 x 1 convolutions."""
        found = (m for m in self._flat.module.modules() if isinstance(m, self._torch.nn.Conv2d))
        return not any(max(m.kernel_size) == 1 < max(m.stride) and m.in_channels < 8 for m in found)

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training, single-threaded: the bits of a client do not depend on how many processes share the work."""
        with one_thread(self._torch):
            return super().train(model, clients, plan)

    def stay_single(self) -> None:
        """One thread for everything in this process."""
        self._torch.set_num_threads(1)

    def _train_client(self, learned: Learned, client: int, row: int, m: int, plan: Plan) -> int:
        """The samples of a client are brought together once, not batch by batch."""
        own = self._data.train.of(client)
        if (own.stop - own.start) * self._data.x[:1].nbytes <= HELD:
            x, y = super()._batch(self._data.train, np.arange(own.start, own.stop))
            self._held = own.start, (x.permute(0, 2, 3, 1).contiguous() if self._turned(x) else x), y
        try:
            return super()._train_client(learned, client, row, m, plan)
        finally:
            self._held = None

    def _turned(self, x: Tensor) -> bool:
        return self._channels_last and x.ndim == 4

    def _optimiser(self, plan: Plan, lr: float, **options: Any) -> Any:
        if plan.optimiser == "sgd" and not plan.momentum and self._recipe.optimiser is None:
            return BareSGD(self._flat.params, lr, plan.weight_decay)
        return super()._optimiser(plan, lr, fused=True, **options)

    def _batch(self, part: Part, at: Index) -> tuple[Tensor, Tensor]:
        if self._held is not None and part is self._data.train:
            start, x, y = self._held
            rows = self._torch.from_numpy(at - start)
            return (x[rows].permute(0, 3, 1, 2) if self._turned(x) else x[rows]), y[rows]
        x, y = super()._batch(part, at)
        return (x.contiguous(memory_format=self._torch.channels_last) if self._turned(x) else x), y


class BareSGD:
    """`torch.optim.SGD(fused=True)` without momentum and without what a step of it does besides: hooks and groups."""

    def __init__(self, params: list[Tensor], lr: float, decay: float) -> None:
        from torch.optim.sgd import sgd

        self._sgd, self._params, self._lr, self._decay = sgd, params, lr, decay

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for p in self._params:
            p.grad = None

    def step(self) -> None:
        """One step, in one call for all parameters."""
        import torch

        moved = [p for p in self._params if p.grad is not None]
        with torch.no_grad():
            self._sgd(
                moved, [cast("Tensor", p.grad) for p in moved], [None] * len(moved), fused=True,
                weight_decay=self._decay, momentum=0.0, lr=self._lr, dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip


@contextmanager
def one_thread(torch: Any) -> Iterator[None]:
    """Torch on one thread, then as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
