"""How a Ray cluster is reached: by sweeps, whose runs it spreads, and by the ray engine, which spreads one run."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
from collections.abc import Iterator
from typing import Any

from fedcohort.errors import ConfigError, MissingExtra

ANSWER = 5.0  # seconds in which somebody must answer at the address of a cluster


def ray_package() -> Any:
    """The ray package, or the error that says how to get it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise MissingExtra.of("the Ray backend", "ray") from None


def connect(ray: Any, address: str | None = None) -> bool:
    """Connect to this address, that of RAY_ADDRESS, or a cluster of this machine; False if there was a connection."""
    if ray.is_initialized():
        return False
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    _ask(where)
    more = {"include_dashboard": False} if where == "local" else {}
    try:
        ray.init(address=where, log_to_driver=False, logging_level="ERROR", **more)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _unreachable(where, " ".join(str(error).split())[:200]) from None
    return True


@contextlib.contextmanager
def connected(ray: Any, address: str | None = None) -> Iterator[None]:
    """Use an existing connection, or make one and close it afterwards."""
    ours = connect(ray, address)
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


def _ask(where: str) -> None:
    """Ray itself tries for half a minute and more: ask first whether anybody listens."""
    host, _, port = where.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(where, str(error)) from None


def _unreachable(where: str, why: str) -> ConfigError:
    remedy = "start it with `ray start --head`, or correct RAY_ADDRESS (or --address)"
    return ConfigError(f"Ray cluster {where}", f"nobody answers there ({why})", remedy)
