"""Every clause of the method kit can fail: one broken method each, and the test that must catch it."""

import unittest
from dataclasses import replace

import numpy as np
import pytest

from fedcohort.errors import StateMismatch
from fedcohort.methods.base import MethodBase, Step, data_weights, weighted_sum
from fedcohort.methods.fedavg import FedAvg
from fedcohort.protocols import Aggregated
from fedcohort.testing import MethodContract
from fedcohort.types import Model


class Nameless(FedAvg):
    name = ""


class Raw:
    """FedAvg without any guard: the place to break things."""

    name = "raw"
    asynchronous = True

    def prepare(self, plan, model, clients):
        return plan

    def aggregate(self, model, updates, context):
        if len(updates) == 0:
            return Aggregated(model, np.zeros(0, bool))
        share = updates.weight / updates.weight.sum() if updates.weight.sum() else np.ones(len(updates)) / len(updates)
        params = (model.params + share @ updates.delta).astype(np.float32)
        return Aggregated(Model(params, model.buffers, model.counters), np.ones(len(updates), bool))

    def state_dict(self):
        return {}

    def load_state_dict(self, arrays):
        if arrays:
            raise StateMismatch("state", "there is none", "load nothing")


class Restless(FedAvg):
    def prepare(self, plan, model, clients):
        self.calls = getattr(self, "calls", 0) + 1
        return replace(plan, prox=float(self.calls))


class Double(Raw):
    def aggregate(self, model, updates, context):
        made = super().aggregate(model, updates, context)
        return Aggregated(Model(made.model.params.astype(np.float64), model.buffers, model.counters), made.accepted)


class Random(FedAvg):
    def combine(self, model, updates, context):
        step = super().combine(model, updates, context)
        return Step(step.change + np.random.default_rng().normal(), step.kept)


class Shrinking(MethodBase):
    name = "shrinking"

    def combine(self, model, updates, context):
        return Step(
            weighted_sum(data_weights(updates, context), updates.delta) - 0.1 * model.params, updates.weight >= 0
        )


class Arrival(Raw):
    def aggregate(self, model, updates, context):
        if len(updates) == 0:
            return Aggregated(model, np.zeros(0, bool))
        return super().aggregate(model, updates.rows(np.array([0])), context)


class HalfStep(FedAvg):
    def combine(self, model, updates, context):
        step = super().combine(model, updates, context)
        return Step(0.5 * step.change, step.kept)


class Counting(Raw):
    """Counts rounds, empty ones too."""

    def __init__(self):
        self.rounds = 0

    def aggregate(self, model, updates, context):
        self.rounds += 1
        return super().aggregate(model, updates, context)

    def state_dict(self):
        return {"rounds": np.int64(self.rounds) + np.zeros((), np.int64)}

    def load_state_dict(self, arrays):
        self.rounds = int(np.asarray(arrays.get("rounds", 0)).ravel()[0].real)


class Forgetful(FedAvg):
    """Remembers a velocity and does not save it."""

    velocity = 0.0

    def combine(self, model, updates, context):
        step = super().combine(model, updates, context)
        self.velocity = 0.5 * self.velocity + step.change
        return Step(self.velocity, step.kept)


class Leaky(Raw):
    """Saves its live array."""

    def __init__(self):
        self.total = np.zeros(12)

    def aggregate(self, model, updates, context):
        if len(updates):
            self.total += updates.delta.sum(axis=0)
        return super().aggregate(model, updates, context)

    def state_dict(self):
        return {"total": self.total}


class Rude(FedAvg):
    def combine(self, model, updates, context):
        updates.delta[...] = 0
        return super().combine(model, updates, context)

    def aggregate(self, model, updates, context):
        updates.weight[...] = 1
        return super().aggregate(model, updates, context)


class Gambler(FedAvg):
    def combine(self, model, updates, context):
        np.random.random()  # noqa: NPY002
        return super().combine(model, updates, context)


class FixedSize(FedAvg):
    """An array over the clients that were there at the start."""

    def combine(self, model, updates, context):
        seen = np.zeros(10)
        seen[updates.clients] = 1
        return super().combine(model, updates, context)


class Inflating(FedAvg):
    def merge(self, model, updates):
        buffers, counters = super().merge(model, updates)
        return 3 * buffers, counters


class Summing(FedAvg):
    def merge(self, model, updates):
        buffers, _ = super().merge(model, updates)
        return buffers, updates.counters.sum(axis=0)


class NeedsBuffers(FedAvg):
    def merge(self, model, updates):
        return updates.buffers.mean(axis=0).astype(np.float32), updates.counters.max(axis=0)


class NotTwo(FedAvg):
    def combine(self, model, updates, context):
        step = super().combine(model, updates, context)
        return Step(step.change / (0.0 if len(updates) == 2 else 1.0), step.kept)


class Dividing(FedAvg):
    def combine(self, model, updates, context):
        step = super().combine(model, updates, context)
        return Step(step.change * updates.steps.mean() / updates.steps.min(), step.kept)


class OncePlease(FedAvg):
    def combine(self, model, updates, context):
        step = super().combine(model, updates, context)
        return Step(step.change * (np.nan if context.multiplicity else 1.0), step.kept)


BROKEN = [
    (Nameless, "test_is_a_method_with_a_name"),
    (Restless, "test_prepare_returns_a_plan_and_repeats_itself"),
    (Double, "test_answers_have_the_right_form"),
    (Random, "test_two_objects_make_the_same_run"),
    (Shrinking, "test_idle_clients_leave_the_model_alone"),
    (Forgetful, "test_idle_clients_leave_the_model_alone_later"),
    (Arrival, "test_order_of_arrival_changes_nothing"),
    (HalfStep, "test_one_client_gets_its_model"),
    (Counting, "test_nobody_returned"),
    (Raw, "test_broken_rows_are_left_out"),
    (Raw, "test_nothing_but_broken_rows"),
    (Dividing, "test_odd_weights_and_steps"),
    (NotTwo, "test_cohorts_of_every_size"),
    (OncePlease, "test_drawn_more_than_once"),
    (FixedSize, "test_strangers"),
    (FixedSize, "test_population_may_grow"),
    (Inflating, "test_buffers_stay_between_those_sent"),
    (Summing, "test_buffers_stay_between_those_sent"),
    (NeedsBuffers, "test_models_without_buffers"),
    (Forgetful, "test_save_and_load_give_the_same_future"),
    (Leaky, "test_saved_state_does_not_change_afterwards"),
    (Counting, "test_foreign_state_is_refused"),
    (Rude, "test_inputs_are_not_modified"),
    (Gambler, "test_global_generators_are_untouched"),
]


def kit(method) -> MethodContract:
    class Kit(MethodContract):
        def make(self):
            return method()

    return Kit()


@pytest.mark.parametrize(("method", "clause"), BROKEN, ids=[f"{m.__name__}-{c}" for m, c in BROKEN])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_kit_catches(method, clause: str):
    with pytest.raises((AssertionError, ArithmeticError, IndexError, ValueError, TypeError, AttributeError)):
        getattr(kit(method), clause)()


def test_every_clause_is_covered():
    clauses = {name for name in dir(MethodContract) if name.startswith("test_")}
    assert clauses == {clause for _, clause in BROKEN}


def test_exemptions_skip_with_their_reason_and_must_be_known():
    class Damped(HalfStep):
        exempt = {"single_client": "half steps"}  # noqa: RUF012

    with pytest.raises(unittest.SkipTest, match="half steps"):
        kit(Damped).test_one_client_gets_its_model()

    class Odd(FedAvg):
        exempt = {"no such clause": "because"}  # noqa: RUF012

    with pytest.raises(AssertionError, match="no clause"):
        kit(Odd).test_is_a_method_with_a_name()
