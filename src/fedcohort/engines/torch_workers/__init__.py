"""Any torch module, trained by single-threaded processes on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.engines.torch_workers.workers_engine import WorkersEngine as WorkersEngine
else:
    __getattr__, __dir__, __all__ = exports(__name__)
