"""What a task is before it meets a world: a name, a pool of labelled samples, and a way to bind the two."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from fedcohort.engines.trained_model import TrainedModel
from fedcohort.protocols import Task, World
from fedcohort.types import Array, Index, Model


@runtime_checkable
class Exportable(Protocol):
    """Optional, for tasks on clients: says what its flat model is made of."""

    def trained(self, model: Model) -> TrainedModel:
        """The model as tensors, a module and predictions."""
        ...


class TaskSpec(Protocol):
    """A task of the catalogue. The pool is what a world may hand out to clients.

    Server validation, unlabelled server data and the test set are cut away before: a world never sees them.
    """

    @property
    def name(self) -> str:
        """The name in the catalogue."""
        ...

    @property
    def classes(self) -> int:
        """How many classes the labels have."""
        ...

    def labels(self) -> Index:
        """True labels of the pool."""
        ...

    def owners(self) -> Array | None:
        """Natural owner (writer, volunteer) of each pool sample, a number or a name, where the data have one."""
        ...

    def activities(self) -> Index | None:
        """Kind of activity of each pool sample, where the data tell more than the label."""
        ...

    def bind(
        self, world: World, *, engine: str = "auto", workers: int = 0, device: str = "auto", precision: str = "float32"
    ) -> Task:
        """The task on this world's clients. `world.train.index` are positions in the pool.

        How it is trained: by which engine, on how many threads or processes, on which device, in which precision.
        """
        ...
