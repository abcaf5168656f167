"""A deterministic world of faults: a clock that only moves when told, a disk that can be full, a network that delays,
loses and repeats, and a server on top that can crash at any moment.

The server is the smallest real one: round engine, session, journal and snapshots are the production code; the model is
the sum of what accepted clients sent. A crash is an exact copy of the files as they are at that moment.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3

import numpy as np

from fedcohort.errors import StoreError
from fedcohort.rounds.engine import Policy, RoundEngine
from fedcohort.rounds.replay import replay_ask, replay_tell
from fedcohort.rounds.roster import Roster
from fedcohort.rounds.session import Session
from fedcohort.selectors.oort import Oort
from fedcohort.storage.disk import Disk
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots

POLICY = Policy(size=3, deadline=30.0, quorum=2, back_off=5.0, max_back_off=40.0)
SIGNALS = {"utility": 0}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FaultyDisk(Disk):
    """Real files; `full` makes every write fail."""

    def __init__(self):
        self.full = False

    def connect(self, path, *, read_only=False):
        if read_only:
            return super().connect(path, read_only=True)
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, sql, *values):
                if disk.full and sql.startswith("INSERT"):
                    raise sqlite3.OperationalError("database or disk is full")
                return super().execute(sql, *values)

        return sqlite3.connect(path, factory=Connection)

    def write(self, path, data):
        if self.full:
            super().write(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(path, data)


class Network:
    """Messages under way. What was sent is checked against the journal at the moment of sending."""

    def __init__(self):
        self.asked = []  # (round, client): requests that reached a client
        self.replies = []  # replies on their way to the server

    def send(self, server, cohort):
        looked = Journal.read(server.path)
        try:
            last = list(looked.records("ask"))[-1]
        finally:
            looked.close()
        assert last.round == server.session.index  # the cohort is on disk before anything leaves
        assert last.unpack()[0]["clients"].tolist() == cohort.clients.tolist()
        self.asked += [(server.session.index, int(c)) for c in cohort.clients]


def reply_of(round_, client):
    return {
        "client": client,
        "round": round_,
        "weight": 1.0,
        "steps": 1,
        "signals": {"utility": 1.0 + client},
        "delta": np.array([client + 0.25 * round_, 1.0], np.float32),
    }


class Server:
    """One process: from start to crash."""

    def __init__(self, folder, clock, disk, network):
        self.folder, self.clock, self.disk, self.network = folder, clock, disk, network
        self.path, self.roster = folder / "journal.db", Roster()
        if self.path.exists():
            self.journal = Journal.open(self.path, disk)
        else:
            self.journal = Journal.create(self.path, {"seed": 7}, disk)
        self.snapshots = Snapshots(folder / "snapshots", disk)
        self.session = Session(Oort(), cohort_size=POLICY.size, seed=7, journal=self.journal)
        self.engine = RoundEngine(self.session, POLICY, clock=clock, params=2, signals=SIGNALS)
        self.model, self.used = np.zeros(2, np.float32), []
        found = self.snapshots.latest()
        if found is not None:
            _, arrays, meta = found
            self.session.load_state_dict({k[8:]: v for k, v in arrays.items() if k.startswith("session.")})
            self.engine.load_state_dict({k[7:]: v for k, v in arrays.items() if k.startswith("engine.")})
            self.model, self.used = arrays["model"], meta["used"]
        self.started = False

    def recover(self):
        """Replay what the journal has beyond the snapshot; False while the disk is too full to say so."""
        try:
            self.engine.recover(list(self.journal.records()), self.profiles(20))
        except StoreError:
            return False
        self.started = True
        return True

    @staticmethod
    def profiles(population):
        return {"samples": np.ones(population)}

    def plan(self, available):
        cohort = self.engine.plan(available, population=20, profiles=self.profiles(20))
        if cohort is not None:
            self.network.send(self, cohort)
        return cohort

    def tick(self):
        closed = self.engine.due()
        if closed is None:
            return None
        model = self.model.copy()
        for reply in closed.accepted:
            model = model + reply["delta"]
        self.engine.settle(closed, float(len(closed.accepted)))
        self.model = model
        if closed.accepted:
            self.used = [*self.used, [closed.index, [r["client"] for r in closed.accepted]]]
        arrays = {f"session.{k}": v for k, v in self.session.state_dict().items()}
        arrays.update({f"engine.{k}": v for k, v in self.engine.state_dict().items()})
        with contextlib.suppress(StoreError):  # the journal has it; the next snapshot will too
            self.snapshots.save(self.session.index, {**arrays, "model": self.model}, {"used": self.used})
        return closed

    def crash(self, target):
        """Leave the files as they are now in another folder, and be gone."""
        shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns("lock", "*-shm"))
        self.journal._lock.release()
        self.journal._db.close()


def replayed_state(path):
    """What a fresh selector knows after the journal's finished rounds."""
    looked = Journal.read(path)
    try:
        records = [r for r in looked.records() if r.kind in ("ask", "tell")]
    finally:
        looked.close()
    session = Session(Oort(), cohort_size=POLICY.size, seed=7)
    told = sum(r.kind == "tell" for r in records)
    for record in records[: 2 * told]:
        if record.kind == "ask":
            chosen = replay_ask(session, record, Server.profiles(20)).clients
            assert chosen.tolist() == record.unpack()[0]["clients"].tolist()
        else:
            replay_tell(session, record)
    return session.selector.state_dict()
