"""The contract of a task as tests. Subclass and override `make` with a task that is bound to a small world::

    class TestMyTask(TaskContract):
        def make(self):
            return my_task_spec.bind(small_world)

What does not apply is named in `exempt` with the reason.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.protocols import ServerEvaluator, Task
from fedcohort.signals import get, of_side
from fedcohort.types import Index, Model, Plan, Real

TASK_CLAUSES = frozenset(
    {
        "improves",  # local training lowers the local loss
        "per_client_rate",  # a learning rate per client is honoured (used to break one client on purpose)
        "accuracy",  # evaluate knows an accuracy between 0 and 1
    }
)


class TaskContract:
    """What every task promises: aligned rows, repeatable bytes, clients that do not feel each other."""

    exempt: ClassVar[Mapping[str, str]] = {}  # clause -> why it does not apply
    cohort: ClassVar[tuple[int, ...]] = (4, 0, 2, 3)  # clients that own samples, not in order
    epochs: ClassVar[int] = 1
    rtol: ClassVar[float] = 1e-3  # a client alone against the same client in company
    atol: ClassVar[float] = 1e-5

    def make(self) -> Task:
        """The task, bound to a small world with at least five clients."""
        raise NotImplementedError("override make() to return a task bound to a small world")

    def test_exemptions_are_known_and_reasoned(self) -> None:
        """Only known clauses, each with a reason; `provides` names client and probe signals."""
        for clause, reason in self.exempt.items():
            assert clause in TASK_CLAUSES, f"no clause {clause!r}; exempt may name {sorted(TASK_CLAUSES)}"
            assert reason.strip(), f"the exemption from {clause!r} needs a reason"
        for name in self.make().provides:
            assert get(name).side in ("client", "probe"), f"{name!r} is not measured by a task"

    def test_initial_model_is_a_function_of_the_generator(self) -> None:
        """Flat finite float32 parameters; same generator, same model; another one, another model."""
        task = self.make()
        a, b, c = (task.initial(generator(seed, "model")) for seed in (0, 0, 1))
        assert a.params.ndim == 1
        assert a.params.dtype == np.float32
        assert np.isfinite(a.params).all()
        assert np.array_equal(a.params, b.params), "same generator, another model"
        assert not np.array_equal(a.params, c.params), "another generator, the same model"

    def test_rows_follow_the_clients(self) -> None:
        """One finite float32 row per client in the order given; the broadcast model is left alone."""
        task, model, who = self._ready()
        before = model.params.copy()
        trained = task.train(model, who, self._plan(task))
        updates = trained.updates
        assert np.array_equal(model.params, before), "training changed the broadcast model"
        assert np.array_equal(updates.clients, who), f"rows of {updates.clients}, asked for {who}"
        assert updates.delta.shape == (who.size, model.params.size)
        assert updates.delta.dtype == np.float32
        assert np.isfinite(updates.delta).all()
        assert updates.weight.shape == updates.steps.shape == who.shape
        assert (updates.weight > 0).all(), "a client that trained has no weight"
        assert (updates.steps > 0).all(), "a client that trained took no step"
        assert trained.failed.size == 0 or not trained.failed.any(), f"failed: {dict(trained.reasons)}"
        assert np.abs(updates.delta).max(axis=1).min() > 0, "a client did not move"

    def test_same_plan_same_bytes(self) -> None:
        """Two bound tasks and two calls give the same update, bit for bit."""
        (task, model, who), (other, _, _) = self._ready(), self._ready()
        plan = self._plan(task)
        first = task.train(model, who, plan).updates.delta.tobytes()
        assert task.train(model, who, plan).updates.delta.tobytes() == first, "training again gives another update"
        assert other.train(model, who, plan).updates.delta.tobytes() == first, "a second object gives another update"

    def test_clients_do_not_feel_their_companions(self) -> None:
        """Alone, in company, in another order: the same update within the documented tolerance."""
        task, model, who = self._ready()
        plan = self._plan(task)
        together = task.train(model, who, plan).updates.delta
        backwards = task.train(model, who[::-1].copy(), plan).updates.delta[::-1]
        self._close(backwards, together, "the order of the cohort changes an update")
        for row, client in enumerate(who):
            alone = task.train(model, np.array([client]), plan).updates.delta[0]
            self._close(alone, together[row], f"client {client} trains differently in company")

    def test_epochs_may_differ_per_client(self) -> None:
        """Entry by entry as if the whole cohort had that number; zero epochs move nothing."""
        task, model, who = self._ready()
        plan = self._plan(task)
        mixed = task.train(model, who, replace(plan, epochs=np.arange(who.size, dtype=np.int64))).updates
        assert not mixed.delta[0].any(), "a client with zero epochs moved"
        assert mixed.steps[0] == 0, "a client with zero epochs took steps"
        for row in range(1, who.size):
            alone = task.train(model, who[row : row + 1], replace(plan, epochs=row)).updates
            self._close(alone.delta[0], mixed.delta[row], f"{row} epochs in mixed company differ from {row} epochs")
            assert mixed.steps[row] == alone.steps[0]

    def test_rate_zero_moves_nothing(self) -> None:
        """Learning rate zero: zero updates."""
        task, model, who = self._ready()
        delta = task.train(model, who, replace(self._plan(task), lr=0.0)).updates.delta
        assert np.abs(delta).max() == 0.0, "learning rate zero moved a client"

    def test_nobody_trains(self) -> None:
        """An empty cohort gives empty answers."""
        task, model, _ = self._ready()
        updates = task.train(model, np.empty(0, np.int64), self._plan(task)).updates
        assert updates.delta.shape == (0, model.params.size)

    def test_signals_are_measured(self) -> None:
        """Every provided client signal, one row per client; asking for them does not change the update."""
        task, model, who = self._ready()
        plain = task.train(model, who, self._plan(task)).updates.delta
        wanted = of_side(task.provides, "client")
        trained = task.train(model, who, replace(self._plan(task), measure=wanted))
        self._close(trained.updates.delta, plain, "measuring changes the update")
        for name in wanted:
            assert name in trained.signals, f"{name!r} is provided and was not measured"
            column = trained.signals[name]
            assert column.shape[:1] == who.shape, f"{name!r} has {column.shape[:1]} rows"
            assert name == "val_loss" or np.isfinite(column).all(), f"{name!r} is not finite"

    def test_training_lowers_the_local_loss(self) -> None:
        """For most of the cohort."""
        task, model, who = self._ready()
        wanted = frozenset({"loss_before", "loss_after"})
        if "improves" in self.exempt or not wanted <= task.provides:
            raise unittest.SkipTest(self.exempt.get("improves", "losses before and after are not provided"))
        signals = task.train(model, who, replace(self._plan(task), measure=wanted)).signals
        better = (signals["loss_after"] < signals["loss_before"]).mean()
        assert better > 0.5, f"only {better:.0%} of the clients have a lower loss after training"

    def test_probes_answer_without_training(self) -> None:
        """Every provided probe signal, one row per client, and the loss is the one that training starts from."""
        task, model, who = self._ready()
        before, plan, wanted = model.params.copy(), self._plan(task), of_side(task.provides, "probe")
        answers = task.probe(model, who, wanted, plan)
        assert np.array_equal(model.params, before), "a probe changed the model"
        assert set(answers) == wanted, f"asked for {sorted(wanted)}, answered {sorted(answers)}"
        for name, column in answers.items():
            assert column.shape[:1] == who.shape, f"{name!r} has {column.shape[:1]} rows"
            assert name == "probe_val_loss" or np.isfinite(column).all(), f"{name!r} is not finite"
        if "probe_loss" in wanted and "loss_before" in task.provides:
            measured = task.train(model, who, replace(plan, measure=frozenset({"loss_before"}))).signals
            self._close(answers["probe_loss"], measured["loss_before"], "probe_loss differs from loss_before")

    def test_evaluation_is_pure(self) -> None:
        """Accuracy in [0, 1] and a finite loss on both splits, the same when asked again."""
        task, model, _ = self._ready()
        for split in ("test", "validation"):
            metrics = task.evaluate(model, split)
            assert {"loss"} <= metrics.keys(), f"{split}: no loss among {sorted(metrics)}"
            assert np.isfinite(metrics["loss"]), f"{split}: loss is {metrics['loss']}"
            assert task.evaluate(model, split) == metrics, f"{split}: evaluated again, other numbers"
            if "accuracy" not in self.exempt:
                assert 0.0 <= metrics["accuracy"] <= 1.0, f"{split}: accuracy {metrics['accuracy']}"

    def test_one_broken_client_hurts_nobody(self) -> None:
        """An infinite learning rate at one client: it fails with a reason and a zero row, the others do not notice."""
        task, model, who = self._ready()
        if "per_client_rate" in self.exempt:
            raise unittest.SkipTest(f"exempt from per_client_rate: {self.exempt['per_client_rate']}")
        plan = self._plan(task)
        rate = plan.lr_of(who.size)
        rate[1] = np.inf
        trained = task.train(model, who, replace(plan, lr=rate))
        assert trained.failed.tolist() == [i == 1 for i in range(who.size)], f"failed: {trained.failed}"
        assert int(who[1]) in trained.reasons, "no reason given for the failure"
        assert not trained.updates.delta[1].any(), "the row of a failed client is not zero"
        whole = task.train(model, who, plan).updates.delta
        others = np.arange(who.size) != 1
        self._close(trained.updates.delta[others], whole[others], "a broken client changed the others")

    def test_server_evaluator_agrees_with_itself(self) -> None:
        """Shapes of labels and logits; the gradient is the slope of the loss it comes with."""
        task, model, _ = self._ready()
        evaluator = task.server_evaluator()
        if evaluator is None or evaluator.size("validation") == 0:
            raise unittest.SkipTest("this task has no server evaluator")
        n = evaluator.size("validation")
        labels = evaluator.labels("validation")
        assert labels.shape == (n,)
        assert 0 <= labels.min() <= labels.max() < evaluator.classes
        pair = np.stack([model.params, 0.5 * model.params])
        logits = evaluator.logits(pair, "validation")
        assert logits.shape == (2, n, evaluator.classes)
        self._close(evaluator.logits(pair[1:], "validation")[0], logits[1], "logits depend on companions")
        assert evaluator.size("unlabelled") >= 0
        _check_slope(evaluator, model.params, np.arange(min(n, 64)), labels)

    def _plan(self, task: Task) -> Plan:
        return replace(task.plan(), epochs=self.epochs, seed=7, round=2)

    def _ready(self) -> tuple[Task, Model, Index]:
        task = self.make()
        return task, task.initial(generator(0, "model")), np.array(self.cohort, np.int64)

    def _close(self, got: Real, want: Real, what: str) -> None:
        scale = max(float(np.abs(want).max(initial=0.0)), 1e-12)
        worst = float(np.abs(np.asarray(got) - np.asarray(want)).max(initial=0.0))
        assert worst <= self.atol + self.rtol * scale, f"{what} (by {worst:.3g} at scale {scale:.3g})"


def _check_slope(evaluator: ServerEvaluator, params: Real, rows: Index, labels: Index) -> None:
    """Central difference along the gradient against its squared norm, and the loss against the logits."""
    target = np.eye(evaluator.classes, dtype=np.float32)[labels[rows]]
    loss, gradient = evaluator.gradient(params, "validation", rows, target)
    z = evaluator.logits(params[None], "validation")[0][rows].astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    entropy = float((np.log(np.exp(z).sum(axis=1)) - (z * target).sum(axis=1)).mean())
    assert abs(loss - entropy) <= 1e-3 * (1 + entropy), f"loss {loss:.5f}, by the logits {entropy:.5f}"
    square = float(gradient.astype(np.float64) @ gradient)
    h = 0.01 / max(np.sqrt(square), 1e-6)
    up, _ = evaluator.gradient((params + h * gradient).astype(np.float32), "validation", rows, target)
    down, _ = evaluator.gradient((params - h * gradient).astype(np.float32), "validation", rows, target)
    slope = (up - down) / (2 * h)
    assert abs(slope - square) <= 0.1 * square + 1e-6, f"slope {slope:.4g}, squared gradient {square:.4g}"
