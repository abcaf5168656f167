"""Ways to run the same PyTorch training: memory layout, compilation. Which one is fastest depends on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedcohort.engines.interface import ClientData
from fedcohort.engines.recipe import Modeled
from fedcohort.engines.torch_reference import ReferenceEngine
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Part, Plan

if TYPE_CHECKING:
    from torch import Tensor


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
        self._channels_last = variant.channels_last
        module: Any = self._flat.module
        if variant.channels_last:
            module.to(memory_format=self._torch.channels_last)
        if variant.recurrent:
            from fedcohort.engines.torch_gru import use_fused_gru

            use_fused_gru(module)
        if variant.compiled:
            self._flat.module = self._torch.compile(module)

    @property
    def has_recurrence(self) -> bool:
        """Whether the module holds a GRU."""
        return any(isinstance(m, self._torch.nn.GRU) for m in self._flat.module.modules())

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training, single-threaded: the bits of a client do not depend on how many processes share the work."""
        with one_thread(self._torch):
            return super().train(model, clients, plan)

    def _optimiser(self, plan: Plan, lr: float, **options: Any) -> Any:
        return super()._optimiser(plan, lr, fused=True, **options)

    def _batch(self, part: Part, at: Index) -> tuple[Tensor, Tensor]:
        x, y = super()._batch(part, at)
        if self._channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=self._torch.channels_last)
        return x, y


@contextmanager
def one_thread(torch: Any) -> Iterator[None]:
    """Torch on one thread, then as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
