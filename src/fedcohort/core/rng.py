"""Randomness as a function: of (seed, stream, keys), and per client of (seed, stream, round, client).

`generator` makes an independent NumPy generator for a purpose. The `*_at` functions give each client its own
random numbers without a generator per client, by a vectorised counter-based hash (two SplitMix64 finalisers over the
keys). So two selectors that ask the same client in the same round get the same random draws, whoever else is in the
cohort.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = (np.uint64(s) for s in (30, 27, 31, 11))


def generator(seed: int, stream: str, *keys: int) -> np.random.Generator:
    """A generator that depends on nothing but (seed, stream, keys).

    >>> bool(generator(0, "select", 3).random() == generator(0, "select", 3).random())
    True
    >>> bool(generator(0, "select", 3).random() == generator(0, "select", 4).random())
    False
    """
    entropy = [seed, zlib.crc32(stream.encode()), *keys, len(keys) + 1]  # the length, for trailing zeros are not seen
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


def bits_at(seed: int, stream: str, index: int, clients: NDArray[np.int64], draw: int = 0) -> NDArray[np.uint64]:
    """64 random bits for each client in this round; `draw` tells several draws of one client apart."""
    first, second = _salts(seed, stream, index, draw)
    z = (clients.astype(np.uint64) + np.uint64(1)) * _GOLDEN + first
    return _mix(_mix(z) ^ second)


@lru_cache(maxsize=4096)
def _salts(seed: int, stream: str, index: int, draw: int) -> tuple[np.uint64, np.uint64]:
    """Two words that stand for everything but the client."""
    first, second = np.random.SeedSequence([seed, zlib.crc32(stream.encode()), index, draw]).generate_state(
        2, np.uint64
    )
    return first, second


def uniform_at(seed: int, stream: str, index: int, clients: NDArray[np.int64], draw: int = 0) -> NDArray[np.float64]:
    """Uniform on the open interval (0, 1), one number per client, whoever else is asked.

    >>> together = uniform_at(0, "latency", 3, np.array([4, 8, 15]))
    >>> bool(together[1] == uniform_at(0, "latency", 3, np.array([8]))[0])
    True
    """
    return ((bits_at(seed, stream, index, clients, draw) >> _S11).astype(np.float64) + 0.5) * 2.0**-53


def exponential_at(seed: int, stream: str, index: int, clients: NDArray[np.int64]) -> NDArray[np.float64]:
    """Exponential with mean 1, one number per client."""
    return -np.log(uniform_at(seed, stream, index, clients))


def normal_at(seed: int, stream: str, index: int, clients: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard normal, one number per client (Box-Muller)."""
    u = uniform_at(seed, stream, index, clients, 0)
    v = uniform_at(seed, stream, index, clients, 1)
    return np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
