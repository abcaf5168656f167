"""Shipped contract kit: test your own selector, method, world, task, engine or backend in a few lines.

A contract is a class of pytest tests. Inherit from it and override `make`:

>>> from fedcohort.methods import FedAvg
>>> from fedcohort.testing import LinearEvaluator, MethodContract
>>> class TestMine(MethodContract):
...     def make(self):
...         return FedAvg()
...
...     def server_evaluator(self):  # only for methods that use server-side data
...         return LinearEvaluator()
>>> TestMine().test_is_a_method_with_a_name()

A clause that cannot hold for yours is named in `exempt`, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.testing.backend_contract import BackendContract as BackendContract
    from fedcohort.testing.engine_contract import EngineContract as EngineContract
    from fedcohort.testing.linear_evaluator import LinearEvaluator as LinearEvaluator
    from fedcohort.testing.method_checks import example_round as example_round
    from fedcohort.testing.method_contract import MethodContract as MethodContract
    from fedcohort.testing.selector_contract import SelectorContract as SelectorContract
    from fedcohort.testing.synthetic_federation import SyntheticFederation as SyntheticFederation
    from fedcohort.testing.task_contract import TaskContract as TaskContract
    from fedcohort.testing.world_contract import WorldContract as WorldContract
else:
    __getattr__, __dir__, __all__ = exports(__name__)
