"""The processor that kernels are compiled for."""

from __future__ import annotations


def processor() -> str:
    """Its name, as the compiler knows it; another one may sum up in another order."""
    from llvmlite.binding import get_host_cpu_name

    return str(get_host_cpu_name())
