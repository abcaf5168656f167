"""The round driver and the register, on an in-memory grid with a clock of its own."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord
from flwr.proto.node_pb2 import NodeInfo
from tests.flower.grid import FakeClient, FakeGrid, fedavg, make, start, timing

from fedcohort.errors import (
    BadParameter,
    MissingSignal,
    RunWarning,
    StoreError,
    VersionMismatch,
)
from fedcohort.flower import CohortStrategy, wire
from fedcohort.selectors.wrappers import CoolDown
from fedcohort.types import Cohort


@pytest.mark.parametrize("maker", ["strategy", "method"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_selector_that_learns_from_a_score_is_told_where_nobody_measures_one(maker, wrapped, recwarn):
    """An own class that only declares `reads_score`; with an evaluate_fn there is nothing to say."""

    class Learner:
        needs, reads_score = frozenset(), True

        def select(self, rnd, rng):
            return Cohort(rnd.available[: rnd.size])

        def observe(self, result): ...

        def state_dict(self):
            return {}

        def load_state_dict(self, arrays): ...

    def said(**keys):
        recwarn.clear()
        grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
        selector = CoolDown(inner=Learner()) if wrapped else Learner()
        made = {"inner": fedavg()} if maker == "strategy" else {"method": "fedavg"}
        start(CohortStrategy(**made, selector=selector, cohort_size=1, deadline=10.0, **timing(grid)), grid, **keys)
        return [str(w.message) for w in recwarn if issubclass(w.category, RunWarning)]

    (words,) = said()
    assert words.startswith(f"round 0 has no score, and {'CoolDown' if wrapped else 'Learner'} learns from it: measure")
    assert words.endswith("in Flower an evaluate_fn).")
    assert said(evaluate_fn=lambda *_: MetricRecord({"accuracy": 0.5})) == []


def test_closes_at_quorum_and_records_who_was_too_late():
    grid = FakeGrid([FakeClient(str(i), seconds=1.0 + i) for i in range(6)])
    strategy = make(grid, over_select=2.0)
    start(strategy, grid, rounds=2)
    first, second = strategy.history
    assert (first["asked"], first["ok"], first["late"], first["seconds"]) == (6.0, 3.0, 3.0, 3.0)
    assert second["asked"] == 3.0  # the other three still owe a reply and are not asked
    assert second["late_replies"] == {"3": 4.0, "4": 5.0, "5": 6.0}


def test_closes_at_the_deadline_and_nobody_is_waited_for():
    class Gone(FakeClient):
        def delay(self, message):
            return None if message.metadata.message_type == "train" else 0.0

    grid = FakeGrid([FakeClient("0"), Gone("1"), Gone("2")])
    strategy = make(grid)
    start(strategy, grid, rounds=2)
    first, second = strategy.history
    assert (first["ok"], first["late"], first["seconds"]) == (1.0, 2.0, 10.0)
    assert second["asked"] == 1.0  # silent ones owe a sign of life first


@pytest.mark.parametrize(("timeout", "lasts"), [({}, 5000.0), ({"timeout": 20.0}, 20.0), ({"timeout": 9e9}, 5000.0)])
def test_a_deadline_above_an_hour_holds_unless_a_timeout_is_given(timeout, lasts, caplog):
    grid = FakeGrid([FakeClient("0"), FakeClient("1", seconds=9000.0)])
    strategy = make(grid, cohort_size=2, deadline=5000.0)
    with caplog.at_level("INFO", logger="flwr"):
        start(strategy, grid, rounds=1, **timeout)
    assert strategy.history[0]["seconds"] == lasts
    assert f"Rounds last at most {lasts:g} s" in caplog.messages


def test_everybody_gone_leaves_the_model_and_ends():
    class Gone(FakeClient):
        def delay(self, message):
            return 0.0 if message.metadata.message_type == wire.REGISTER else None

    grid = FakeGrid([Gone(str(i)) for i in range(3)])
    result = start(make(grid), grid, rounds=3)
    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], 0.0)


def test_nobody_there_at_the_start_is_an_error_after_the_waiting_time():
    grid = FakeGrid([FakeClient("0")])
    with pytest.raises(StoreError, match=r"1 clients.*at least 2"):
        start(make(grid, min_available=2, wait=30.0), grid)
    assert grid.now == pytest.approx(130.0)


def test_nodes_that_did_not_answer_in_time_are_counted_in_the_error():
    class Mute(FakeClient):
        def delay(self, message):
            return None

    grid = FakeGrid([Mute("0"), Mute("1")])
    with pytest.raises(StoreError, match=r"0 clients.*2 SuperNodes have not answered.*keyword wait"):
        start(make(grid, wait=30.0), grid)


def test_a_dead_node_on_the_list_does_not_cost_the_whole_wait_at_the_start():
    """Two answer after 4 s, one never: the round begins after another 4 s, not after 100."""

    class Slow(FakeClient):
        def delay(self, message):
            return {"0": 4.0, "1": 4.0, "2": None}[self.name] if message.metadata.message_type == wire.REGISTER else 1.0

    grid = FakeGrid([Slow(str(i)) for i in range(3)])
    strategy = make(grid, cohort_size=2, min_available=2, wait=100.0, poll=0.5)
    start(strategy, grid, rounds=1)
    assert strategy.history[0]["clock"] == pytest.approx(4.0 + 4.0 + 1.0)
    assert strategy.history[0]["ok"] == 2.0


def test_error_of_the_superlink_is_attributed_by_the_message_it_answers():
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])

    def tamper(reply):
        if reply.metadata.src_node_id == 1002 and reply.metadata.message_type == "train":
            reply = Message(Error(5, "node unavailable"), reply_to=_asked(reply))
            reply.metadata.__dict__["_src_node_id"] = 1
        return [reply]

    def _asked(reply):
        asked = Message(reply.content, dst_node_id=1002, message_type="train")
        asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
        return asked

    grid.tamper = tamper
    strategy = make(grid)
    start(strategy, grid, rounds=1)
    assert strategy.history[0]["failed"] == 1.0
    assert strategy._backend.clients.silent == {1}


def test_messages_have_a_time_to_live_and_a_group():
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    start(make(grid), grid, rounds=2)
    assert all(m.metadata.ttl <= 30.0 for m in grid.pushed)
    assert {m.metadata.group_id for m in grid.pushed if m.metadata.message_type == "train"} == {"1", "2"}


def test_newcomers_join_and_a_restarted_client_keeps_its_slot():
    grid = FakeGrid([FakeClient(str(i)) for i in range(4)])
    grid.online = lambda: [1001, 1002] if len(strategy.history) < 1 else [1001, 1003, 1004, 2002]
    strategy = make(grid, cohort_size=4)
    grid.clients[2002] = FakeClient("1")  # client "1" comes back under another node id
    start(strategy, grid, rounds=4)
    rounds = strategy._backend
    assert rounds.clients.roster.ids == ("0", "1", "2", "3")
    assert rounds.clients.node[1] == 2002
    assert strategy.history[-1]["ok"] == 4.0


def test_two_nodes_cannot_be_one_client():
    grid = FakeGrid([FakeClient("a"), FakeClient("b"), FakeClient("a")])
    strategy = make(grid)
    start(strategy, grid, rounds=1)
    assert strategy._backend.clients.roster.ids == ("a", "b")
    (refused,) = strategy._backend.clients.refused.values()
    assert refused[0] == "a"
    assert "another node" in refused[1]


def test_public_keys_can_be_the_identity():
    grid = FakeGrid([FakeClient("same"), FakeClient("same")])
    grid.get_nodes = lambda: [NodeInfo(node_id=n, public_key=str(n).encode()) for n in grid.clients]
    strategy = make(grid, identity="public-key", cohort_size=2)
    start(strategy, grid, rounds=1)
    assert len({i for i in strategy._backend.clients.roster.ids if i.startswith("key-")}) == 2


def test_client_of_another_version_is_refused_by_name_and_the_others_go_on():
    grid = FakeGrid([FakeClient(f"c{i}", app_version="2.0" if i else "1.0") for i in range(4)])
    strategy = make(grid, app_version="2.0", min_available=3)
    start(strategy, grid, rounds=1)
    assert strategy._backend.clients.roster.ids == ("c1", "c2", "c3")
    assert [m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "train"] == [1002, 1003, 1004]
    with pytest.raises(VersionMismatch, match=r"client c0.*'1.0'.*'2.0'"):
        start(make(grid, app_version="2.0", min_available=4, wait=5.0), grid)


def test_client_that_speaks_another_wire_format_is_refused():
    class Old(FakeClient):
        def register(self, message):
            content = super().register(message)
            content[wire.REQUEST]["wire"] = 99
            return content

    grid = FakeGrid([Old("old"), FakeClient("new")])
    with pytest.raises(VersionMismatch, match="version 99 of the wire format"):
        start(make(grid, min_available=2, wait=5.0), grid)


def test_missing_signal_is_refused_by_name_before_training():
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    with pytest.raises(MissingSignal, match=r"client 0 .*'samples'"):
        start(make(grid, selector="oort", wait=5.0), grid)
    assert not [m for m in grid.pushed if m.metadata.message_type == "train"]


def test_privacy_is_refused_before_anything_is_sent():
    grid = FakeGrid([FakeClient("0")])
    with pytest.raises(MissingSignal, match=r"'insight' \(privacy P2\)"):
        make(grid, selector="fedacs", max_privacy="P1")
    assert grid.pushed == []


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"cohort_size": 0}, "size = 0"),
        ({"deadline": 0}, "deadline = 0"),
        ({"min_replies": 9}, "min_replies = 9"),
        ({"over_select": 0.5}, "over_select"),
        ({"over_select": "much"}, "over_select"),
        ({"seed": -1}, "seed"),
        ({"min_available": 0}, "min_available"),
        ({"identity": "face"}, "identity"),
        ({"method": "fedavg"}, "exactly one"),
        ({"selctor": 1}, "selctor"),
        ({"selector": "orot"}, "oort"),
    ],
)
def test_bad_settings_are_named(keys, what):
    with pytest.raises((BadParameter, Exception), match=what):
        make(FakeGrid([]), **keys)
