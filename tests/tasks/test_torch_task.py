"""Tasks with a module, loss, target, metric, optimiser or augmentation of one's own, in whole runs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fedcohort import TorchTask, simulate  # noqa: E402
from fedcohort.data import Dataset  # noqa: E402
from fedcohort.engines.reserved_names import reserved  # noqa: E402
from fedcohort.engines.torch_augment import crop_flip  # noqa: E402
from fedcohort.errors import FedcohortError, MissingSignal, TrainingError  # noqa: E402
from fedcohort.tasks import catalogue, next_character  # noqa: E402
from fedcohort.testing import TaskContract  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((240, 5)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0, 3.0])).astype(np.float32)
KIND = (Y > 0).astype(np.int64)
WORLD = "iid-v1(clients=6)"


def line():
    return nn.Linear(5, 1)


def two():
    return nn.Linear(5, 2)


def run(task, selector="uniform", rounds=4, **more):
    more = {"world": WORLD, "engine": "torch_reference", **more}
    return simulate(selector, task=task, rounds=rounds, cohort_size=4, **more)


class Tagger(nn.Module):
    """Two tags for every word of a sentence."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.words(x))


def sentences(n=120):
    rng = np.random.default_rng(1)
    words = [rng.integers(1, 20, rng.integers(2, 7)) for _ in range(n)]
    return words, [w % 2 for w in words]


def focal(output, target):
    hard = nn.functional.cross_entropy(output, target, reduction="none")
    return (1 - torch.exp(-hard)) ** 2 * hard


KINDS = {
    "regression": (lambda: TorchTask(line, (X, Y), lr=0.1), {"loss", "mae", "r2"}, 0.5),
    "column of numbers": (lambda: TorchTask(line, (X, Y[:, None]), loss=nn.HuberLoss(), lr=0.3), {"loss"}, 0.6),
    "many labels": (lambda: TorchTask(lambda: nn.Linear(5, 3), (X, X[:, :3] > 0), lr=1.0), {"accuracy", "f1"}, 0.85),
    "ragged tokens": (lambda: TorchTask(Tagger, sentences(), lr=0.5, epochs=4), {"loss", "accuracy"}, 0.8),
    "own loss": (lambda: TorchTask(two, (X, KIND), loss=focal, lr=0.5, metrics={"hits": hits}), {"hits"}, 0.7),
    "scalar loss": (lambda: TorchTask(line, (X, Y[:, None]), loss=lambda o, t: ((o - t) ** 2).mean()), {"loss"}, 0.7),
    "own optimiser": (lambda: TorchTask(line, (X, Y), optimiser=adamw, lr=0.1), {"loss", "mae"}, 0.7),
    "tensors": (
        lambda: TorchTask(two, torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(KIND))),
        set(),
        0.9,
    ),
    "a dataset": (lambda: TorchTask(two, Dataset.from_arrays(X, KIND), metrics={"hits": hits}), {"hits", "f1"}, 0.9),
    "labels apart": (lambda: TorchTask(two, (X, KIND), labels=np.arange(240) % 3, lr=0.3), {"accuracy"}, 0.7),
}


def hits(output, target):
    return (output.argmax(dim=1) == target).float().mean()


def adamw(params, lr):
    return torch.optim.AdamW(params, lr=lr, weight_decay=0.01)


@pytest.mark.parametrize("name", KINDS)
def test_any_loss_and_any_target_learn(name):
    make, metrics, below = KINDS[name]
    history = run(make())
    assert metrics <= set(history.rows[-1])
    loss = history.column("loss")
    assert loss[-1] < below * loss[0]
    assert not any(history.reasons)


@pytest.mark.parametrize("name", ["regression", "ragged tokens", "many labels", "own loss"])
def test_clients_together_learn_the_same(name, caplog):
    make, _, _ = KINDS[name]
    with caplog.at_level(logging.INFO, "fedcohort.engine"):
        one, two = (run(make(), "oort", rounds=2, engine=e) for e in ("torch_reference", "torch_vmap"))
    assert "client by client" not in caplog.text
    assert np.allclose(one.column("loss"), two.column("loss"), rtol=1e-4)
    assert all(np.array_equal(a, b) for a, b in zip(one.cohorts, two.cohorts, strict=True))


def test_a_module_is_the_first_model_and_a_function_makes_a_fresh_one():
    module = two()
    given = [run(TorchTask(module, (X, KIND), epochs=0), seed=s, rounds=1).column("loss")[0] for s in (0, 1)]
    fresh = [run(TorchTask(two, (X, KIND), epochs=0), seed=s, rounds=1).column("loss")[0] for s in (0, 1)]
    assert given[0] == given[1]
    assert fresh[0] != fresh[1]


def test_a_scalar_loss_names_the_selectors_that_cannot_be_used(caplog):
    make, _, _ = KINDS["scalar loss"]
    with pytest.raises(MissingSignal, match="utility"):
        run(make(), "oort")
    assert "selectors that read train_loss_sq or utility cannot be used (" in caplog.text
    assert "Oort" in caplog.text
    assert run(make(), "power-of-choice", rounds=2).column("loss").size == 2


def test_labels_that_are_flipped_and_not_learned_are_mentioned(caplog):
    run(KINDS["regression"][0](), world="mixed-v1(clients=6)", rounds=1)
    assert "flips labels" in caplog.text


class Moody(nn.Module):
    """Refuses some samples while it is trained."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 2)

    def forward(self, x):
        if self.training and float(x[:, 0].max()) > 2.2:
            raise RuntimeError("not this one")
        return self.inner(x)


@pytest.mark.parametrize("engine", ["torch_reference", "torch_vmap", "torch_workers"])
def test_an_exception_is_the_failure_of_one_client(engine):
    """The run goes on, the reason is in the history, and the others have learned what they learn without it."""
    history = run(TorchTask(Moody, (X, KIND)), "oort", world="iid-v1(clients=24)", engine=engine, workers=1)
    said = {why for reasons in history.reasons for why in reasons.values()}
    assert said == {"RuntimeError: not this one"}
    assert history.column("failed").max() >= 1
    assert history.column("ok").sum() > 0


def test_a_run_folder_and_its_model(tmp_path):
    task = KINDS["regression"][0]()
    kept = run(task, rounds=2, out=tmp_path / "run")
    plain = run(task, rounds=2)
    assert np.array_equal(kept.column("loss"), plain.column("loss"))
    module = kept.model.to_torch()
    assert sum(p.numel() for p in module.parameters()) == 6


def test_the_catalogue_takes_an_augmentation():
    assert catalogue.get("cifar10-cnn", augment="crop-flip").model.augmentation is crop_flip
    assert catalogue.get("cifar10-cnn").model == catalogue.get("cifar10-cnn", augment="none").model
    with pytest.raises(FedcohortError, match="crop-flip"):
        catalogue.get("cifar10-cnn", augment="crop")


def test_next_character(tmp_path):
    text = tmp_path / "poem.txt"
    text.write_text("the cat sat on the mat and the rat sat on the hat. " * 40)
    task = next_character(text, pieces=6, length=12, hidden=24, epochs=4, lr=0.02)
    assert task.name == "poem"
    history = run(task, world="owners-v1", rounds=4)
    assert history.column("accuracy")[-1] > max(0.7, history.column("accuracy")[0] + 0.05)
    assert history.population == 6
    for bad, says in (("too short", "give a longer text"), (tmp_path / "no.txt", "no such file")):
        with pytest.raises(FedcohortError, match=says):
            next_character(bad)


BAD = {
    "lengths": (lambda: TorchTask(line, (X, Y[:9])), "x with 240 rows and y with 9"),
    "no pair": (lambda: TorchTask(line, X), "a task learns from a Dataset, a pair"),
    "words": (lambda: TorchTask(line, (X, ["a"] * 240)), "plain numbers"),
    "NaN": (lambda: TorchTask(line, (X * np.nan, Y)), "x[0]: it holds NaN"),
    "no module": (lambda: TorchTask(3, (X, Y)), "it must be a torch module or a function"),
    "loss": (lambda: TorchTask(line, (X, Y), loss="msee"), "did you mean mse"),
    "augmentation": (lambda: TorchTask(line, (X, Y), augmentation="crop"), "crop-flip"),
    "plan": (lambda: TorchTask(line, (X, Y), lrr=0.1), "did you mean lr"),
    "rate": (lambda: TorchTask(line, (X, Y), lr=-1.0), "lr = -1.0"),
    "metric": (lambda: TorchTask(line, (X, Y), metrics={"m": 3}), "a metric is a function"),
    "score": (lambda: TorchTask(line, (X, Y), metrics={"score": hits}), "metric 'score': a run has a column of this"),
    "method.": (lambda: TorchTask(line, (X, Y), metrics={"method.moves": hits}), "call it e.g. 'my_method.moves'"),
    "factory": (
        lambda: run(TorchTask(Needy, (X, KIND))),
        "factory Needy: it raises TypeError: Needy.__init__() missing",
    ),
    "fedca": (
        lambda: run(TorchTask(two, (X, KIND), loss=focal, validation=0.2), method="fedca"),
        "a loss of one's own",
    ),
    "metric of many": (lambda: run(TorchTask(line, (X, Y), metrics={"m": lambda o, t: o})), "metric 'm'"),
    "ranks": (lambda: TorchTask(line, ([X[0], X], Y[:2])), "differ in more than their length"),
    "test": (lambda: TorchTask(line, (X, Y), test=(X[:, :2], Y)), "test samples of shape (2,)"),
    "twice": (lambda: TorchTask(two, Dataset.from_arrays(X, KIND), client=KIND), "the Dataset says that itself"),
    "a module as task": (lambda: run(two()), "give task=fedcohort.TorchTask(module, (x, y))"),
    "method": (lambda: run(TorchTask(line, (X, Y)), method="rhfl"), "the task has a loss of its own"),
    "numpy": (lambda: run(TorchTask(line, (X, Y)), engine="numpy"), "engine numpy: it cannot train this torch model"),
    "device": (lambda: run(TorchTask(line, (X, Y)), device="tpu"), "device = 'tpu': it must be one of auto, cpu, cuda"),
    "cuda": (lambda: run(TorchTask(line, (X, Y)), device="cuda"), "no CUDA devices here"),
}


class Needy(nn.Linear):
    """Cannot be made without an argument."""

    def __init__(self, hidden):
        super().__init__(5, 2)


def test_what_a_factory_raises_is_the_cause_of_the_error():
    with pytest.raises(TrainingError) as caught:
        run(TorchTask(Needy, (X, KIND)), engine="auto")
    assert isinstance(caught.value.__cause__, TypeError)
    history = run(TorchTask(two, (X, KIND)), rounds=1)
    with pytest.raises(TrainingError, match="factory Needy: it raises"):
        replace(history.model, made_from=Needy).to_torch()


@pytest.mark.parametrize("engine", ["torch_reference", "auto"])
@pytest.mark.parametrize("names", [(0, 1), (1, 2), (7, 30)])
def test_predictions_are_the_labels_as_they_were_given(engine, names):
    y = np.array(names)[KIND]
    history = run(TorchTask(two, (X, y), lr=0.5), rounds=8, engine=engine)
    found = history.model.predict(X)
    assert set(found.tolist()) == set(names)
    assert np.mean(found == y) > 0.9


@pytest.mark.parametrize("more", [{"min_replies": 4, "deadline": 0.5}, {"method": "fedbuff", "buffer_size": 2}])
def test_every_column_of_a_run_is_reserved(more):
    """Names of metrics are checked against a list: what a run writes itself must be on it."""
    history = run(TorchTask(two, (X, KIND)), world="mixed-v1(clients=8)", rounds=3, **more)
    known = {"accuracy", "macro_f1", "f1"}
    assert {name for name in history.rows.names if not reserved(name)} <= known
    assert {"score", "clock", "round", "asked", "ok", "seconds", "loss"} <= set(history.rows.names)
    assert ("abandoned" in history.rows.names) == ("deadline" in more)
    assert ("in_flight" in history.rows.names) == ("buffer_size" in more)


@pytest.mark.parametrize("name", BAD)
def test_mistakes_get_one_sentence(name):
    make, says = BAD[name]
    with pytest.raises(FedcohortError) as raised:
        make()
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


class TestRegressionContract(TaskContract):
    exempt: ClassVar = {"accuracy": "real numbers are learned"}

    def make(self):
        from tests.training_data import bare_world

        spec = TorchTask(line, (X, Y), batch_size=16)
        return spec.bind(bare_world(spec.labels(), 6, spec.classes, held=3), engine="torch_vmap", device="cpu")
