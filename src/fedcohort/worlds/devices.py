"""The device and link classes of FLASH-RL, as counted in its released client files (100 clients).

`cores` and `mhz` are what the release multiplies, and are not physical: a 65,536-MAC TPU counts as one core of
700 MHz, slower than a four-core Raspberry Pi at 350 MHz. `gflops` is the peak for single-precision training that we
assume for the `physical` law: the GPU boards by cores x 2 x clock, the processors by cores of that family x clock x 32
(two 8-wide multiply-adds a cycle; 8 for the A53). TPU v1 can only infer, so the physical law has no such client.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.types import Index
from fedcohort.worlds import keyed_draws
from fedcohort.worlds.allocate import largest_remainder


@dataclass(frozen=True, slots=True)
class Device:
    """One row of the catalogue."""

    name: str
    cores: int  # as the release has it
    mhz: float  # mean of the clock
    sd: float  # its standard deviation from round to round
    gflops: float  # assumed peak; 0: cannot train
    clients: int  # of 100


@dataclass(frozen=True, slots=True)
class Link:
    """A bandwidth class."""

    name: str
    mbit: float  # mean, Mbit/s
    sd: float


DEVICES: tuple[Device, ...] = (
    Device("Intel i3", 1, 3950.0, 10.0, 505.6, 8),
    Device("Intel i5", 2, 4300.0, 50.0, 825.6, 8),
    Device("Intel i7", 4, 4400.0, 80.0, 1126.4, 8),
    Device("Intel i9", 8, 4400.0, 100.0, 1126.4, 8),
    Device("TPU v1", 1, 700.0, 20.0, 0.0, 8),
    Device("Raspberry Pi 3, 2 cores", 2, 350.0, 20.0, 19.2, 8),
    Device("Raspberry Pi 3, 4 cores", 4, 350.0, 20.0, 38.4, 8),
    Device("Jetson TX2", 256, 1300.0, 20.0, 665.6, 8),
    Device("AGX Xavier", 512, 1377.0, 20.0, 1410.0, 8),
    Device("Xavier NX 15 W", 384, 1110.0, 20.0, 852.5, 8),
    Device("Xavier NX 10 W", 384, 800.0, 20.0, 614.4, 8),
    Device("ZCU102", 2, 1500.0, 20.0, 48.0, 8),
    Device("Jetson Nano", 128, 921.0, 20.0, 235.8, 4),
)
LINKS: tuple[Link, ...] = (
    Link("6 Mbit/s", 6.0, 1.0),
    Link("30 Mbit/s", 30.0, 5.0),
    Link("100 Mbit/s", 100.0, 10.0),
    Link("336 Mbit/s", 336.0, 50.0),
)


def pairs(trainable: bool = False) -> tuple[Index, Index, NDArray[np.float64]]:
    """(device, link, clients of 100) for each pair that occurs: near-factorial, 24, 26, 24 and 26 clients per link.

    Every device has as many clients on each of the four links, except the four Nanos: two on 30, two on 336 Mbit/s.
    """
    rows = []
    for d, device in enumerate(DEVICES):
        if trainable and device.gflops == 0.0:
            continue
        each = {1: 2, 3: 2} if device.clients == 4 else dict.fromkeys(range(4), device.clients // 4)
        rows += [(d, link, n) for link, n in each.items()]
    table = np.array(rows)
    return table[:, 0], table[:, 1], table[:, 2].astype(np.float64)


def assign(clients: int, seed: int, trainable: bool = False) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A device and a link for each client, in the catalogue's proportions to the client, in random order."""
    device, link, weight = pairs(trainable)
    many = largest_remainder(weight[None, :], np.array([clients]))[0]
    at = np.repeat(np.arange(weight.size), many)[keyed_draws.order(seed, "devices", clients)]
    return device[at].astype(np.uint8), link[at].astype(np.uint8)
