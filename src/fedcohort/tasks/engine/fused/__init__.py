"""The fused engine: Numba kernels, samples innermost, one client per thread."""
