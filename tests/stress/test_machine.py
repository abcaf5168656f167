"""A state machine over everything that can happen to a server, with every invariant checked after every step.

Rules: register, plan, reply, late reply, duplicate, rubbish, lost request, tick, crash, disk full, space again, second
server. Invariants: nothing acknowledged is ever lost; cohorts are durable before they are sent (the network
checks it); every round ends in time; the selector knows what the journal says; no reply is used twice or unasked.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.stress.faults import POLICY, Clock, FaultyDisk, Network, Server, replayed_state, reply_of

from fedcohort.errors import RunLocked, StoreError
from fedcohort.storage.journal import Journal


class Faults(RuleBasedStateMachine):
    """One federation of up to 20 clients, one server after the other."""

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp(prefix="faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.clock, self.disk, self.network = Clock(), FaultyDisk(), Network()
        self.life, self.clients, self.acknowledged = 0, 4, 0
        self.heads = {}  # length -> head at that length, of everything acknowledged
        self.server = self._server()

    def _server(self):
        server = Server(self.root / str(self.life), self.clock, self.disk, self.network)
        server.recover()
        self._note(server)
        return server

    def _note(self, server):
        self.acknowledged = max(self.acknowledged, server.journal.length)
        self.heads.setdefault(server.journal.length, server.journal.head)
        assert self.heads[server.journal.length] == server.journal.head

    @rule(many=st.integers(1, 3))
    def register(self, many):
        self.clients = min(self.clients + many, 20)

    @precondition(lambda self: self.server.started and not self.server.engine.open)
    @rule()
    def plan(self):
        try:
            self.server.plan(np.arange(self.clients))
        except StoreError:
            assert self.disk.full
            assert not self.server.engine.open
        self._note(self.server)

    @precondition(lambda self: self.network.asked)
    @rule(data=st.data())
    def reply(self, data):
        """A client answers what it was asked last; it may be late, or the round may be gone."""
        at = data.draw(st.integers(0, len(self.network.asked) - 1))
        round_, client = self.network.asked.pop(at)
        engine = self.server.engine
        in_time = (
            self.server.started
            and engine.open
            and engine.session.index == round_
            and client in engine._open.expected.asked
            and self.clock.now <= engine._open.start + POLICY.deadline
        )
        reason = engine.reply(reply_of(round_, client))
        assert (reason is None) == in_time  # every honest reply in time is accepted, no other is
        if data.draw(st.booleans()):  # the network repeats itself
            assert engine.reply(reply_of(round_, client)) is not None

    @precondition(lambda self: self.network.asked)
    @rule(data=st.data())
    def lose(self, data):
        """The request or its answer is lost."""
        self.network.asked.pop(data.draw(st.integers(0, len(self.network.asked) - 1)))

    @rule(client=st.integers(-1, 25), back=st.integers(-2, 2), field=st.sampled_from(["weight", "delta", "signals"]))
    def rubbish(self, client, back, field):
        message = {**reply_of(self.server.session.index + back, client), field: float("nan")}
        assert self.server.engine.reply(message) is not None

    @rule(seconds=st.sampled_from([0.0, 1.0, 29.0, 31.0, 100.0]))
    def tick(self, seconds):
        self.clock.now += seconds
        before = self.server.model.copy()
        if not self.server.started:
            self.server.recover()
            self._note(self.server)
            return
        try:
            closed = self.server.tick()
        except StoreError:
            assert self.disk.full
            assert self.server.engine.open  # it can be settled when there is space
            assert np.array_equal(self.server.model, before)
            return
        if closed is not None and closed.abandoned:
            assert np.array_equal(self.server.model, before)
        self._note(self.server)

    @rule()
    def crash(self):
        self.life += 1
        self.server.crash(self.root / str(self.life))
        self.server = self._server()

    @rule()
    def disk_full(self):
        self.disk.full = True

    @rule()
    def space_again(self):
        self.disk.full = False

    @rule()
    def second_server(self):
        before = self._files()
        with pytest.raises(RunLocked):
            Journal.open(self.server.path)
        assert self._files() == before

    def _files(self):
        found = sorted(p for p in self.server.folder.rglob("*") if p.is_file() and not p.name.endswith("-shm"))
        return {p.name: p.read_bytes() for p in found}

    @invariant()
    def nothing_acknowledged_is_lost(self):
        looked = Journal.read(self.server.path)
        try:
            assert looked.length >= self.acknowledged
            assert all(self.heads.get(r.seq + 1, r.hash) == r.hash for r in looked.records())
        finally:
            looked.close()

    @invariant()
    def rounds_end(self):
        engine = self.server.engine
        if self.server.started and engine.open and self.clock.now >= engine._open.start + POLICY.deadline:
            assert engine.due() is not None
        assert engine.not_before <= self.clock.now + POLICY.max_back_off

    @invariant()
    def the_selector_knows_what_the_journal_says(self):
        if self.server.started and not self.server.engine.open:
            known = self.server.session.selector.state_dict()
            for name, value in replayed_state(self.server.path).items():
                rows = known[name][: value.shape[0]] if value.ndim else known[name]  # rows of new clients are empty
                np.testing.assert_array_equal(rows, value)

    @invariant()
    def replies_are_used_once(self):
        rounds = [index for index, _ in self.server.used]
        assert rounds == sorted(set(rounds))
        total = np.zeros(2, np.float32)
        for index, clients in self.server.used:
            assert clients == sorted(set(clients))
            for client in clients:
                total = total + reply_of(index, client)["delta"]
        assert total.tobytes() == self.server.model.tobytes()

    def teardown(self):
        if hasattr(self, "server"):
            self.server.journal._db.close()
            self.server.journal._lock.release()
            shutil.rmtree(self.root)


TestFaults = Faults.TestCase
TestFaults.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
