"""The round driver and the register, on an in-memory grid with a clock of its own."""

from __future__ import annotations

import random
import signal
import threading
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import strategy as stock
from tests.flower.grid import FakeClient, FakeGrid, arrays_of, start, timing

from fedcohort.errors import (
    BadParameter,
    MissingSignal,
    RunLocked,
    RunWarning,
    StateMismatch,
    StoreError,
    VersionMismatch,
)
from fedcohort.flower import CohortStrategy, wire
from fedcohort.methods.fedca import FedCA
from fedcohort.rounds.history import read_history
from fedcohort.selectors.uniform import Uniform
from fedcohort.selectors.wrappers import CoolDown
from fedcohort.storage.journal import Journal
from fedcohort.testing import LinearEvaluator
from fedcohort.types import Cohort


def fedavg(**keys):
    return stock.FedAvg(fraction_evaluate=0.0, **keys)


def make(grid, inner=None, **keys):
    settings = {"selector": "uniform", "cohort_size": 3, "deadline": 10.0, "over_select": 1.0, **timing(grid), **keys}
    return CohortStrategy(inner or fedavg(), **settings)


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


# -- closing ---------------------------------------------------------------------------------------------------------


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


# -- refusals --------------------------------------------------------------------------------------------------------


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


# -- any strategy ----------------------------------------------------------------------------------------------------

STOCK = {
    "FedAvg": {},
    "FedProx": {"proximal_mu": 0.1},
    "FedAdam": {},
    "FedYogi": {},
    "FedAdagrad": {},
    "FedAvgM": {"server_learning_rate": 1.0, "server_momentum": 0.5},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.2},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 2},
    "Bulyan": {"num_malicious_nodes": 1},
    "QFedAvg": {"client_learning_rate": 0.1},
}


class OneArgument(Uniform):
    def select(self, rnd):
        return Cohort(rnd.available[: rnd.size])


class Unsaved:
    needs = frozenset()

    def select(self, rnd, rng):
        return Cohort(rnd.available[: rnd.size])

    def observe(self, result): ...


@pytest.mark.parametrize(
    ("inner", "keys", "words"),
    [
        (stock.FedAvg, {}, r"this is a class; give an object of it, e.g. FedAvg\(\)"),
        ("fedavg", {}, "write method='fedavg'"),
        (object(), {}, "this is not a Flower strategy"),
        (stock.FedAvg(), {"selector": Uniform}, "this is a class"),
        (stock.FedAvg(), {"selector": OneArgument()}, r"write def select\(self, rnd, rng\)"),
        (stock.FedAvg(), {"selector": Unsaved(), "state_dir": "there"}, "it lacks state_dict"),
        (
            stock.FedAvg(),
            {"selector": "divfl", "check_shapes": False},
            "DivFL, which reads last_layer_delta: where shapes",
        ),
        (stock.FedAvg(), {"selector": "hetero-select", "check_shapes": False}, "which reads delta, delta_norm"),
        (None, {"method": "fedavg", "check_shapes": False}, "False with method 'fedavg': .* or wrap a Flower strategy"),
        (stock.FedAvg(), {"state_dir": __file__}, "this is a file; name a folder"),
    ],
)
def test_objects_that_do_not_fit_are_refused_before_anything_starts(inner, keys, words):
    with pytest.raises(BadParameter, match=words):
        CohortStrategy(inner, **{"selector": "uniform", **keys})


def stock_strategy(name, **keys):
    return getattr(stock, name)(fraction_evaluate=0.0, **STOCK[name], **keys)


@pytest.mark.parametrize("name", STOCK)
def test_any_stock_strategy_is_wrapped_whatever_its_sampling(name):
    """min_available_nodes=1000 would make the stock sampling wait for ever; the global luck must not be touched."""
    try:
        inner = stock_strategy(name, min_available_nodes=1000, min_train_nodes=500, fraction_train=0.3)
    except (TypeError, ValueError) as error:
        pytest.skip(f"{name}: {error}")
    grid = FakeGrid([FakeClient(str(i), step=0.1 + 0.01 * i) for i in range(8)])
    strategy = make(grid, inner, cohort_size=8)
    before = random.getstate()
    result = start(strategy, grid, rounds=3)
    assert random.getstate() == before
    assert [row["ok"] for row in strategy.history] == [8.0] * 3
    assert all(np.isfinite(a).all() for a in result.arrays.to_numpy_ndarrays())
    assert inner.min_available_nodes == 1000


def test_wrapped_fedavg_gives_what_fedavg_gives():
    """Weighted mean by hand: weights 10, 20, 30 and steps 1, 2, 3 give 140 / 60 per round."""
    grid = FakeGrid([FakeClient(str(i), step=1.0 + i, samples=10 * (i + 1)) for i in range(3)])
    result = start(make(grid), grid, rounds=2)
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], 2 * 140 / 60, rtol=1e-6)
    assert result.train_metrics_clientapp[2]["train_loss"] == pytest.approx(0.5)


@pytest.mark.parametrize("buffer_size", [1, 2])
def test_a_stale_update_moves_the_present_model_of_a_wrapped_strategy(buffer_size):
    """Every update adds one, whatever model it was computed on, so that every step of the model does."""
    grid = FakeGrid([FakeClient(str(i), seconds=1.0 if i < 3 else 7.5) for i in range(4)])
    seen = []
    strategy = make(grid, cohort_size=4, buffer_size=buffer_size, deadline=60)
    start(strategy, grid, rounds=12, evaluate_fn=lambda _, arrays: seen.append(float(arrays["b"].numpy()[0])))
    assert max(row["staleness"] for row in strategy.history) > 0
    np.testing.assert_allclose(seen, range(13), atol=1e-5)


def test_a_stale_update_is_judged_as_the_model_that_its_client_has():
    """Clients add one to what they were sent, so that of step i, computed a versions ago, has the value i - a + 1."""
    seen = []

    class Asked(LinearEvaluator):
        def logits(self, params, split, buffers=None):
            seen.append(float(params[0, 0]))
            return super().logits(params, split)

    grid = FakeGrid([FakeClient(str(i), seconds=1.0 if i < 3 else 7.5) for i in range(4)])
    keys = {"selector": "uniform", "cohort_size": 4, "buffer_size": 1, "deadline": 60, **timing(grid)}
    strategy = CohortStrategy(method=FedCA(), server_evaluator=Asked(classes=2), **keys)
    start(strategy, grid, rounds=12)
    ages = [row["staleness"] for row in strategy.history]
    assert max(ages) > 0
    assert seen == [i - age + 1 for i, age in enumerate(ages)]


def test_fedprox_sends_its_mu_and_our_record_is_beside_it():
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    start(make(grid, stock_strategy("FedProx")), grid, rounds=1, train_config=ConfigRecord({"lr": 0.5}))
    config = grid.clients[1001].seen[-1].content["config"]
    assert (config["proximal-mu"], config["lr"], config["server-round"]) == (0.1, 0.5, 1)


def test_a_strategy_of_ones_own_with_a_message_for_each():
    class Mine(stock.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                message.content = type(message.content)(dict(message.content))
                message.content["own"] = ConfigRecord({"you": str(message.metadata.dst_node_id)})
                yield message

    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    start(make(grid, Mine(fraction_evaluate=0.0)), grid, rounds=1)
    assert [grid.clients[n].seen[-1].content["own"]["you"] for n in (1001, 1002, 1003)] == ["1001", "1002", "1003"]


def test_wrappers_of_wrappers():
    inner = stock.DifferentialPrivacyServerSideFixedClipping(fedavg(), 0.0, 100.0, 3)
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    result = start(make(grid, inner), grid, rounds=2)
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], 2.0, rtol=1e-5)


def test_federated_evaluation_uses_the_strategys_share():
    grid = FakeGrid([FakeClient(str(i)) for i in range(10)])
    result = start(make(grid, stock.FedAvg(fraction_evaluate=0.4)), grid, rounds=2)
    asked = [m for m in grid.pushed if m.metadata.message_type == "evaluate"]
    assert len(asked) == 8
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.5)


def test_central_evaluation_and_its_score():
    seen = []
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    strategy = make(grid)
    observe = strategy.selector.observe
    strategy.selector.observe = lambda result: (seen.append(result.score), observe(result))

    def evaluate(server_round, arrays):
        assert isinstance(arrays, ArrayRecord)
        return MetricRecord({"accuracy": 0.1 * server_round})

    result = start(strategy, grid, rounds=2, evaluate_fn=evaluate)
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert seen == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("method", ["fedavg", "median", "fedadam", "krum", "scaffold", "feddyn", "fedprox", "fednova"])
def test_our_methods_run_on_flower(method):
    class Able(FakeClient):
        def register(self, message):
            content = super().register(message)
            content[wire.REQUEST]["abilities"] = ["correction", "proximal-mu"]
            return content

    grid = FakeGrid([Able(str(i), step=0.1) for i in range(4)])
    strategy = CohortStrategy(method=method, selector="uniform", cohort_size=4, deadline=9.0, **timing(grid))
    result = start(strategy, grid, rounds=2)
    assert sum(row["ok"] for row in strategy.history) >= 2
    assert all(np.isfinite(a).all() for a in result.arrays.to_numpy_ndarrays())


@pytest.mark.parametrize("method", ["fedpdp", "fedpdp(unknown='uniform')", "fedavg(form='original')"])
@pytest.mark.parametrize("selector", ["uniform", "oort"])
def test_shares_of_all_data_are_those_that_clients_register(method, selector):
    """All four are asked and each adds one, so every round adds one, whether the selector reads samples or not."""
    keys = {"provides": ["samples", "utility"], "utility": 1.0}
    grid = FakeGrid([FakeClient(str(i), samples=10 * (i + 1), **keys) for i in range(4)])
    strategy = CohortStrategy(method=method, selector=selector, cohort_size=4, deadline=9.0, **timing(grid))
    result = start(strategy, grid, rounds=2)
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], 2.0, rtol=1e-6)


def test_nobody_freezes_the_model_by_the_size_it_registers():
    """What counts is at most 100 times the usual size: with 40 of 1040 samples the model still moves."""

    class Boasting(FakeClient):
        def register(self, message):
            content = super().register(message)
            content[wire.SIGNALS]["samples"] = 10**12
            return content

    grid = FakeGrid(
        [*(FakeClient(str(i), provides=["samples"]) for i in range(4)), Boasting("4", provides=["samples"])]
    )
    strategy = CohortStrategy(method="fedpdp", selector="uniform", cohort_size=5, deadline=9.0, **timing(grid))
    result = start(strategy, grid, rounds=1)
    assert strategy._backend.samples.tolist() == [10, 10, 10, 10, 1000]
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], 50 / 1040, rtol=1e-6)


def test_a_method_whose_client_half_nobody_applies_is_refused_by_name():
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    strategy = CohortStrategy(method="scaffold", selector="uniform", cohort_size=2, wait=5.0, **timing(grid))
    with pytest.raises(MissingSignal, match=r"client 0.*'correction'"):
        start(strategy, grid)


def test_a_loop_that_is_not_ours_may_change_the_model_between_rounds():
    """As strategies that add noise do: the next round goes on from what the loop passes, not from what we made."""
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    strategy = make(grid)
    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    replies = grid.send_and_receive(strategy.configure_train(1, first, ConfigRecord(), grid), timeout=9.0)
    made, _ = strategy.aggregate_train(1, replies)
    np.testing.assert_array_equal(made["w"].numpy(), 1.0)
    noisy = ArrayRecord({"w": Array(np.full(2, 5.0, np.float32))})
    messages = list(strategy.configure_train(2, noisy, ConfigRecord(), grid))
    assert all((m.content["arrays"]["w"].numpy() == 5.0).all() for m in messages)
    made, _ = strategy.aggregate_train(2, grid.send_and_receive(messages, timeout=9.0))
    np.testing.assert_array_equal(made["w"].numpy(), 6.0)


def test_unchanged_client_apps_work_with_selectors_that_need_nothing():
    clients = [FakeClient(str(i)) for i in range(3)]
    for client in clients:
        client.plain = True
    grid = FakeGrid(clients)
    strategy = make(grid)
    start(strategy, grid, rounds=2)
    assert strategy._backend.clients.roster.ids == ("node-1001", "node-1002", "node-1003")
    assert strategy.history[1]["ok"] == 3.0


def test_metrics_of_an_unchanged_app_can_carry_signals():
    clients = [FakeClient(str(i)) for i in range(3)]
    for client in clients:
        client.plain = True
    grid = FakeGrid(clients)
    strategy = make(grid, selector="hetero-select", metric_signals={"train_loss": "train_loss"})
    start(strategy, grid, rounds=2)
    assert strategy.history[1]["ok"] == 3.0


# -- what survives ---------------------------------------------------------------------------------------------------


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


# -- restarts --------------------------------------------------------------------------------------------------------


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


# -- when nobody can ever answer -------------------------------------------------------------------------------------


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
