"""A state machine over everything that can happen to a server, on both backends, with every invariant checked after
every step.

Rules: a round with clients that are late, lost, failing, lying, repeating themselves; more clients; a crash at any
moment of a round, or of the start after it; a crash between rounds; disk full and space again; a second owner.

Invariants: nothing acknowledged is ever lost; a cohort is durable before anybody sees it; every round ends; everybody
that was asked is told of once; the model holds every accepted reply once, and no other; the selector knows what the
journal says; a round whose end was durable is not trained again (`faults.Script` checks that, and the second).
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.stress.faults import (
    DEADLINE,
    FATES,
    GOOD,
    MANY,
    Crash,
    FaultyDisk,
    Network,
    OnFlower,
    Script,
    Simulated,
    copied,
    expected_model,
    records,
)

from fedcohort.errors import RunLocked, StoreError
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.storage.run_folder import RunFolder
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Outcome

SELECTORS = ("oort", "power-of-choice(d=5)")
fates = st.lists(st.sampled_from(sorted(FATES)), min_size=MANY, max_size=MANY)


class Faults(RuleBasedStateMachine):
    """One federation of up to 12 clients, one server after the other."""

    kind, buffer_size = Simulated, 0

    @initialize(selector=st.sampled_from(SELECTORS))
    def begin(self, selector):
        self.root = Path(tempfile.mkdtemp(prefix="faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.disk, self.life = FaultyDisk(), 0
        (self.root / "0").mkdir()
        self.script = Script(self.disk, self.root / "0", selector, self.buffer_size)
        if self.kind is OnFlower:
            self.script.network = Network(self.script)
        self.acknowledged, self.heads = 0, {}  # length -> head at that length
        self.process = None
        self.start()

    def start(self, dies_in=None):
        """A new process, if the disk lets it; it may die before it has started."""
        self.script.closed = self.closed()
        self.disk.dies_in, self.disk.at_death = dies_in, self.die
        try:
            self.process = self.kind(self.script)
        except Crash:
            self.buried()
            self.start()
        except StoreError:
            assert self.disk.full
        finally:
            self.disk.dies_in = None
        self.note()

    def closed(self):
        """Rounds whose end is on the disk."""
        folder = RunFolder(self.script.folder)
        found = Snapshots(folder.snapshots).latest()
        told = [kind for kind, *_ in records(folder.path) if kind == "tell"] if folder.begun else []
        return max(len(told), found[0] if found else 0)

    def die(self):
        """The files as they are in this moment are what the next process finds."""
        self.life += 1
        self.note()
        copied(self.script.folder, self.root / str(self.life))

    def buried(self):
        """The dead process is cleared away, and its folder with it."""
        if self.process is not None:
            self.process.gone()
        self.process, old = None, self.script.folder
        self.script.folder = self.root / str(self.life)
        shutil.rmtree(old, ignore_errors=True)

    def note(self):
        """What the process was told to be on the disk."""
        if self.process is not None:
            journal = self.process.journal
            self.acknowledged = max(self.acknowledged, journal.length)
            assert self.heads.setdefault(journal.length, journal.head) == journal.head

    @rule(fates=fates)
    def round(self, fates):
        self.play(fates)

    @rule(fates=fates, dies_in=st.integers(0, 40), again=st.none() | st.integers(0, 15))
    def interrupted_round(self, fates, dies_in, again):
        self.play(fates, dies_in, again)

    def play(self, fates, dies_in=None, again=None):
        """A round, or as much of it as the process lives to see."""
        if self.process is None:
            self.start()
            if self.process is None:
                return
        engine = self.process.engine
        index, before = engine.session.index, engine.model.params
        if self.kind is OnFlower:
            self.script.fates[index] = fates
        else:  # a simulated round that is done again is the same again
            self.script.fates.setdefault(index, fates)
        self.disk.dies_in = dies_in
        try:
            row = self.one_round()
        except Crash:
            self.buried()
            self.start(again)
            return
        finally:
            self.disk.dies_in = None
        if row is None:
            return
        self.note()
        assert engine.session.index == index + 1
        if row["ok"] == 0:
            assert np.array_equal(engine.model.params, before)
        if not self.buffer_size:
            assert row["seconds"] <= 2 * DEADLINE  # probing has as long again

    def one_round(self):
        """Its numbers; None where the disk was full and the process has ended."""
        try:
            return self.process.round()
        except StoreError:
            assert self.disk.full
            self.note()
            self.process.end()
            self.process = None
            return None

    @precondition(lambda self: self.kind is OnFlower)
    @rule(many=st.integers(1, 3))
    def register(self, many):
        self.script.network.grow(many)

    @precondition(lambda self: self.process is not None)
    @rule(again=st.none() | st.integers(0, 15))
    def crash(self, again):
        """Between two rounds."""
        self.die()
        self.buried()
        self.start(again)

    @rule(full=st.sampled_from([False, False, True]))
    def space(self, full):
        self.disk.full = full

    @precondition(lambda self: self.process is not None)
    @rule()
    def second_owner(self):
        before, sent = self.files(), getattr(self.script, "network", None)
        queue = list(sent.queue) if sent else []
        with pytest.raises(RunLocked):
            self.kind(self.script)
        assert self.files() == before
        assert not sent or sent.queue == queue

    def files(self):
        found = sorted(p for p in self.script.folder.rglob("*") if p.is_file() and not p.name.endswith("-shm"))
        return {p.name: p.read_bytes() for p in found}

    @invariant()
    def nothing_acknowledged_is_lost(self):
        reader = JournalReader(RunFolder(self.script.folder).journal)
        length = 0
        for record in reader.records():
            length = record.seq + 1
            assert self.heads.setdefault(length, record.hash) == record.hash
        reader.close()
        assert length >= self.acknowledged

    @invariant()
    def everybody_is_told_of_once(self):
        """One outcome for everybody that was asked, and one that fits what the client did."""
        out, sent, asked = Counter(), {}, {}
        for kind, index, clients, outcomes in records(self.script.folder):
            if kind == "ask":
                assert not out & Counter(clients)
                out.update(clients)
                asked.update(dict.fromkeys(clients, index))
                sent.update(dict.fromkeys(clients, index))
            elif kind == "again":
                sent = dict.fromkeys(out, index)
            elif kind == "tell":
                assert Counter(clients) <= out
                assert self.buffer_size or Counter(clients) == out
                for client, outcome in zip(clients, outcomes, strict=True):
                    fate = self.script.fate(sent[client], client)
                    assert Outcome(outcome) in possible(fate, self.script.selector), (index, client, fate)
                out -= Counter(clients)
        if self.process is not None:
            session = self.process.engine.session
            again = {client for client in out if asked[client] == session.index}  # of a round that is to be done again
            assert sorted(set(out) - again) == sorted(session.out.tolist())

    @invariant()
    def replies_are_used_once(self):
        if self.process is not None:
            model, used = expected_model(self.script.folder, 2 * MANY)
            assert model.tobytes() == self.process.engine.model.params.tobytes()
            assert used == self.process.method.used

    @invariant()
    def the_selector_knows_what_the_journal_says(self):
        if self.process is not None:
            known = self.process.engine.session.selector.state_dict()
            for name, value in self.process.replayed().items():
                both = slice(min(len(known[name]), len(value)) if value.ndim else None)  # rows come with being asked
                np.testing.assert_array_equal(np.atleast_1d(known[name])[both], np.atleast_1d(value)[both])

    @invariant()
    def nobody_is_out_for_ever(self):
        if self.process is not None and self.process.engine.out.rows:
            engine = self.process.engine
            departed = engine.out.rows["departed"][engine.out.running]
            assert not departed.size or engine.backend.clock - departed.min() <= DEADLINE

    def teardown(self):
        if hasattr(self, "script"):
            self.disk.remove()
            if self.process is not None:
                self.process.gone()
            shutil.rmtree(self.root)


def possible(fate, selector):
    """The outcomes that a client that did this can have; LATE also where a round closed before."""
    if fate == "late":
        return {Outcome.LATE}
    if fate in ("lost", "fails"):
        return {Outcome.FAILED, Outcome.LATE}
    if fate in GOOD or (fate == "signal" and selector != "oort"):  # only Oort reads a signal of clients
        return {Outcome.OK, Outcome.FILTERED, Outcome.LATE}
    return {Outcome.REJECTED, Outcome.LATE}


# without shrinking: a failure is shown as it was found, within the time that a test has
STEPS = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


def machine(backend, buffer_size):
    made = type(f"{backend.__name__}{buffer_size}", (Faults,), {"kind": backend, "buffer_size": buffer_size}).TestCase
    made.settings = STEPS
    return made


TestSimulated = machine(Simulated, 0)
TestSimulatedAsynchronous = machine(Simulated, 2)
TestFlower = machine(OnFlower, 0)
TestFlowerAsynchronous = machine(OnFlower, 2)
