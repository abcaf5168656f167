"""The contract of an aggregation method as tests. Subclass, override `make`, and let pytest collect it::

    from fedcohort.testing import MethodContract

    class TestMine(MethodContract):
        def make(self):
            return Mine()

What does not apply is named in `exempt`, with the reason: ``exempt = {"single_client": "the server step is damped"}``.
A method may carry the same mapping; the two are joined. A reason is required, and is printed with the skipped test.
A method that computes at the server overrides `server_evaluator`; one whose clients send something of its own
overrides `extras`.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import generator
from fedcohort.protocols import Aggregation, Exempting, Method, ServerEvaluator
from fedcohort.testing.method_checks import (
    SPOILERS,
    check_form,
    copied,
    frozen_model,
    frozen_updates,
    global_generators,
    must_refuse,
    same_models,
    same_plan,
    same_state,
    through_a_file,
)
from fedcohort.types import Arrays, Index, Model, Plan, Real, Updates

CLAUSES = frozenset(
    {
        "idle",  # a fresh method leaves the model alone when nobody moved
        "idle_later",  # and so does one with a history
        "single_client",  # from a fresh start, one client that returns w_1 makes w_1 the model
        "buffers",  # new buffers lie between those that were sent and the server's
    }
)


class MethodContract:
    """Every clause as one test. Sizes are class attributes."""

    exempt: ClassVar[Mapping[str, str]] = {}  # clause -> why it does not apply
    params: ClassVar[int] = 12
    buffers: ClassVar[int] = 3
    counters: ClassVar[int] = 2
    population: ClassVar[int] = 10
    cohort: ClassVar[int] = 7
    rounds: ClassVar[int] = 4  # of an ordinary run

    # hooks

    def make(self) -> Method:
        """A fresh method."""
        raise NotImplementedError("override make() to return a fresh method")

    def plan(self) -> Plan:
        """The local training that the task would ask for."""
        return Plan(epochs=2, batch_size=8, lr=0.1)

    def server_evaluator(self) -> ServerEvaluator | None:
        """What the method may compute at the server; `fedcohort.testing.LinearEvaluator` fits the sizes here."""
        return None

    def extras(self, plan: Plan, clients: Index, delta: Real) -> Mapping[str, NDArray[Any]]:
        """What clients send beside their update, given the prepared plan."""
        del clients
        return {"full_gradient": -delta / np.float32(0.1)} if "full_gradient" in plan.measure else {}

    # form

    def test_is_a_method_with_a_name(self) -> None:
        """The protocol, a name, and exemptions that are known clauses with reasons."""
        method = self.make()
        assert isinstance(method, Method), f"{type(method).__name__} lacks a part of the Method protocol"
        assert method.name, "the method has no name"
        for clause, reason in self._exemptions(method).items():
            assert clause in CLAUSES, f"no clause {clause!r}; exempt may name {sorted(CLAUSES)}"
            assert reason.strip(), f"the exemption from {clause!r} needs a reason"

    def test_prepare_returns_a_plan_and_repeats_itself(self) -> None:
        """Same state, same plan; also after some rounds, and for nobody at all."""
        for method in (self.make(), self._with_history()):
            for clients in (self._clients(), np.empty(0, np.int64)):
                first = method.prepare(self.plan(), self._model(), clients)
                again = method.prepare(self.plan(), self._model(), clients)
                assert isinstance(first, Plan), f"prepare returned a {type(first).__name__}"
                same_plan(first, again)

    def test_answers_have_the_right_form(self) -> None:
        """float32 parameters and int64 counters of the same sizes, one flag per row, finite numbers to log."""
        method, model = self.make(), self._model()
        for index in range(self.rounds):
            updates = self._updates(method, model, index)
            made = method.aggregate(model, updates, self._context(method, model, updates, index))
            check_form(made, model, updates)
            model = made.model

    def test_two_objects_make_the_same_run(self) -> None:
        """Nothing depends on time, on object identity or on hidden randomness."""
        same_models(self._run(self.make(), self.rounds), self._run(self.make(), self.rounds), "two equal runs")

    # identities

    def test_idle_clients_leave_the_model_alone(self) -> None:
        """All updates zero: the same parameters, bit for bit."""
        method = self.make()
        self._skip_if_exempt(method, "idle")
        self._check_idle(method, 0)

    def test_idle_clients_leave_the_model_alone_later(self) -> None:
        """The same after some rounds."""
        method = self._with_history()
        self._skip_if_exempt(method, "idle_later")
        self._check_idle(method, self.rounds)

    def test_order_of_arrival_changes_nothing(self) -> None:
        """Rows permuted: the same model and state bit for bit, acceptance permuted alike."""
        model = self._model()
        one, two = self._with_history(), self._with_history()
        updates = self._updates(one, model, self.rounds)
        order = generator(3, "order").permutation(len(updates))
        a = one.aggregate(model, updates, self._context(one, model, updates, self.rounds))
        b = two.aggregate(model, updates.rows(order), self._context(two, model, updates, self.rounds))
        same_models(a.model, b.model, "permuted rows")
        assert np.array_equal(a.accepted[order], b.accepted), "acceptance does not follow the rows"
        same_state(one.state_dict(), two.state_dict(), "state after permuted rows")

    def test_one_client_gets_its_model(self) -> None:
        """One client returning w_1, from a fresh start: the new model is w_1 up to rounding."""
        method, model = self.make(), self._model()
        self._skip_if_exempt(method, "single_client")
        updates = self._updates(method, model, 0).rows(np.array([2]))
        made = method.aggregate(model, updates, self._context(method, model, updates, 0))
        want = model.params.astype(np.float64) + updates.delta[0]
        assert made.accepted.all(), "the only update was not accepted"
        assert np.allclose(made.model.params, want, rtol=1e-5, atol=1e-6), "one client does not get its model"

    # odd cohorts

    def test_nobody_returned(self) -> None:
        """An empty cohort changes neither model nor state."""
        for method in (self.make(), self._with_history()):
            model = self._model()
            updates = self._updates(method, model, 1).rows(np.empty(0, np.int64))
            before = copied(method.state_dict())
            made = method.aggregate(model, updates, self._context(method, model, updates, 1))
            same_models(made.model, model, "empty cohort")
            assert made.accepted.shape == (0,), "acceptance of nobody has rows"
            same_state(before, method.state_dict(), "state after an empty cohort")

    def test_broken_rows_are_left_out(self) -> None:
        """NaN or infinite updates, weights and buffers: not accepted, and as if they had not been sent."""
        for spoil in SPOILERS:
            self._check_without(spoil, np.array([1, 4]))

    def test_nothing_but_broken_rows(self) -> None:
        """If every row is broken the round is an empty one."""
        method, model = self._with_history(), self._model()
        updates = self._updates(method, model, self.rounds)
        updates = replace(updates, delta=np.full_like(updates.delta, np.nan))
        before = copied(method.state_dict())
        made = method.aggregate(model, updates, self._context(method, model, updates, self.rounds))
        same_models(made.model, model, "nothing but NaN")
        assert not made.accepted.any(), "a NaN update was accepted"
        same_state(before, method.state_dict(), "state after nothing but NaN")

    def test_odd_weights_and_steps(self) -> None:
        """Equal weights, zero weights, one huge weight, unequal steps, no steps: defined and finite."""
        m = self.cohort
        odd_weights = (np.full(m, 5.0), np.zeros(m), np.r_[1e12, np.ones(m - 1)])
        odd_steps = (np.arange(1, m + 1), np.zeros(m, np.int64), np.r_[0, np.full(m - 1, 400)])
        for weight in odd_weights:
            self._check_finite(weight=weight)
        for steps in odd_steps:
            self._check_finite(steps=steps.astype(np.int64))

    def test_cohorts_of_every_size(self) -> None:
        """One row, two rows, and so on."""
        for count in range(1, self.cohort + 1):
            self._check_finite(count)

    def test_drawn_more_than_once(self) -> None:
        """A selector that samples with replacement says how often; the answer stays finite."""
        method, model = self.make(), self._model()
        updates = self._updates(method, model, 0)
        context = self._context(method, model, updates, 0)
        context = replace(context, multiplicity={int(c): 1 + int(c) % 3 for c in updates.clients})
        check_form(method.aggregate(model, updates, context), model, updates)

    def test_strangers(self) -> None:
        """A row from somebody who was not asked, and one from a slot that registered after the round began."""
        method, model = self._with_history(), self._model()
        updates = self._updates(method, model, self.rounds)
        clients = updates.clients.copy()
        clients[-1] = self.population + 3
        context = self._context(method, model, updates, self.rounds)
        context = replace(context, dispatched=context.dispatched[1:])
        updates = replace(updates, clients=clients)
        check_form(method.aggregate(model, updates, context), model, updates)

    def test_population_may_grow(self) -> None:
        """New slots join, train, and are remembered as well as the old ones."""
        method = self._with_history()
        late = np.arange(self.population, self.population + 4)
        model = self._run(method, 2, clients=late, population=2 * self.population)
        other = self.make()
        other.load_state_dict(through_a_file(method.state_dict()))
        same_models(
            self._run(method, 2, start=model, population=2 * self.population),
            self._run(other, 2, start=model, population=2 * self.population),
            "runs after growth and loading",
        )

    # buffers

    def test_buffers_stay_between_those_sent(self) -> None:
        """Server mathematics does not touch buffers: they stay within what was sent; counters are never invented."""
        method, model = self.make(), self._model()
        self._skip_if_exempt(method, "buffers")
        buffers, counters = [model.buffers], [model.counters]
        for index in range(self.rounds):
            updates = self._updates(method, model, index)
            made = method.aggregate(model, updates, self._context(method, model, updates, index)).model
            assert updates.buffers is not None
            assert updates.counters is not None
            buffers += list(updates.buffers)
            counters += list(updates.counters)
            sent = np.vstack(buffers)
            slack = 1e-5 * np.abs(sent).max()
            inside = (made.buffers >= sent.min(axis=0) - slack) & (made.buffers <= sent.max(axis=0) + slack)
            assert inside.all(), "a buffer left the range of those that were sent"
            self._check_counters(made.counters, np.vstack(counters), model.counters)
            model = made

    def test_models_without_buffers(self) -> None:
        """No buffers and no counters, given as None."""
        method = self.make()
        model = Model(self._model().params)
        updates = replace(self._updates(method, model, 0), buffers=None, counters=None)
        made = method.aggregate(model, updates, self._context(method, model, updates, 0))
        assert made.model.buffers.size == 0
        assert made.model.counters.size == 0

    # state

    def test_save_and_load_give_the_same_future(self) -> None:
        """Stop, save to a file, load into a fresh method, continue: the same bits."""
        method = self._with_history()
        other = self.make()
        other.load_state_dict(through_a_file(method.state_dict()))
        same_state(method.state_dict(), other.state_dict(), "loaded state")
        same_models(self._run(method, self.rounds), self._run(other, self.rounds), "futures")
        same_state(method.state_dict(), other.state_dict(), "state of the futures")

    def test_saved_state_does_not_change_afterwards(self) -> None:
        """What was saved is a copy."""
        method = self._with_history()
        saved = method.state_dict()
        before = copied(saved)
        self._run(method, 2)
        same_state(before, saved, "saved state after two more rounds")

    def test_foreign_state_is_refused(self) -> None:
        """Unknown keys, missing keys, other types: StateMismatch, and nothing changed."""
        method = self._with_history()
        good = method.state_dict()
        bad: list[Arrays] = [{**good, "nobody-wrote-this": np.zeros(3)}]
        for key in good:
            bad.append({k: v for k, v in good.items() if k != key})
            bad.append({**good, key: np.zeros((1, 1, 1, 1), np.complex64)})
        for arrays in bad:
            before = copied(method.state_dict())
            must_refuse(method, arrays)
            same_state(before, method.state_dict(), "state after a refused load")

    # manners

    def test_inputs_are_not_modified(self) -> None:
        """Read-only arrays are enough, and what was given stays as it was."""
        method, model = self.make(), frozen_model(self._model())
        for index in range(2):
            updates = frozen_updates(self._updates(method, model, index))
            before = updates.delta.copy(), updates.weight.copy(), model.params.copy()
            method.aggregate(model, updates, self._context(method, model, updates, index))
            for was, now in zip(before, (updates.delta, updates.weight, model.params), strict=True):
                assert np.array_equal(was, now), "an input was modified"

    def test_global_generators_are_untouched(self) -> None:
        """Randomness is handed in."""
        before = global_generators()
        self._run(self.make(), 2)
        assert before == global_generators(), "a global random generator was used"

    # how rounds are made

    def _exemptions(self, method: Method) -> dict[str, str]:
        return {**(method.exempt if isinstance(method, Exempting) else {}), **self.exempt}

    def _skip_if_exempt(self, method: Method, clause: str) -> None:
        reason = self._exemptions(method).get(clause)
        if reason:
            raise unittest.SkipTest(f"exempt from {clause}: {reason}")

    def _clients(self) -> Index:
        return np.sort(generator(1, "contract").permutation(self.population)[: self.cohort]).astype(np.int64)

    def _model(self) -> Model:
        rng = generator(2, "contract")
        return Model(
            rng.normal(size=self.params).astype(np.float32),
            rng.uniform(0.5, 2.0, self.buffers).astype(np.float32),
            rng.integers(0, 5, self.counters),
        )

    def _updates(self, method: Method, model: Model, index: int, clients: Index | None = None) -> Updates:
        """Clients that agree more or less, with unequal weights and steps."""
        clients = self._clients() if clients is None else clients
        rng, m = generator(5, "contract", index), clients.size
        delta = (0.3 * rng.normal(size=self.params) + 0.1 * rng.normal(size=(m, self.params))).astype(np.float32)
        prepared = method.prepare(self.plan(), model, clients)
        return Updates(
            clients=clients,
            delta=delta,
            weight=rng.integers(1, 40, m).astype(np.float64),
            steps=rng.integers(1, 9, m),
            buffers=rng.uniform(0.5, 2.0, (m, self.buffers)).astype(np.float32),
            counters=rng.integers(5, 50, (m, self.counters)),
            extras=self.extras(prepared, clients, delta),
        )

    def _context(
        self, method: Method, model: Model, updates: Updates, index: int, population: int | None = None
    ) -> Aggregation:
        """The round as a federation would describe it."""
        population = self.population if population is None else population
        clients = np.sort(updates.clients)
        return Aggregation(
            index=index,
            plan=method.prepare(self.plan(), model, clients),
            population=population,
            samples=np.arange(1, population + 1),
            dispatched=clients,
            server_evaluator=self.server_evaluator(),
            rng=generator(7, "contract", index),
        )

    def _run(
        self,
        method: Method,
        rounds: int,
        *,
        start: Model | None = None,
        clients: Index | None = None,
        population: int | None = None,
    ) -> Model:
        model = self._model() if start is None else start
        for index in range(rounds):
            updates = self._updates(method, model, index, clients)
            model = method.aggregate(model, updates, self._context(method, model, updates, index, population)).model
        return model

    def _with_history(self) -> Method:
        method = self.make()
        self._run(method, self.rounds)
        return method

    # checks

    def _check_idle(self, method: Method, index: int) -> None:
        model = self._model()
        updates = self._updates(method, model, index)
        zero = np.zeros_like(updates.delta)
        prepared = method.prepare(self.plan(), model, updates.clients)
        updates = replace(updates, delta=zero, extras=self.extras(prepared, updates.clients, zero))
        made = method.aggregate(model, updates, self._context(method, model, updates, index))
        assert np.array_equal(made.model.params, model.params), "nobody moved, and yet the model did"

    def _check_without(self, spoil: Callable[[Updates, Index], Updates], rows: Index) -> None:
        """The round with spoilt rows equals the round without them."""
        model = self._model()
        one, two = self._with_history(), self._with_history()
        updates = self._updates(one, model, self.rounds)
        context = self._context(one, model, updates, self.rounds)
        spoilt = one.aggregate(model, spoil(updates, rows), context)
        context = self._context(two, model, updates, self.rounds)
        rest = np.setdiff1d(np.arange(len(updates)), rows)
        clean = two.aggregate(model, updates.rows(rest), context)
        assert not spoilt.accepted[rows].any(), "a broken row was accepted"
        assert np.array_equal(spoilt.accepted[rest], clean.accepted), "a broken row changed who is accepted"
        same_models(spoilt.model, clean.model, "round with broken rows and without them")
        same_state(one.state_dict(), two.state_dict(), "state with broken rows and without them")

    def _check_finite(self, count: int | None = None, **columns: Any) -> None:
        """The first rows only, or with other columns."""
        method, model = self.make(), self._model()
        updates = replace(self._updates(method, model, 0), **columns).rows(np.arange(count or self.cohort))
        check_form(method.aggregate(model, updates, self._context(method, model, updates, 0)), model, updates)

    def _check_counters(self, made: NDArray[np.int64], sent: NDArray[np.int64], server: NDArray[np.int64]) -> None:
        assert (made >= server).all(), "a counter went backwards"
        assert all(value in sent[:, j] for j, value in enumerate(made)), "a counter that nobody sent"
