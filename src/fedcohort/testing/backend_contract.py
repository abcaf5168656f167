"""The contract of a backend of the round engine as tests. Subclass and override `make`::

    class TestMyBackend(BackendContract):
        def make(self):
            return my_backend, initial_model      # fresh, with at least six clients, some of them available

Each test works on a backend of its own. `buffer_size` says for which kind of rounds the backend was made.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcohort.methods.fedavg import FedAvg
from fedcohort.rounds.backend import Arrivals, Backend, Dispatch
from fedcohort.rounds.engine import RoundEngine
from fedcohort.rounds.policy import RoundPolicy
from fedcohort.rounds.session import Session
from fedcohort.selectors.uniform import Uniform
from fedcohort.signals import of_side
from fedcohort.types import Cohort, Index, Model, Outcome


class BackendContract:
    """What every backend promises: one fate per dispatched client, aligned rows, a clock that moves forward."""

    buffer_size: ClassVar[int] = 0
    cohort_size: ClassVar[int] = 4
    deadline: ClassVar[float] = 1e4
    patience: ClassVar[int] = 1000  # calls of `replies` after which a round counts as hung

    def make(self) -> tuple[Backend, Model]:
        """A fresh backend and an initial model."""
        raise NotImplementedError("override make() to return a backend and a model")

    def dispatched(self, backend: Backend, model: Model) -> Dispatch:
        """Send some available clients out."""
        clients = backend.available(0)[: self.cohort_size]
        cohort = Cohort(clients)
        plan = backend.plan(0, cohort)
        work = Dispatch(0, model, cohort, plan, frozenset())
        backend.dispatch(work)
        return work

    def collected(self, backend: Backend, wanted: int) -> list[Arrivals]:
        """Everything that arrives until everybody's fate is known."""
        found: list[Arrivals] = []
        until = backend.clock + self.deadline
        while sum(a.clients.size for a in found) < wanted:
            assert len(found) < self.patience, "replies() neither delivers nor times out"
            found.append(backend.replies(until, wanted))
            if found[-1].timed_out:
                break
        return found

    def test_those_available_are_sorted_slots_of_the_population(self) -> None:
        """Unique, ascending, whole numbers below the population."""
        backend, _ = self.make()
        here = backend.available(0)
        assert here.dtype == np.int64
        assert np.array_equal(here, np.unique(here))
        assert here.size == 0 or (here[0] >= 0 and here[-1] < backend.population)
        assert backend.samples.shape == (backend.population,)

    def test_profiles_have_one_row_per_slot(self) -> None:
        """Every profile column that is offered covers the population."""
        backend, _ = self.make()
        backend.available(0)
        for name, column in backend.profiles(of_side(backend.provides, "profile")).items():
            assert len(column) == backend.population, name

    def test_every_dispatched_client_arrives_once(self) -> None:
        """Nobody twice, nobody unasked, and nobody is under way in the end."""
        backend, model = self.make()
        work = self.dispatched(backend, model)
        found = self.collected(backend, work.cohort.clients.size)
        arrived = np.concatenate([a.clients for a in found])
        assert np.array_equal(np.sort(arrived), np.sort(work.cohort.clients))
        assert backend.under_way().size == 0

    def test_rows_are_aligned(self) -> None:
        """One row of updates and signals for each OK, in this order; a reason for everybody else."""
        backend, model = self.make()
        work = self.dispatched(backend, model)
        for arrivals in self.collected(backend, work.cohort.clients.size):
            ok = arrivals.outcome == Outcome.OK
            assert set(np.unique(arrivals.outcome)) <= {Outcome.OK, Outcome.FAILED, Outcome.REJECTED}
            assert np.array_equal(arrivals.updates.clients, arrivals.clients[ok])
            assert arrivals.seconds.shape == arrivals.clients.shape
            assert np.isfinite(arrivals.seconds).all()
            assert (arrivals.seconds >= 0).all()
            for name, column in arrivals.signals.items():
                assert len(column) == int(ok.sum()), name
            if ok.any():
                assert arrivals.updates.delta.shape == (int(ok.sum()), model.params.size)
            for client in arrivals.clients[~ok].tolist():
                assert arrivals.reasons.get(client), f"client {client} failed without a reason"

    def test_time_that_is_over_is_said(self) -> None:
        """A round that nobody has answered yet ends at once when its time is over, and the rest stays under way."""
        backend, model = self.make()
        work = self.dispatched(backend, model)
        first = backend.replies(backend.clock, work.cohort.clients.size)
        if first.clients.size < work.cohort.clients.size:
            assert first.timed_out
            left = np.setdiff1d(work.cohort.clients, first.clients)
            assert np.array_equal(np.sort(backend.under_way()), left) or self.buffer_size

    def test_the_clock_never_goes_back(self) -> None:
        """Not while asking, dispatching, waiting or finishing."""
        backend, model = self.make()
        seen = [backend.clock]
        work = self.dispatched(backend, model)
        seen.append(backend.clock)
        self.collected(backend, work.cohort.clients.size)
        seen.append(backend.clock)
        backend.give_up(backend.under_way(), timed_out=True)
        backend.finish(idle=False, pause=1.0)
        seen.append(backend.clock)
        assert seen == sorted(seen)

    def test_those_given_up_do_not_arrive_later(self) -> None:
        """What comes after nobody waits any more is not delivered to a later round."""
        backend, model = self.make()
        work = self.dispatched(backend, model)
        first = backend.replies(backend.clock, work.cohort.clients.size)
        late: Index = np.setdiff1d(work.cohort.clients, first.clients)
        fates = backend.give_up(late, timed_out=False)
        backend.finish(idle=False, pause=0.0)
        assert set(fates.lost) <= set(late.tolist())
        if self.buffer_size:
            return
        assert backend.under_way().size == 0

    def test_state_is_arrays_and_comes_back(self) -> None:
        """A second backend that loads the state continues at the same clock."""
        backend, model = self.make()
        work = self.dispatched(backend, model)
        self.collected(backend, work.cohort.clients.size)
        backend.finish(idle=False, pause=5.0)
        state = backend.state_dict()
        assert all(isinstance(v, np.ndarray) for v in state.values())
        other, _ = self.make()
        other.load_state_dict(state)
        assert other.clock >= backend.clock - 1e-6 or not backend.repeatable

    def test_the_engine_runs_on_it(self) -> None:
        """Three rounds: every dispatched client is told once, with one outcome."""
        backend, model = self.make()
        policy = RoundPolicy(cohort_size=self.cohort_size, deadline=self.deadline, buffer_size=self.buffer_size)
        session = Session(Uniform(), cohort_size=self.cohort_size, seed=3, asynchronous=self.buffer_size > 0)
        engine = RoundEngine(session, self.method(backend), backend, policy, model)
        for _ in range(3):
            row = engine.round()
            assert sum(row[o.name.lower()] for o in Outcome) == row["asked"]
            assert row["seconds"] >= 0
        assert session.index == 3
        told = np.concatenate(engine.history.cohorts)
        assert self.buffer_size or (told.size and session.out.size == 0)

    def method(self, backend: Backend) -> FedAvg:
        """The method that the engine runs; FedAvg unless the backend needs one of its own."""
        del backend
        return FedAvg()
