"""A server that is resumed, restarted or cut off, and nodes that come and go, on an in-memory grid."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import strategy as stock
from tests.flower.grid import FakeClient, FakeGrid, arrays_of, make, start

from fedcohort.errors import (
    RunLocked,
    StateMismatch,
    StoreError,
)
from fedcohort.flower import wire
from fedcohort.rounds.history import read_history
from fedcohort.selectors.uniform import Uniform
from fedcohort.storage.journal import Journal


def clients_of(count=6):
    keys = {"provides": ["utility", "samples"]}
    return [FakeClient(str(i), step=0.1 * (i + 1), seconds=1.0 + i, utility=5.0 - i, **keys) for i in range(count)]


def resumable(state_dir, grid, **keys):
    return make(grid, stock.FedAdam(fraction_evaluate=0.0), selector="oort", state_dir=state_dir, **keys)


def cohorts(folder):
    from fedcohort.storage.journal import Journal

    journal = Journal.read(folder / "journal.db")
    try:
        return [(r.round, r.unpack()[0]["clients"].tolist()) for r in journal.records("ask")]
    finally:
        journal.close()


def test_a_finished_run_is_not_run_again(tmp_path):
    grid = FakeGrid(clients_of())
    first = start(resumable(tmp_path, grid), grid, rounds=3)
    again = FakeGrid(clients_of())
    second = start(resumable(tmp_path, again), again, rounds=3)
    np.testing.assert_array_equal(first.arrays.to_numpy_ndarrays()[0], second.arrays.to_numpy_ndarrays()[0])
    assert not [m for m in again.pushed if m.metadata.message_type == "train"]
    longer = start(resumable(tmp_path, again), again, rounds=4)
    assert sorted(longer.train_metrics_clientapp) == [1, 2, 3, 4]


def test_what_the_rounds_lack_is_in_the_journal_once_also_where_a_run_is_continued(tmp_path, recwarn):
    """Nobody measures a score here. The second start goes on where the first has ended, and has nothing new to say."""

    class Reader(Uniform):
        reads_score = True

    for rounds in (2, 4):
        recwarn.clear()
        grid = FakeGrid(clients_of())
        start(make(grid, selector=Reader(), state_dir=tmp_path), grid, rounds=rounds)
        assert len([w for w in recwarn if "has no score" in str(w.message)]) == (rounds == 2)
        (note,) = read_history(Journal.read(tmp_path / "journal.db")).notes
        assert note.startswith("round 0 has no score, and Reader learns from it")


def test_another_runs_folder_is_refused(tmp_path):
    grid = FakeGrid(clients_of())
    start(resumable(tmp_path, grid), grid, rounds=1)
    with pytest.raises(StateMismatch, match="selector = 'oort'"):
        start(make(grid, stock.FedAdam(fraction_evaluate=0.0), state_dir=tmp_path), grid)
    with pytest.raises(StateMismatch, match="seed"):
        start(resumable(tmp_path, grid, seed=5), grid)


def test_two_servers_cannot_share_a_folder(tmp_path):
    grid = FakeGrid(clients_of())
    first = resumable(tmp_path, grid)
    start(first, grid, rounds=1)
    from fedcohort.storage.journal import Journal

    journal = Journal.open(tmp_path / "journal.db")
    with pytest.raises(RunLocked):
        start(resumable(tmp_path, grid), grid)
    journal.close()


def test_arrival_order_does_not_change_a_bit():
    def run(order):
        clients = [FakeClient(str(i), step=0.1 * i + 0.05, seconds=float(order[i] + 1)) for i in range(5)]
        grid = FakeGrid(clients)
        return start(make(grid, cohort_size=5), grid, rounds=3).arrays.to_numpy_ndarrays()

    for mine, other in zip(run([0, 1, 2, 3, 4]), run([4, 2, 0, 3, 1]), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_probe_answers_reach_the_selector_and_bad_ones_do_not():
    class Liar(FakeClient):
        def measured(self, message):
            return {n: float("nan") for n in super().measured(message)}

    keys = {"provides": ["probe_loss", "samples"]}
    grid = FakeGrid(
        [*(FakeClient(str(i), probe_loss=1.0 + i, **keys) for i in range(5)), Liar("5", probe_loss=9.0, **keys)]
    )
    strategy = make(grid, selector="power-of-choice(d=6)", cohort_size=2)
    start(strategy, grid, rounds=2)
    asked = [sorted(row["names"]) for row in strategy.history]
    assert asked == [["3", "4"]] * 2
    probes = [m for m in grid.pushed if m.metadata.message_type == wire.PROBE]
    assert set(arrays_of(probes[0].content["arrays"])) == {"w", "b"}


class Restarting(FakeGrid):
    """In every round one client crashes and is back at once under a new node id; Flower lists the dead node on.

    Without authentication a SuperNode makes a key at every start and registers itself with it.
    """

    def __init__(self, clients):
        super().__init__(clients)
        self.dead, self.turn, self.next_id = set(), 0, 9000

    def restart(self):
        alive = [n for n in self.clients if n not in self.dead]
        old = alive[self.turn % len(alive)]
        self.turn += 1
        self.dead.add(old)
        self.next_id += 1
        self.clients[self.next_id] = self.clients[old]

    def get_nodes(self):
        times = {"registered_at": "2026-11-17T06:45:22.49+00:00", "last_activated_at": "2026-11-17T06:45:22.53+00:00"}
        return [NodeInfo(node_id=n, public_key=f"key of {n}".encode(), **times) for n in self.clients]

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        lost = {str(m.metadata.message_id) for m in messages if m.metadata.dst_node_id in self.dead}
        self.queue = [q for q in self.queue if str(q[2].metadata.reply_to_message_id) not in lost]
        return ids


def test_a_restart_storm_leaves_everybody_usable():
    """Three clients restart in turn, one before every round; after the last restart three of three reply."""
    grid = Restarting([FakeClient(name) for name in "abc"])
    strategy = make(grid, deadline=5.0, wait=20.0)
    seen = []

    def between(server_round, arrays):
        seen.append(server_round)
        if 0 < server_round < 7:
            grid.restart()

    start(strategy, grid, rounds=9, evaluate_fn=between)
    rows = strategy.history
    assert rows[-1]["ok"] == 3.0  # usable again within one round
    assert rows[-2]["ok"] == 3.0
    assert all(row["asked"] >= 2 for row in rows[2:])  # never asked fewer and fewer
    assert strategy._backend.population == 3
    assert not set(strategy._backend.clients.node.values()) & grid.dead


def test_an_older_node_comes_back_when_the_newer_one_is_gone():
    grid = FakeGrid([FakeClient("a"), FakeClient("b"), FakeClient("c")])
    strategy = make(grid, min_available=3)
    twin = 7000

    def between(server_round, arrays):
        if server_round == 1:
            grid.clients[twin] = grid.clients[1001]  # a second node with the id of the first
        if server_round == 3:
            del grid.clients[twin]

    start(strategy, grid, rounds=6, evaluate_fn=between)
    assert [row["ok"] for row in strategy.history] == [3.0] * 6
    assert 1001 in strategy._backend.clients.node.values()


class Unreadable(FakeGrid):
    """Like Flower: what is handed out is confirmed first, and one reply that cannot be read fails the whole pull."""

    def pull_messages(self, message_ids):
        wanted = set(message_ids)
        mine = [x for x in self.queue if x[0] <= self.now and x[2].metadata.reply_to_message_id in wanted]
        self.queue = [x for x in self.queue if x not in mine]
        if any(m.metadata.message_type == "train" and m.metadata.src_node_id == self.bad for _, _, m in mine):
            raise ValueError("Error parsing message")
        return [m for _, _, m in mine]


def test_a_reply_that_flower_cannot_read_costs_its_sender_and_nobody_else():
    grid = Unreadable([FakeClient(str(i)) for i in range(3)])
    grid.bad = next(iter(grid.get_node_ids()))
    strategy = make(grid)
    start(strategy, grid, rounds=7)
    first, *rest = [row for row in strategy.history if row["asked"]]
    assert first["late"] == 3.0  # pulled together with it: lost until their messages expire
    assert len(rest) >= 3
    assert all(row["ok"] == 2.0 for row in rest)  # pulled one by one


def test_a_lost_connection_is_not_taken_for_a_bad_reply():
    class Cut(FakeGrid):
        def pull_messages(self, message_ids):
            raise ConnectionError("gone")

    grid = Cut([FakeClient("0")])
    with pytest.raises(ConnectionError, match="gone"):
        start(make(grid), grid)


def test_a_run_that_nobody_answers_any_more_ends_with_a_sentence_and_can_be_resumed(tmp_path):
    """After two rounds everybody is gone: the run does not use up its rounds, and a later process goes on."""

    class Leaving(FakeClient):
        def delay(self, message):
            return None if len(strategy.history) >= 2 else super().delay(message)

    grid = FakeGrid([Leaving(str(i)) for i in range(3)])
    grid.online = lambda: list(grid.clients) if len(strategy.history) < 3 else []
    strategy = make(grid, state_dir=tmp_path, max_silence=100.0)
    with pytest.raises(StoreError, match=r"nobody has answered for \d+.*--database.*same state_dir"):
        start(strategy, grid, rounds=1000)
    assert len(strategy.history) < 20
    assert grid.now < 400.0
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    again = make(grid, state_dir=tmp_path)
    start(again, grid, rounds=len(strategy.history) + 1)
    assert again.history[-1]["ok"] == 3.0


def test_a_superlink_that_does_not_answer_ends_the_run(tmp_path):
    class Hanging(FakeGrid):
        def pull_messages(self, message_ids):
            if self.pushed and self.pushed[-1].metadata.message_type == "train":
                time.sleep(60.0)  # as Flower's client does when its SuperLink is gone
            return super().pull_messages(message_ids)

    grid = Hanging([FakeClient(str(i)) for i in range(3)])
    with pytest.raises(StoreError, match=r"SuperLink: it has not answered for 0\.2 s"):
        start(make(grid, state_dir=tmp_path, max_silence=0.2), grid)
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    again = make(grid, state_dir=tmp_path)
    start(again, grid, rounds=1)
    assert again.history[-1]["ok"] == 3.0


def test_a_signal_from_another_thread_is_heard_while_replies_are_pulled(tmp_path):
    """Flower's own way to end a ServerApp whose SuperLink has died; the main thread waits for a lock meanwhile."""

    class Dead(FakeGrid):
        def pull_messages(self, message_ids):
            if self.pushed and self.pushed[-1].metadata.message_type == "train":
                threading.Timer(0.2, signal.raise_signal, (signal.SIGUSR1,)).start()
                gone.wait()
            return super().pull_messages(message_ids)

    def end(number, frame):
        raise SystemExit("the SuperLink has died")

    gone, before = threading.Event(), signal.signal(signal.SIGUSR1, end)
    later = threading.Timer(15.0, gone.set)
    later.start()
    try:
        grid = Dead([FakeClient(str(i)) for i in range(3)])
        with pytest.raises(SystemExit, match="has died"):
            start(make(grid, state_dir=tmp_path, max_silence=30.0), grid)
    finally:
        later.cancel()
        signal.signal(signal.SIGUSR1, before)
    assert not gone.is_set()  # it was not the end of the wait that let the signal in
