"""The catalogue of tasks: names, what they are, and what may be overridden.

`get("digits-mlp", lr=0.05, hidden=(64,))` is the task with another learning rate and another width. Overrides are
fields of the plan (lr, epochs, ...), cuts of the data (validation, unlabelled, ...) and options of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fedcohort.core.constraints import Choice, Interval, NotNegative, Positive
from fedcohort.core.plain_text import shown
from fedcohort.core.spec_string import SpecStringError, parse
from fedcohort.engines import losses as objectives
from fedcohort.engines.networks import Network, lenet, mlp, resnet
from fedcohort.engines.recipe import Factory, Modeled, Recipe
from fedcohort.engines.steps import OPTIMISERS
from fedcohort.engines.torch_augment import augmentation
from fedcohort.errors import BadParameter, UnknownName, check, checked
from fedcohort.tasks.classification import ClassificationSpec
from fedcohort.tasks.quadratic import QuadraticSpec
from fedcohort.tasks.spec import TaskSpec
from fedcohort.types import Objective, Plan

PLAN_OPTIONS = ("lr", "epochs", "batch_size", "momentum", "weight_decay", "optimiser", "objective", "prox")
DATA_OPTIONS = ("validation", "unlabelled", "unused", "test", "recut", "split", "normal", "seed", "root")
MEANINGS = {  # of every option of a task
    "lr": "learning rate of local training",
    "epochs": "passes over a client's own samples in a round",
    "batch_size": "samples per step",
    "momentum": "share of the last step that is kept (SGD)",
    "weight_decay": "weight of the squared parameters",
    "optimiser": "sgd or adam",
    "objective": "what clients minimise: ce, flash-robust, symmetric-ce or label-smoothing",
    "prox": "pull towards the broadcast model [mu]",
    "validation": "share of the training data that the server keeps to judge models",
    "unlabelled": "share that the server keeps without labels, for distillation",
    "unused": "share that nobody gets",
    "test": "share that becomes the test set where it is cut anew",
    "recut": "cut the test set from all data instead of using the published one",
    "split": "what is split: samples by class, whole owners, or each owner's samples",
    "normal": "mean and deviation that inputs are normalised with",
    "seed": "of what is drawn here; not that of the run",
    "root": "folder of the data instead of $FEDCOHORT_DATA",
    "hidden": "widths of the hidden layers",
    "channels": "channels of the convolutions",
    "norm": "normalisation: None, group or batch",
    "augment": "augmentation: none, crop-flip or flip",
    "blocks": "residual blocks per stage",
    "widths": "channels of the stages",
    "pool": "how many labels a world can hand out",
    "stride": "every so many time steps of a signal are read",
    "classes": "number of class centres",
    "curvature": "range of the clients' curvatures, uniform between the two",
    "dimension": "coordinates of a centre",
    "spread": "standard deviation of the centres",
}


@dataclass(frozen=True)
class TaskEntry:
    """One classification task of the catalogue."""

    about: str
    dataset: str
    model: Callable[..., Network | Factory]
    plan: Plan
    options: Mapping[str, Any] = field(default_factory=dict)  # of the model, with defaults
    cuts: Mapping[str, Any] = field(default_factory=dict)  # of the data, where they differ from the spec's


MAX_WIDTH = 100_000  # of a layer
MAX_LAYERS = 100  # of one kind
MAX_PARAMS = 2**31  # of a network: 8 GiB of float32


def _widths(hidden: int | tuple[int, ...] | list[int], what: str = "hidden") -> tuple[int, ...]:
    given = (hidden,) if isinstance(hidden, int) else hidden
    listed = isinstance(given, tuple | list)
    fine = listed and len(given) <= MAX_LAYERS and all(type(w) is int and 1 <= w <= MAX_WIDTH for w in given)
    rule = f"every width must be a whole number from 1 to {MAX_WIDTH:,}, of {MAX_LAYERS} layers at most"
    check(fine, f"{what} = {shown(repr(hidden))}", rule, "use e.g. 64 or (120, 84)")
    return tuple(given)


def _normed(norm: str | None) -> str | None:
    check(
        norm is None or isinstance(norm, str),
        f"norm = {shown(repr(norm))}",
        "it must be None, group or batch",
        "use e.g. 'group'",
    )
    return norm


def _sized(made: Network | Factory) -> Network | Factory:
    """A network that memory can hold."""
    many = made.n_params if isinstance(made, Network) else 0
    check(many <= MAX_PARAMS, f"{many:,} parameters", f"at most {MAX_PARAMS:,} are held here", "use narrower layers")
    return made


def _mlp(features: int, classes: int, *, hidden: int | tuple[int, ...] = ()) -> Network:
    return mlp(features, *_widths(hidden), classes=classes)


def _cnn(
    shape: tuple[int, int, int],
    classes: int,
    *,
    channels: tuple[int, ...],
    kernel: int = 5,
    padding: int = 0,
    hidden: int | tuple[int, ...] = (),
    norm: str | None = None,
) -> Network:
    return lenet(shape, _widths(channels, "channels"), kernel, _widths(hidden), classes, padding, _normed(norm))


def _resnet(
    shape: tuple[int, int, int], classes: int, *, widths: tuple[int, ...], blocks: int, norm: str | None
) -> Network:
    check(isinstance(blocks, int) and 1 <= blocks <= 50, f"blocks = {blocks!r}", "it must be 1 to 50", "use e.g. 1")
    stages = _widths(widths, "widths")
    check(bool(stages), f"widths = {widths!r}", "it must name at least one stage", "use e.g. (16, 32, 64)")
    return resnet(shape, stages, blocks, classes, _normed(norm))


@checked
def _torch_image(
    name: str, *, channels: int, classes: int, norm: Annotated[str, Choice("group", "batch", "none")] = "group"
) -> Factory:
    return partial(_make, name, channels=channels, classes=classes, norm=norm)


@checked
def _torch_gru(
    *,
    channels: int,
    classes: int,
    layers: int,
    hidden: Annotated[int, Interval(1, 10_000)] = 32,
    stride: Annotated[int, Interval(1, 100)] = 1,
) -> Factory:
    return partial(_make, "gru", channels=channels, classes=classes, layers=layers, hidden=hidden, stride=stride)


def _make(name: str, **options: Any) -> Any:
    from fedcohort.engines import torch_networks

    return torch_networks.MODELS[name](**options)


_SGD = Plan(epochs=5, batch_size=50, lr=0.1)
_FLASH_RL = Plan(epochs=5, batch_size=50, lr=0.01, momentum=0.9)
_FEDACS = Plan(epochs=5, batch_size=50, lr=0.1, momentum=0.5, weight_decay=5e-4)
_DIGITS = {"recut": True}  # the stored order is by writer: the last rows are of other writers than the first
_WRITERS = {"split": "within", "test": 0.2, "validation": 0.05, "normal": (0.9616, 0.164)}  # white background
_VOLUNTEERS = {"split": "owner", "test": 0.2, "validation": 0.1}
_AUGMENT = {"augment": "none"}  # or crop-flip, flip
_DIGIT, _MNIST, _CIFAR = (1, 8, 8), (1, 28, 28), (3, 32, 32)

ENTRIES: dict[str, TaskEntry] = {
    "digits-softmax": TaskEntry(
        "8 x 8 digits (embedded), softmax regression, 650 parameters",
        "digits",
        partial(_mlp, 64, 10),
        Plan(epochs=5, batch_size=16, lr=0.3),
        {},
        _DIGITS,
    ),
    "digits-mlp": TaskEntry(
        "8 x 8 digits (embedded), one hidden layer of 32, 2,410 parameters",
        "digits",
        partial(_mlp, 64, 10),
        Plan(epochs=5, batch_size=16, lr=0.3),
        {"hidden": (32,)},
        _DIGITS,
    ),
    "digits-cnn": TaskEntry(
        "8 x 8 digits (embedded), two 3 x 3 convolutions, 3,658 parameters",
        "digits",
        partial(_cnn, _DIGIT, 10, kernel=3, padding=1),
        Plan(epochs=5, batch_size=16, lr=0.3),
        {"channels": (8, 16), "hidden": (32,)},
        _DIGITS,
    ),
    "mnist-mlp": TaskEntry(
        "MNIST, one hidden layer of 64, 50,890 parameters",
        "mnist",
        partial(_mlp, 784, 10),
        _SGD,
        {"hidden": (64,)},
    ),
    "mnist-cnn": TaskEntry(
        "MNIST, 5 x 5 convolutions of 8 and 16 channels, 20,522 parameters",
        "mnist",
        partial(_cnn, _MNIST, 10),
        _SGD,
        {"channels": (8, 16), "hidden": (64,)},
    ),
    "mnist-cnn-flashrl": TaskEntry(
        "MNIST, FLASH-RL's CNN (32 and 64 channels, 512 hidden), 582,026 parameters",
        "mnist",
        partial(_cnn, _MNIST, 10),
        _FLASH_RL,
        {"channels": (32, 64), "hidden": (512,)},
    ),
    "cifar10-cnn": TaskEntry(
        "CIFAR-10, the PyTorch-tutorial CNN of FedACS, 62,006 parameters",
        "cifar10",
        partial(_cnn, _CIFAR, 10),
        _FEDACS,
        {"channels": (6, 16), "hidden": (120, 84), "norm": None, **_AUGMENT},
    ),
    "cifar10-cnn-wide": TaskEntry(
        "CIFAR-10, 5 x 5 convolutions of 32 and 64 channels, 512 hidden, 878,538 parameters",
        "cifar10",
        partial(_cnn, _CIFAR, 10),
        _FLASH_RL,
        {"channels": (32, 64), "hidden": (512,), "norm": None, **_AUGMENT},
    ),
    "cifar10-cnn-flashrl": TaskEntry(
        "CIFAR-10, FLASH-RL's CNN (6 and 16 channels, 256 hidden), 108,098 parameters",
        "cifar10",
        partial(_cnn, _CIFAR, 10),
        _FLASH_RL,
        {"channels": (6, 16), "hidden": (256,), "norm": None, **_AUGMENT},
    ),
    "cifar10-resnet8": TaskEntry(
        "CIFAR-10, ResNet-8 with group (or batch) normalisation, 78,042 parameters; blocks=3 is ResNet-20",
        "cifar10",
        partial(_resnet, _CIFAR, 10),
        Plan(epochs=5, batch_size=50, lr=0.05, momentum=0.9, weight_decay=5e-4),
        {"widths": (16, 32, 64), "blocks": 1, "norm": "group", **_AUGMENT},
    ),
    "cifar10-vgg11": TaskEntry(
        "CIFAR-10, VGG-11 with group (or batch) normalisation, as FedCM; needs torch",
        "cifar10",
        partial(_torch_image, "vgg11", channels=3, classes=10),
        Plan(epochs=5, batch_size=64, lr=0.01, momentum=0.9, weight_decay=5e-4),
        {"norm": "group", **_AUGMENT},
    ),
    "cifar10-resnet18": TaskEntry(
        "CIFAR-10, ResNet-18 with group (or batch) normalisation, as FLASH (Adam 1e-3); needs torch",
        "cifar10",
        partial(_torch_image, "resnet18", channels=3, classes=10),
        Plan(epochs=5, batch_size=64, lr=1e-3, optimiser="adam"),
        {"norm": "group", **_AUGMENT},
    ),
    "femnist-cnn": TaskEntry(
        "FEMNIST by writer, 62 classes, 5 x 5 convolutions of 16 and 32 channels, 86,910 parameters",
        "femnist",
        partial(_cnn, _MNIST, 62),
        Plan(epochs=1, batch_size=20, lr=0.1),
        {"channels": (16, 32), "hidden": (128,)},
        _WRITERS,
    ),
    "har-mlp": TaskEntry(
        "Activities by volunteer (HAPT), flattened windows, one hidden layer of 64",
        "har",
        partial(_mlp, 768, 6),
        Plan(epochs=5, batch_size=50, lr=0.05),
        {"hidden": (64,)},
        _VOLUNTEERS,
    ),
    "har-gru": TaskEntry(
        "Activities by volunteer (HAPT), two-layer GRU on 128 x 6 windows; needs torch",
        "har",
        partial(_torch_gru, channels=6, classes=6, layers=2),
        Plan(epochs=5, batch_size=50, lr=2e-3, optimiser="adam"),
        {"hidden": 32, "stride": 1},
        _VOLUNTEERS,
    ),
    "mobifall-gru": TaskEntry(
        "Fall or daily activity by volunteer (MobiFall), two-layer GRU on 128 x 6 windows; needs torch",
        "mobifall",
        partial(_torch_gru, channels=6, classes=2, layers=2),
        Plan(epochs=5, batch_size=50, lr=2e-3, optimiser="adam"),
        {"hidden": 32, "stride": 1},
        _VOLUNTEERS,
    ),
}


def names() -> tuple[str, ...]:
    """Every task of the catalogue."""
    return (*ENTRIES, "quadratic")


def about(name: str) -> str:
    """One line on the task of this name."""
    if name == "quadratic":
        return QuadraticSpec.about
    return _entry(name).about


def options(name: str) -> tuple[str, ...]:
    """What :func:`get` lets one override for this task."""
    if name == "quadratic":
        own = {f.name for f in dataclasses.fields(QuadraticSpec)} - {"name", "default"}
        return (*PLAN_OPTIONS, *sorted(own))
    return (*PLAN_OPTIONS, *DATA_OPTIONS, *_entry(name).options)


def get(name: str, **overrides: Any) -> TaskSpec:
    """The task of this name, with overrides; unknown names and options are answered with the nearest.

    >>> get("digits-mlp", lr=0.05, hidden=(64,)).model.n_params
    4810
    """
    known = options(name)
    for option in overrides:
        if option not in known:
            raise UnknownName.among(f"option of task {name!r}", option, known)
    plan = {key: overrides.pop(key) for key in PLAN_OPTIONS if key in overrides}
    if name == "quadratic":
        spec = QuadraticSpec(**overrides)
        return dataclasses.replace(spec, default=dataclasses.replace(spec.default, **_checked(plan)))
    entry = _entry(name)
    cuts = {**entry.cuts, **{key: overrides.pop(key) for key in DATA_OPTIONS if key in overrides}}
    given = {**entry.options, **overrides}
    changed = augmentation(given.pop("augment", "none"))
    made = _sized(entry.model(**given))
    model: Modeled = made if changed is None else Recipe(made, augmentation=changed)
    default = dataclasses.replace(entry.plan, **_checked(plan))
    return ClassificationSpec(name, entry.dataset, model, default, about=entry.about, **cuts)


def _entry(name: str) -> TaskEntry:
    if name not in ENTRIES:
        raise UnknownName.among("task", name, names())
    return ENTRIES[name]


def plan_with(plan: Plan, **changes: Any) -> Plan:
    """This plan with changes, checked as :func:`get` checks its overrides."""
    for key in changes:
        if key not in PLAN_OPTIONS:
            raise UnknownName.among("option of local training", key, PLAN_OPTIONS)
    return dataclasses.replace(plan, **_checked(changes))


def _checked(plan: dict[str, Any]) -> dict[str, Any]:
    """Plan overrides, refused where they break a rule."""
    check_plan(**plan)
    said = plan.get("objective", "ce")
    rule = f"it must be one of {', '.join(objectives.PRESETS)}"
    check(isinstance(said, str | Objective), f"objective = {shown(repr(said))}", rule, "use e.g. 'ce'")
    if isinstance(plan.get("objective"), str):
        plan["objective"] = _objective(plan["objective"])
    return plan


@checked
def check_plan(
    *,
    lr: Positive = 0.1,
    epochs: Annotated[int, Interval(0, 100_000)] = 5,
    batch_size: Annotated[int, Interval(1, 2**31)] = 50,
    momentum: NotNegative = 0.0,
    weight_decay: NotNegative = 0.0,
    optimiser: Annotated[str, Choice(*OPTIMISERS)] = "sgd",
    objective: str | Objective = "ce",
    prox: NotNegative = 0.0,
) -> None:
    """Nothing but the declarations of PLAN_OPTIONS."""


def _objective(text: str) -> Objective:
    """The objective behind a text such as "flash-robust(alpha=1.0, beta=8.0)"."""
    try:
        name, arguments = parse(text)
    except SpecStringError as error:
        raise BadParameter(error.value, error.rule, error.remedy) from None
    return objectives.get(name, **arguments)
