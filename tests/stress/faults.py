"""A deterministic world of faults around the production engine: clients that misbehave by a script, a disk that can be
full, and a process that can die at any moment.

`Simulated` and `OnFlower` are one process each, on the two backends, with the files that production uses. A crash is an
exact copy of the files as they are at that moment; the next process starts on the copy. On Flower the network outlives
the server: replies to the dead process arrive at its successor.
"""

from __future__ import annotations

import errno
import math
import shutil
import sqlite3

import numpy as np
from flwr.app import Error
from tests.flower.grid import FakeClient, FakeGrid, arrays_of, as_record, timing
from tests.stress.federation import SAMPLES, Sum, Task, World
from tests.stress.rubbish import with_extra

from fedcohort.flower import CohortStrategy, wire
from fedcohort.flower.server.recorded_run import RecordedRun
from fedcohort.registry.lookup import make_selector
from fedcohort.rounds.replay import Known, replay
from fedcohort.rounds.session import Session
from fedcohort.rounds.validation import Limits
from fedcohort.sim.run_settings import RunSettings
from fedcohort.sim.simulation import Simulation
from fedcohort.storage.disk import DISK, Disk
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.storage.run_folder import RunFolder
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Outcome

MANY = 12  # clients at most
DEADLINE = 30.0
SEED = 7
SYNCHRONOUS = {"min_replies": 2, "back_off": 5.0, "over_select": "adaptive"}
POLICY = {"cohort_size": 3, "deadline": DEADLINE, "seed": SEED}
FATES = {  # what a client does, and the seconds that it takes
    "good": 2.0,
    "slow": 20.0,
    "late": 45.0,
    "lost": 5.0,
    "fails": 3.0,
    "nan": 2.0,
    "weight": 2.0,
    "signal": 2.0,
    "huge": 2.0,
    "malformed": 2.0,  # a wrong shape on Flower, where bytes are read; a negative number of steps in the simulator
    "twice": 2.0,
    "stray": 2.0,  # a good reply, and one that nobody asked for
}
GOOD = ("good", "slow", "twice", "stray")  # of those, what arrives in time is accepted


class Crash(BaseException):
    """The process is gone."""


class FaultyDisk:
    """The production disk with faults: `full` makes every write fail; `dies_in` counts down to a crash."""

    def __init__(self):
        self.full, self.dies_in, self.at_death = False, None, lambda: None
        for name in ("write", "sync", "replace", "unlink", "sync_folder"):
            vars(DISK)[name] = self._watched(getattr(Disk, name), full=name == "write")
        vars(DISK)["connect"] = self.connect

    def remove(self):
        vars(DISK).clear()

    def moment(self):
        """Something has happened: it may have been the last thing."""
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in < 0:
                self.dies_in = None
                self.at_death()
                raise Crash

    def _watched(self, inner, *, full):
        def step(*args):
            if full and self.full:
                inner(DISK, args[0], args[1][: len(args[1]) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")
            inner(DISK, *args)
            self.moment()

        return step

    def connect(self, path, *, read_only=False):
        if read_only:
            return Disk.connect(DISK, path, read_only=True)
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, sql, *values):
                if sql.startswith("INSERT"):
                    if disk.full:
                        raise sqlite3.OperationalError("database or disk is full")
                    disk.moment()
                return super().execute(sql, *values)

            def __exit__(self, *what):
                super().__exit__(*what)
                disk.moment()

        return sqlite3.connect(path, factory=Connection)


class Script:
    """What everybody does in each round, the disk, and what clients were sent. It outlives every process."""

    def __init__(self, disk, folder, selector, buffer_size):
        self.disk, self.folder, self.selector, self.buffer_size = disk, folder, selector, buffer_size
        self.fates = {}  # round -> one fate for each client
        self.closed = 0  # rounds whose end was durable when a process started
        self.policy = {}  # other settings than usual
        self.patience = 0  # how long the open round may still keep the server busy

    def fate(self, index, client):
        return self.fates.get(index, ["good"] * MANY)[client]

    def seen(self, index, clients):
        """Work has reached these clients: the cohort must be on disk, and the round must not have been closed."""
        assert index >= self.closed, f"round {index} is trained again"
        out = set()
        for kind, _, found, _ in records(self.folder):
            out = out | set(found) if kind == "ask" else out - set(found) if kind == "tell" else out
        assert set(clients) <= out, "the cohort was not durable when it was sent"
        self.disk.moment()

    def waited(self):
        """The server waits: not for ever."""
        self.patience -= 1
        assert self.patience > 0, "a round does not end"
        self.disk.moment()


def records(folder):
    """(kind, round, clients, outcomes) of every record on the disk."""
    reader = JournalReader(RunFolder(folder).journal)
    found = []
    for record in reader.records():
        arrays = record.unpack()[0] if record.kind in ("ask", "tell") else {}
        clients, outcome = arrays.get("clients", np.empty(0, np.int64)), arrays.get("outcome", np.empty(0))
        found.append((record.kind, record.round, clients.tolist(), outcome.tolist()))
    reader.close()
    return found


def expected_model(folder, params):
    """The model as the journal says it must be, and how many replies are in it."""
    model, used, sent = np.zeros(params, np.float32), 0, {}
    for kind, index, clients, outcomes in records(folder):
        if kind == "ask":
            sent.update(dict.fromkeys(clients, index))
        elif kind == "again":  # a new process has sent it out anew
            sent = dict.fromkeys(sent, index)
        for client, outcome in zip(clients, outcomes, strict=False):
            index = sent.pop(client)
            if outcome == Outcome.OK:
                used += 1
                model[client] += 1.0
                model[params // 2 + client] += index + 1.0
    return model, used


class Process:
    """A server from start to end, on either backend."""

    def round(self):
        self.script.patience = 200
        return self.engine.round()

    def gone(self):
        """Killed: nothing is written any more."""
        self.journal._db.close()
        self.journal._lock.release()

    def end(self):
        """It ends by itself, in order."""
        self.journal.close()

    def replayed(self):
        """What a fresh selector knows after all that the journal holds."""
        session = Session(
            make_selector(self.script.selector), cohort_size=3, seed=SEED, asynchronous=self.script.buffer_size > 0
        )
        reader = JournalReader(RunFolder(self.script.folder).journal)
        replay(session, reader.records(), self.known())
        reader.close()
        return session.selector.state_dict()


def policy(script):
    usual = {"buffer_size": script.buffer_size} if script.buffer_size else SYNCHRONOUS
    return {**POLICY, **usual, **script.policy}


class ScriptedWorld(World):
    """Simulated clients by the script."""

    def __init__(self, script):
        super().__init__(MANY)
        self.script = script

    def _are(self, index, clients, *fates):
        return np.array([self.script.fate(index, int(c)) in fates for c in clients], np.bool_)

    def seconds(self, index, clients, work):
        return np.array([FATES[self.script.fate(index, int(c))] + 0.1 * c for c in clients])

    def dropped(self, index, clients, *, probe=False):
        return self._are(index, clients, "lost")

    def broken(self, index, clients):
        self.script.seen(index, clients.tolist())
        return self._are(index, clients, "fails")

    def tamper(self, index, updates, signals):
        updates = updates.rows(np.arange(len(updates)))
        updates.delta[self._are(index, updates.clients, "nan")] = np.nan
        updates.delta[self._are(index, updates.clients, "huge")] = 1e6
        updates.weight[self._are(index, updates.clients, "weight")] = -1.0
        updates.steps[self._are(index, updates.clients, "malformed")] = -1
        bad = self._are(index, updates.clients, "signal")
        return updates, {n: np.where(bad, np.nan, v) for n, v in signals.items()}


class Simulated(Process):
    """A simulated run in its folder."""

    def __init__(self, script):
        self.script, path = script, RunFolder(script.folder).journal
        world = ScriptedWorld(script)
        self.journal = Journal.open(path) if path.exists() else Journal.create(path, {"seed": SEED})
        try:
            simulation = Simulation(
                make_selector(script.selector),
                Sum(),
                world,
                Task(world),
                RunSettings(rounds=10**6, max_norm=1e3, **policy(script)),
                journal=self.journal,
                snapshots=Snapshots(RunFolder(script.folder).snapshots),
            )
            self.engine, self.method, self.world = simulation.engine, simulation.method, world
            inner = simulation.federation.replies
            simulation.federation.replies = lambda until, enough: self._noisy(inner(until, enough))
            simulation.resume()
        except BaseException:
            self.journal.close()
            raise

    def _noisy(self, here):
        """The arrivals and, beside them, second replies and replies that nobody asked for."""
        self.script.waited()
        index, replied = self.engine.session.index, here.updates.clients
        fate = np.array([self.script.fate(index, int(c)) for c in replied], object)
        out = self.engine.out
        strangers = [1000 + np.flatnonzero(fate == "stray"), out.clients[~out.running]]  # these have answered before
        return with_extra(here, np.flatnonzero(fate == "twice"), np.concatenate(strangers))

    def known(self):
        return Known(self.world.profiles())


class ScriptedClient(FakeClient):
    """A Flower client by the script."""

    def __init__(self, number, script):
        keys = {"utility": 1.0 + number, "probe_loss": 1.0 + number}
        super().__init__(f"{number:02}", samples=SAMPLES, provides=["samples", *keys], **keys)
        self.number, self.script = number, script

    def fate(self, message):
        return self.script.fate(message.content[wire.REQUEST]["round"], self.number)

    def delay(self, message):
        kind = message.metadata.message_type
        if kind != "train":
            return 0.0 if kind == wire.REGISTER else 1.0
        fate = self.fate(message)
        return None if fate == "lost" else FATES[fate] + 0.1 * self.number

    def train(self, message):
        fate, index = self.fate(message), message.content[wire.REQUEST]["round"]
        if fate == "fails":
            return Error(2, "training failed")
        arrays = arrays_of(message.content["arrays"])
        counted = arrays["w"].copy()
        counted[self.number] += 1.0
        counted[MANY + self.number] += index + 1.0
        bad = {"nan": counted * np.nan, "huge": counted + 1e6, "malformed": counted[:-1]}
        body = super().train(message)
        body["arrays"] = as_record({"w": bad.get(fate, counted)})
        if fate == "weight":
            body["metrics"]["num-examples"] = -1
        if fate == "signal" and "utility" in body[wire.SIGNALS]:
            body[wire.SIGNALS]["utility"] = float("nan")
        return body


class Network(FakeGrid):
    """A SuperLink in memory; it outlives the server."""

    def __init__(self, script):
        super().__init__([])
        self.script, self.tamper = script, self.repeated
        self.grow(4)

    def grow(self, many):
        for number in range(len(self.clients), min(len(self.clients) + many, MANY)):
            self.clients[1001 + number] = ScriptedClient(number, self.script)

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == "train":
                index = message.content[wire.REQUEST]["round"]
                self.script.seen(index, [message.metadata.dst_node_id - 1001])
        ids = super().push_messages(messages)
        self.pushed.clear()
        self.script.disk.moment()
        return ids

    def repeated(self, message):
        client = self.clients[message.metadata.src_node_id]
        last = client.seen.pop()
        client.seen.clear()
        if last.metadata.message_type != "train":
            return [message]
        fate = client.fate(last)
        if fate != "stray":
            return [message, message] if fate == "twice" else [message]
        stray = type(message)(message.content, reply_to=last)
        stray.metadata.__dict__["_reply_to_message_id"] = "never-sent"
        return [message, stray]

    def sleep(self, seconds):
        self.script.waited()
        before = self.now
        super().sleep(seconds)
        self.now = max(self.now, math.nextafter(before, math.inf))  # however short: time passes


class OnFlower(Process):
    """A deployment with its state folder."""

    def __init__(self, script):
        self.script = script
        self.grid = script.network
        self.method = Sum()
        strategy = CohortStrategy(
            method=self.method,
            selector=script.selector,
            state_dir=script.folder,
            limits=Limits(max_norm=1e3),
            **policy(script),
            **timing(self.grid),
        )
        script.patience = 200
        self.engine = strategy._begin(self.grid, as_record({"w": np.zeros(2 * MANY, np.float32)}), 1e6)
        self.journal = self.engine.session.journal
        assert [int(name) for name in self.engine.backend.clients.roster.ids] == list(
            range(self.engine.backend.population)
        )

    def known(self):
        return RecordedRun(self.script.folder, model=False)


def copied(folder, target):
    """The files as they are now."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("lock", "*-shm"))
