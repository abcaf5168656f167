"""The fused engine: Numba kernels, samples innermost, one client per thread. Import it only where it is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.engines.fused.fused_engine import FusedEngine as FusedEngine
else:
    __getattr__, __dir__, __all__ = exports(__name__)
