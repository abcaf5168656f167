"""The fused engine: Numba kernels, samples innermost, one client per thread. Import it only where it is chosen."""

from .fused_engine import FusedEngine
from .workspace import stages_of

__all__ = ["FusedEngine", "stages_of"]
