"""Classification: a dataset, a model and local training, before and after they are bound to a world."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, CountOrZero, Finite, Interval, Positive
from fedcohort.core.rng import generator
from fedcohort.data import dataset as datasets
from fedcohort.data.array_checks import samples_of
from fedcohort.data.splits import WAYS, Split, server_split, with_test
from fedcohort.engines.factory import choose
from fedcohort.engines.interface import ClientData, Engine
from fedcohort.engines.losses import CROSS_ENTROPY, cross_entropy, log_softmax, robust_of
from fedcohort.engines.networks import Network
from fedcohort.engines.recipe import Modeled, network_of, recipe_of
from fedcohort.engines.trained_model import TrainedModel, layout_of
from fedcohort.errors import ContractError, UnknownName, check, check_fields
from fedcohort.protocols import Trained, World
from fedcohort.signals import SIGNALS, of_side
from fedcohort.tasks.client_evaluator import ArrayClientEvaluator
from fedcohort.tasks.scores import scores
from fedcohort.types import Array, Arrays, Index, Mask, Model, Plan, Real

SERVER_SPLITS = ("validation", "unlabelled")
PartOfData = Annotated[float, Interval(0, 1, ends="[)")]
PROVIDES = of_side(SIGNALS, "client") | of_side(SIGNALS, "probe")


@dataclass(frozen=True)
class ClassificationSpec:
    """A classification task of the catalogue, or of your own.

    The test set is never used for choosing anything. `validation` and `unlabelled` are shares of the training data
    that stay at the server; of what is left, a share `unused` is put away (for smaller experiments), and the rest is
    the pool that a world hands out. `dataset` is a name or a :class:`~fedcohort.data.Dataset`, `model` a
    :class:`~fedcohort.engines.Network` or a function that makes a torch module, `default` the local training.

    >>> from fedcohort.engines import mlp
    >>> data = datasets.Dataset.from_arrays(np.zeros((100, 4)), np.arange(100) % 2)
    >>> spec = ClassificationSpec("mine", data, mlp(4, 8, classes=2), Plan(lr=0.1), validation=0.25)
    >>> spec.labels().size, spec.answers("validation").size, spec.answers("test").size
    (60, 20, 20)
    """

    name: str
    dataset: str | datasets.Dataset
    model: Modeled
    default: Plan = field(default_factory=Plan)
    validation: PartOfData = 0.1
    unlabelled: PartOfData = 0.0
    unused: PartOfData = 0.0
    test: PartOfData = 0.2  # cut from the data only where the dataset has no test set of its own
    recut: bool = False  # cut a new test set although the dataset has one
    split: Annotated[str, Choice(*WAYS)] = "class"  # how to cut: by "class", whole "owner"s, or "within" every owner
    normal: tuple[Finite, Positive] = (0.0, 1.0)  # mean and deviation to take out, where the dataset leaves them in
    seed: CountOrZero = 0  # of the cuts
    root: Path | str | None = None  # data folder
    about: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        total = self.validation + self.unlabelled
        check(total < 1.0, f"server shares of {total}", "something must be left for the clients", "lower them")
        path = self.root is None or isinstance(self.root, (str, Path))
        check(path, f"root = {self.root!r}", "it must be a path", "write it in quotes")

    @cached_property
    def data(self) -> datasets.Dataset:
        """The dataset, with a test set."""
        given = datasets.load(self.dataset, self.root) if isinstance(self.dataset, str) else self.dataset
        return with_test(given, self.test, self.split, self.seed, self.recut)

    @cached_property
    def parts(self) -> Split:
        """Which training rows are the pool, which stay at the server."""
        return server_split(self.data, self.validation, self.unlabelled, self.split, self.seed, self.unused)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.data.classes

    def labels(self) -> Index:
        """True labels of the pool."""
        return self.data.y[self.parts.pool]

    def owners(self) -> Array | None:
        """Natural owner of each pool sample, by its name (a number or a word); None where the data name none."""
        if self.data.client is None:
            return None
        owner = self.data.client[self.parts.pool]
        return np.array(self.data.client_names)[owner] if self.data.client_names else owner

    def activities(self) -> Index | None:
        """Kind of activity of each pool sample, where the data tell more than the label."""
        return None if self.data.activity is None else np.asarray(self.data.activity[self.parts.pool], np.int64)

    def features(self, split: str) -> NDArray[np.float32]:
        """Model inputs of "pool", "validation", "unlabelled" or "test"."""
        if split == "test":
            x = self.data.features(test=True)
        elif split in ("pool", "validation", "unlabelled"):
            x = self.data.features(getattr(self.parts, split))
        else:
            raise UnknownName.among("split", split, ("test", "validation", "unlabelled"))
        return self.normalised(x)

    def normalised(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features of the dataset as the model takes them; they are changed in place."""
        if self.normal != (0.0, 1.0):
            x -= np.float32(self.normal[0])
            x /= np.float32(self.normal[1])
        network = network_of(self.model)
        return x if network is None else x.reshape(len(x), *network.input_shape)

    def answers(self, split: str) -> Index:
        """True labels of "validation" or "test"."""
        return self.data.y_test if split == "test" else self.data.y[getattr(self.parts, split)]

    @cached_property
    def pool(self) -> NDArray[np.float32]:
        """Model inputs of the pool, held once for all worlds."""
        return self.features("pool")

    def targets(self, split: str) -> Array | None:
        """What is learned of each sample of a split, where that is not its label."""
        del split
        return None

    def bind(
        self,
        world: World,
        *,
        engine: str = "auto",
        workers: int = 0,
        device: str = "auto",
        precision: str = "float32",
    ) -> BoundClassification:
        """The task on this world's clients, trained by this engine on this device."""
        return BoundClassification(self, world, engine=engine, workers=workers, device=device, precision=precision)


class BoundClassification:
    """A classification task on the clients of one world."""

    provides = PROVIDES

    def __init__(self, spec: ClassificationSpec, world: World, *, engine: str = "auto", **where: Any) -> None:
        self.spec = spec
        self.name = spec.name
        self.classes = spec.classes
        top = max((int(p.index.max(initial=-1)) for p in (world.train, world.validation)), default=-1)
        if world.classes != spec.classes or top >= len(spec.parts.pool):
            value = f"world {world.name!r} with {world.classes} classes and samples up to {top}"
            rule = f"task {spec.name!r} has {spec.classes} classes and {len(spec.parts.pool)} samples in its pool"
            raise ContractError(value, rule, "make the world from this task's labels()")
        self._data = ClientData(spec.pool, world.train, world.validation, spec.classes, spec.targets("pool"))
        self.engine: Engine = choose(spec.model, self._data, engine, **where)
        self._evaluator = ArrayServerEvaluator(spec, self.engine)

    @property
    def last_layer(self) -> slice | Mask:
        """Where the last layer sits in the flat parameters."""
        return self.engine.last_layer

    @cached_property
    def layout(self) -> tuple[slice, ...]:
        """Where each tensor sits in the flat parameters."""
        sizes = [math.prod(t.shape) for t in layout_of(recipe_of(self.spec.model).model) if t.part == "params"]
        return tuple(slice(end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes), strict=True))

    def initial(self, rng: np.random.Generator) -> Model:
        """A fresh model, drawn from this generator alone."""
        inner = recipe_of(self.spec.model).model
        if isinstance(inner, Network):
            return inner.fresh(rng)
        from fedcohort.engines.torch_modules import initial

        return initial(inner, rng)

    def plan(self) -> Plan:
        """The task's default local training."""
        return self.spec.default

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Train each of these clients from the same model."""
        self._evaluator.buffers = model.buffers
        return self.engine.train(model, clients, plan)

    def probe(self, model: Model, clients: Index, signals: frozenset[str], plan: Plan) -> Arrays:
        """Measure probe-side signals of this model at these clients."""
        out: Arrays = {}
        if signals & {"probe_loss", "probe_accuracy"}:
            stats = self.engine.losses(model, clients, "train", CROSS_ENTROPY)
            out |= {"probe_loss": stats.loss, "probe_accuracy": stats.accuracy}
        if "probe_val_loss" in signals:
            out["probe_val_loss"] = self.engine.losses(model, clients, "validation", CROSS_ENTROPY).loss
        if "probe_robust_loss" in signals:
            out["probe_robust_loss"] = self.engine.losses(model, clients, "train", robust_of(plan.objective)).loss
        if "probe_batch_loss" in signals:
            out["probe_batch_loss"] = self._batch_losses(model, clients, plan)
        if "probe_grad_norm" in signals:
            squares = np.square(self.engine.gradients(model, clients), dtype=np.float64)
            out["probe_grad_norm"] = np.sqrt(squares.sum(axis=1))
        if "probe_weights" in signals:
            once = replace(plan, epochs=1, correction=None, measure=frozenset())
            out["probe_weights"] = model.params + self.engine.train(model, clients, once).updates.delta
        return {name: value for name, value in out.items() if name in signals}

    def evaluate(self, model: Model, split: str, *, per_class: bool = False) -> dict[str, float]:
        """accuracy, loss, macro_f1 (and f1 of class 1 for two classes) on "test" or "validation"."""
        if split not in ("test", "validation"):
            raise UnknownName.among("split", split, ("test", "validation"))
        logits = self._evaluator.evaluate(model, split)
        return scores(logits, self.spec.answers(split), per_class=per_class)

    def client_accuracy(self, model: Model) -> NDArray[np.float64]:
        """Accuracy at every client: on its validation part, on its training part where it has none, else NaN."""
        everybody = np.arange(self._data.train.sizes.size)
        held = self.engine.losses(model, everybody, "validation", CROSS_ENTROPY).accuracy
        bare = np.flatnonzero(np.isnan(held))
        if bare.size:
            held[bare] = self.engine.losses(model, bare, "train", CROSS_ENTROPY).accuracy
        return held

    def server_evaluator(self) -> ArrayServerEvaluator:
        """What methods may compute at the server."""
        return self._evaluator

    def client_evaluator(self) -> ArrayClientEvaluator:
        """What a method's client half may compute on the client beyond training."""
        return ArrayClientEvaluator(self.engine, self._data)

    def close(self) -> None:
        """Give back the engine's threads and processes."""
        self.engine.close()

    def trained(self, model: Model) -> TrainedModel:
        """The model as tensors, a module and predictions of samples as the dataset has them."""
        data = self.spec.data

        def logits(x: Array) -> Real:
            given = self.spec.normalised(replace(data, x=samples_of("x", x)).features())
            return np.asarray(self.engine.logits(model.params[None], given, _rows(model.buffers))[0])

        inner = recipe_of(self.spec.model).model
        return TrainedModel(model, layout_of(inner), inner, logits, data.class_names)

    def _batch_losses(self, model: Model, clients: Index, plan: Plan) -> NDArray[np.float64]:
        """Cross-entropy on one mini-batch each, drawn per (seed, round, client)."""
        part, out = self._data.train, np.full(clients.size, np.nan)
        for i, k in enumerate(clients.tolist()):
            owned = np.arange(part.start[k], part.start[k + 1])
            if not owned.size:
                continue
            rng = generator(plan.seed, "probe-batch", plan.round, k)
            batch = rng.choice(owned, min(plan.batch_size, owned.size), replace=False)
            logits = self.engine.logits(model.params[None], self._data.x[part.index[batch]], _rows(model.buffers))[0]
            out[i] = cross_entropy(log_softmax(np.asarray(logits, np.float64)), part.label[batch]).mean()
        return out


class ArrayServerEvaluator:
    """The server's own data and the model's forward and backward pass.

    For models with buffers logits and gradients use those that are given, or else those of the model that was last
    sent out.
    """

    def __init__(self, spec: ClassificationSpec, engine: Engine) -> None:
        self.classes = spec.classes
        self.buffers: Real = np.empty(0, np.float32)
        self._spec = spec
        self._engine = engine
        self._held: dict[str, NDArray[np.float32]] = {}

    def size(self, split: str) -> int:
        """Samples in "validation" or "unlabelled"; no other split exists here."""
        return len(getattr(self._spec.parts, split)) if split in SERVER_SPLITS else 0

    def labels(self, split: str) -> Index:
        """True labels of the validation split; the unlabelled split has none to give."""
        check(split == "validation", f"labels of {split!r}", "only the validation split is labelled", "use it")
        return self._spec.answers(split)

    def logits(self, params: Real, split: str, buffers: Real | None = None) -> Real:
        """Logits of k models, given as (k, p), on the whole split: (k, n, classes)."""
        return self._logits(params, _server_side(split), _rows(self.buffers) if buffers is None else buffers)

    def gradient(
        self, params: Real, split: str, rows: Index, target: Real, buffers: Real | None = None
    ) -> tuple[float, Real]:
        """Mean soft-target cross-entropy on these rows and its gradient (p,)."""
        x, own = self._features(_server_side(split))[rows], self.buffers if buffers is None else buffers
        return self._engine.soft_gradient(params, x, target, *((own,) if own.size else ()))

    def evaluate(self, model: Model, split: str) -> Real:
        """Logits (n, classes) of one model with its own buffers; the test split too, for evaluation only."""
        found: Real = self._logits(model.params[None], split, _rows(model.buffers))[0]
        return found

    def _logits(self, params: Real, split: str, buffers: Real | None) -> Real:
        x = self._features(split)
        if not len(x):  # a share of zero, or hardly any data: engines never see empty batches
            return np.zeros((len(params), 0, self.classes), np.float32)
        return np.asarray(self._engine.logits(params, x, buffers))

    def _features(self, split: str) -> NDArray[np.float32]:
        if split not in self._held:
            self._held[split] = self._spec.features(split)
        return self._held[split]


def _server_side(split: str) -> str:
    if split not in SERVER_SPLITS:
        raise UnknownName.among("split", split, SERVER_SPLITS)
    return split


def _rows(buffers: Real) -> Real | None:
    return buffers[None] if buffers.size else None
