"""Shipped contract kit: test your own selector, method, world or task by listing it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "SelectorContract": "selector_contract",
    "MethodContract": "method_contract",
    "WorldContract": "world_contract",
    "TaskContract": "task_contract",
    "SyntheticFederation": "synthetic_federation",
    "LinearEvaluator": "linear_evaluator",
    "example_round": "method_checks",
}

__all__ = [
    "LinearEvaluator",
    "MethodContract",
    "SelectorContract",
    "SyntheticFederation",
    "TaskContract",
    "WorldContract",
    "example_round",
]


def __getattr__(name: str) -> Any:
    """Load each contract when it is asked for, so that testing a selector needs no task."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
