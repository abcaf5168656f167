"""Your own torch module as a task: any loss, any target, metrics, an optimiser and augmentation of your own.

    TorchTask(lambda: nn.Linear(8, 1), (x, y))                                      regression: float targets, MSE
    TorchTask(MyNet, data, loss=focal_loss, metrics={"f1": my_f1})                  class labels, a loss of your own
    TorchTask(MyTagger, (words, tags))                                              ragged lists of whole numbers
    TorchTask(net, (x, y), optimiser=lambda params, lr: torch.optim.AdamW(params, lr), augmentation="crop-flip")

Class labels with the default loss are plain classification: all objectives, signals and methods hold, and the module
runs in the fused engine if it can be translated. Everything else is trained by the torch engines.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import generator
from fedcohort.data.dataset import Dataset
from fedcohort.engines.networks import Network
from fedcohort.engines.recipe import Factory, Loss, Recipe, named, recipe_of, said
from fedcohort.engines.reserved_names import reserved
from fedcohort.engines.trained_model import TrainedModel, layout_of
from fedcohort.errors import DataError, TrainingError, UnknownName, check
from fedcohort.protocols import ClientEvaluator, ServerEvaluator, World
from fedcohort.tasks.classification import BoundClassification, ClassificationSpec
from fedcohort.tasks.torch_arrays import groups_of, inputs_of, pair_of, targets_of
from fedcohort.types import Array, Index, Model, Plan, Real

LOCAL = Plan(epochs=2, lr=0.05)  # the local training where nothing else is said
NEED_CLASSES = frozenset({"robust_loss", "probe_robust_loss", "probe_accuracy"})
NEED_SAMPLES = frozenset({"train_loss_sq", "utility"})  # signals made of the losses of single samples
Metric = Callable[[Any, Any], Any]  # (outputs, targets) of a whole split -> a number

_log = logging.getLogger("fedcohort.engine")


@dataclass(frozen=True)
class _Copies:
    """Makes copies of one module: its weights are the first model."""

    module: Any

    def __call__(self) -> Any:
        return copy.deepcopy(self.module)


class TorchTask(ClassificationSpec):
    """A torch module and data of your own as a task for `simulate`.

    `model` is a function (or class) that makes a module, fresh for every seed, or a module, whose weights are then the
    first model. `data` is a :class:`~fedcohort.Dataset`, a pair (x, y) of arrays, tensors or lists, or a torch dataset
    of pairs; x is taken as float32 or, for whole numbers, as int64. y may be class numbers, real numbers, yes or no for
    many labels, or one row per sample; shorter rows are filled with -100 or NaN, which the losses here leave out.

    `loss` is a name (cross-entropy, mse, mae, binary-cross-entropy), a torch loss, or a function of (outputs, targets)
    that returns one loss per sample; by default it follows from y. `metrics` are functions of (outputs, targets),
    `optimiser` is "sgd", "adam" or a function of (parameters, rate), `augmentation` a name (crop-flip, flip) or a
    function of (inputs of a batch, NumPy generator). `client` says who owns each sample, `labels` by what a world
    divides the samples if not by y; `test` is a share or a pair (x, y). `plan` are options of local training (lr,
    epochs, batch_size, momentum, weight_decay, prox).

    >>> from torch import nn
    >>> x = np.linspace(-1, 1, 200, dtype=np.float32)[:, None]
    >>> task = TorchTask(lambda: nn.Linear(1, 1), (x, 3 * x[:, 0]), lr=0.3, epochs=5)
    >>> from fedcohort import simulate
    >>> bool(simulate(task=task, world="iid-v1(clients=5)", rounds=5, cohort_size=5).column("loss")[-1] < 0.1)
    True
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        *,
        loss: str | Loss | None = None,
        metrics: Mapping[str, Metric] | None = None,
        optimiser: str | Callable[[Any, float], Any] = "sgd",
        augmentation: str | Callable[[Any, Any], Any] | None = None,
        client: Any = None,
        labels: Any = None,
        test: float | tuple[Any, Any] = 0.2,
        name: str = "mine",
        classes: int | None = None,
        validation: float = 0.1,
        unused: float = 0.0,
        split: str = "class",
        seed: int = 0,
        **plan: Any,
    ) -> None:
        from fedcohort.engines.torch_augment import augmentation as augmentation_of
        from fedcohort.tasks.catalogue import plan_with

        held: float = 0.2 if isinstance(test, (tuple, list)) else test
        apart = (test[0], test[1]) if isinstance(test, (tuple, list)) and len(test) == 2 else None
        store = _store(data, apart, client, labels, name, classes)
        loss_name, own = _loss_of(loss, store.kind)
        factory = None if callable(optimiser) else optimiser
        local = plan_with(LOCAL, **plan, **({} if factory is None else {"optimiser": factory}))
        recipe = Recipe(_factory(model), own, optimiser if callable(optimiser) else None, augmentation_of(augmentation))
        for key, value in (("_store", store), ("loss_name", loss_name), ("metrics", _metrics_of(metrics))):
            object.__setattr__(self, key, value)
        super().__init__(
            store.dataset.name,
            store.dataset,
            recipe.model if recipe.plain else recipe,
            local,
            validation=validation,
            unused=unused,
            test=held,
            split=split,
            seed=seed,
            about="a torch module of your own",
        )

    metrics: dict[str, Metric]
    loss_name: str
    _store: _Store

    def features(self, split: str) -> NDArray[Any]:
        """Model inputs of "pool", "validation", "unlabelled" or "test"."""
        return super().features(split) if self._store.x is None else self._store.x[self._rows(split)]

    def targets(self, split: str) -> Array | None:
        """What is learned of each sample of the split; None where that is the label."""
        return None if self._store.y is None else self._store.y[self._rows(split)]

    def bind(self, world: World, **where: Any) -> BoundTorchTask:
        """The task on this world's clients; `where` is engine, workers, device and precision."""
        return BoundTorchTask(self, world, **where)

    def _rows(self, split: str) -> Index:
        """Rows of the store that make up a split."""
        if split == "test":
            return self.data.x_test[:, 0]
        if split not in ("pool", "validation", "unlabelled"):
            raise UnknownName.among("split", split, ("test", "validation", "unlabelled"))
        found: Index = self.data.x[getattr(self.parts, split), 0]
        return found


class BoundTorchTask(BoundClassification):
    """A torch module on the clients of one world."""

    def __init__(self, spec: TorchTask, world: World, **where: Any) -> None:
        self.mine = spec
        super().__init__(spec, world, **where)
        self._own = recipe_of(spec.model).loss is not None
        if spec.targets("pool") is not None and (world.train.label != world.train.clean).any():
            _log.warning("world %s flips labels; the targets of %s stay as they are", world.name, self.name)
        per_sample = self._check_metrics()
        self._check_batches()
        self.provides = BoundClassification.provides - (NEED_CLASSES if self._own else frozenset())
        if not per_sample:
            self.provides -= NEED_SAMPLES
            _log.warning(
                "loss %s gives one number for a batch: selectors that read %s cannot be used (%s)",
                spec.loss_name, " or ".join(sorted(NEED_SAMPLES)), ", ".join(_readers(NEED_SAMPLES)),
            )  # fmt: skip

    def evaluate(self, model: Model, split: str, *, per_class: bool = False) -> dict[str, float]:
        """The loss, what belongs to it (accuracy, mae ...) and your own metrics, on "test" or "validation"."""
        from fedcohort.engines.torch_metrics import scores_of

        known = {} if self._own else super().evaluate(model, split, per_class=per_class)
        if split not in ("test", "validation"):
            raise UnknownName.among("split", split, ("test", "validation"))
        if not self._own and not self.mine.metrics:
            return known
        output, target = self._evaluator.evaluate(model, split), self._answers(split)
        if not len(target):
            return known or {"loss": math.nan}
        own = recipe_of(self.mine.model).loss
        return known | scores_of(output, target, own, self.mine.loss_name, self.mine.metrics)

    def client_accuracy(self, model: Model) -> NDArray[np.float64] | None:  # type: ignore[override]
        """Accuracy at every client; None where the loss is your own."""
        return None if self._own else super().client_accuracy(model)

    def server_evaluator(self) -> ServerEvaluator | None:  # type: ignore[override]
        """What methods may compute at the server: nothing where the loss is your own."""
        return None if self._own else super().server_evaluator()

    def client_evaluator(self) -> ClientEvaluator | None:  # type: ignore[override]
        """What a method may compute on a client: nothing where the loss is your own."""
        return None if self._own else super().client_evaluator()

    def trained(self, model: Model) -> TrainedModel:
        """The model as tensors and a module; predictions of classes, where classes are what is learned."""
        if self.mine._store.x is None:
            return super().trained(model)
        inner = recipe_of(self.mine.model).model
        buffers = model.buffers[None] if model.buffers.size else None

        def logits(x: Array) -> Real:
            return np.asarray(self.engine.logits(model.params[None], inputs_of(x), buffers)[0])

        return TrainedModel(model, layout_of(inner), inner, None if self._own else logits, self.mine.data.class_names)

    def _batch_losses(self, model: Model, clients: Index, plan: Plan) -> NDArray[np.float64]:
        """The loss on one mini-batch each, drawn per (seed, round, client)."""
        own, target = recipe_of(self.mine.model).loss, self._data.target
        if own is None:
            return super()._batch_losses(model, clients, plan)
        from fedcohort.engines.torch_metrics import mean_loss

        part, out = self._data.train, np.full(clients.size, np.nan)
        buffers = model.buffers[None] if model.buffers.size else None
        for i, k in enumerate(clients.tolist()):
            owned = np.arange(part.start[k], part.start[k + 1])
            if owned.size:
                rng = generator(plan.seed, "probe-batch", plan.round, k)
                batch = rng.choice(owned, min(plan.batch_size, owned.size), replace=False)
                rows = part.index[batch]
                output = self.engine.logits(model.params[None], self._data.x[rows], buffers)[0]
                out[i] = mean_loss(own, output, part.label[batch] if target is None else target[rows])
        return out

    def _answers(self, split: str) -> Array:
        found = self.mine.targets(split)
        return self.mine.answers(split) if found is None else found

    def _check_metrics(self) -> bool:
        """Whether the loss gives one number per sample; metrics that cannot be computed are refused."""
        from fedcohort.engines.torch_checks import dry_run

        dry = dry_run(self.mine.model, self._data)
        for name, metric in self.mine.metrics.items():
            try:
                float(metric(dry.output, dry.target))
            except Exception as error:
                raise TrainingError(
                    f"metric {name!r}", said(error), "return one number of (outputs, targets)"
                ) from None
        return dry.per_sample

    def _check_batches(self) -> None:
        """Say what becomes of single samples that the module cannot be trained on."""
        from fedcohort.engines.torch_checks import single_samples

        found = single_samples(self.mine.model, self._data, self.mine.default.batch_size)
        if found:
            _log.warning("%s", found)


@dataclass(frozen=True)
class _Store:
    """The samples as they were given; the dataset's own x are then rows of it."""

    dataset: Dataset
    kind: str  # "labels", "numbers", "flags" or "tokens"
    x: Array | None = None
    y: Array | None = None


def _store(data: Any, test: tuple[Any, Any] | None, client: Any, labels: Any, name: str, classes: int | None) -> _Store:
    if isinstance(data, Dataset):
        extra = [
            n
            for n, v in (("test", test), ("client", client), ("labels", labels), ("classes", classes))
            if v is not None
        ]
        check(not extra, f"{' and '.join(extra)} with a Dataset", "the Dataset says that itself", "give it there")
        return _Store(data, "labels")
    x, y = _pair(data)
    x_test, y_test = (x[:0], y[:0]) if test is None else _pair(test)
    if x_test.shape[1:] != x.shape[1:]:
        raise DataError(f"test samples of shape {x_test.shape[1:]}", f"x has {x.shape[1:]}", "give both the same shape")
    y, y_test = _same_width(y, y_test)
    group = groups_of(y) if labels is None else np.asarray(labels)
    other = groups_of(y_test) if len(y_test) and labels is None else np.zeros(len(y_test), np.int64)
    kind = {"f": "numbers", "b": "flags"}.get(y.dtype.kind, "labels" if y.ndim == 1 and labels is None else "tokens")
    rows = np.arange(len(x) + len(x_test))[:, None]
    both: dict[str, Any] = {"x_test": rows[len(x) :], "y_test": other} if test is not None else {}
    many = classes if kind == "labels" else None
    indexed = Dataset.from_arrays(rows[: len(x)], group, client, name=name, classes=many, scale=1.0, **both)
    own = None if kind == "labels" else np.concatenate([y, y_test])
    return _Store(indexed, kind, np.concatenate([x, x_test]), own)


def _pair(data: Any) -> tuple[Array, Array]:
    given = pair_of(data)
    x, y = inputs_of(given[0]), targets_of(given[1])
    if len(x) != len(y):
        raise DataError(f"x with {len(x)} rows and y with {len(y)}", "they must have one row per sample", "fix one")
    return x, y


def _same_width(y: Array, test: Array) -> tuple[Array, Array]:
    """Targets of both sides with rows of one length."""
    if y.ndim < 2 or y.shape[1:] == test.shape[1:]:
        return y, test
    both = targets_of([*y, *test])
    return both[: len(y)], both[len(y) :]


def _factory(model: Any) -> Network | Factory:
    """A function that makes the module."""
    from fedcohort.engines.torch_device import torch_package

    if isinstance(model, torch_package("TorchTask").nn.Module):
        return _Copies(model)
    known = isinstance(model, Network) or callable(model)
    check(known, f"model = {model!r}"[:80], "it must be a torch module or a function that makes one", "give e.g. MyNet")
    made: Network | Factory = model
    return made


def _loss_of(given: str | Loss | None, kind: str) -> tuple[str, Loss | None]:
    """The name of the loss, and the loss where it is not the cross-entropy of class labels."""
    from fedcohort.engines.torch_losses import own_loss

    usual = {"labels": "cross-entropy", "numbers": "mse", "flags": "binary-cross-entropy", "tokens": "cross-entropy"}
    chosen = usual[kind] if given is None else given
    if chosen == "cross-entropy" and kind == "labels":
        return chosen, None
    check(
        isinstance(chosen, str) or callable(chosen),
        f"loss = {chosen!r}"[:80],
        "it must be a name or a function",
        "use e.g. 'mse'",
    )
    return chosen if isinstance(chosen, str) else named(chosen), own_loss(chosen)


def _metrics_of(given: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """Metrics of one's own, under names that no column of a run has."""
    metrics = dict(given or {})
    bad = [key for key, value in metrics.items() if not callable(value)]
    check(not bad, f"metric {', '.join(bad)}", "a metric is a function of (outputs, targets)", "give functions")
    for key in metrics:
        check(not reserved(key), f"metric {key!r}", "a run has a column of this name", f"call it e.g. 'my_{key}'")
    return metrics


def _readers(signals: frozenset[str]) -> list[str]:
    """The shipped selectors that read one of these signals."""
    from fedcohort import selectors

    found = []
    for name in dir(selectors):
        made = getattr(selectors, name)
        try:
            needs = made().needs
        except (TypeError, AttributeError, NotImplementedError):  # a base class, a wrapper, a function
            continue
        if needs & signals:
            found.append(name)
    return found
