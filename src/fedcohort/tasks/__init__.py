"""What is trained: a dataset, a model, a loss, metrics and the local training plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.tasks.classification import ClassificationSpec as ClassificationSpec
    from fedcohort.tasks.quadratic import Quadratic as Quadratic
    from fedcohort.tasks.quadratic import QuadraticSpec as QuadraticSpec
    from fedcohort.tasks.spec import TaskSpec as TaskSpec
    from fedcohort.tasks.text_task import next_character as next_character
    from fedcohort.tasks.torch_task import TorchTask as TorchTask
else:
    __getattr__, __dir__, __all__ = exports(__name__)
