"""One hostile client among four: whatever it sends, the run goes on and nothing but its own record changes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from tests.flower.grid import FakeClient, FakeGrid, arrays_of, as_record, start, timing

from fedcohort.errors import ContractError
from fedcohort.flower import CohortStrategy, wire


def honest(message, step=1.0, **changes):
    arrays = {k: v + np.float32(step) for k, v in arrays_of(message.content["arrays"]).items()}
    arrays.update(changes)
    return as_record({k: v for k, v in arrays.items() if v is not None})


def metrics(**changes):
    found = {"train_loss": 0.5, "num-examples": 10, **{k.replace("_", "-", 1): v for k, v in changes.items()}}
    return MetricRecord({k: v for k, v in found.items() if v is not None})


def both(arrays, record):
    return RecordDict({"arrays": arrays, "metrics": record})


def npy(value) -> bytes:
    file = io.BytesIO()
    np.save(file, value, allow_pickle=True)
    return file.getvalue()


def raw(message, data, shape=(2,), stype="numpy.ndarray", dtype="float32"):
    arrays = honest(message)
    arrays["b"] = Array(dtype, shape, stype, data)
    return both(arrays, metrics())


LIE = npy(np.zeros(2, np.float32)).replace(b"(2,)", b"(9999999999,)")
ZERO = np.zeros(2, np.float32)

HOSTILE = {
    "nan": (lambda m: both(honest(m, np.nan), metrics()), "update-not-finite"),
    "infinity": (lambda m: both(honest(m, b=ZERO + np.inf), metrics()), "update-not-finite"),
    "overflowing float64": (lambda m: both(honest(m, b=np.full(2, 1e300)), metrics()), "update-not-finite"),
    "wrong shape": (lambda m: both(honest(m, b=np.zeros(3, np.float32)), metrics()), "array-shape:b"),
    "broadcastable shape": (lambda m: both(honest(m, b=np.zeros((2, 1), np.float32)), metrics()), "array-shape:b"),
    "missing array": (lambda m: both(honest(m, b=None), metrics()), "array-missing:b"),
    "extra array": (lambda m: both(honest(m, c=ZERO), metrics()), "array-unknown:c"),
    "integers for floats": (lambda m: both(honest(m, b=np.zeros(2, np.int64)), metrics()), "array-dtype:b"),
    "complex": (lambda m: both(honest(m, b=np.zeros(2, np.complex64)), metrics()), "array-dtype:b"),
    "pickled object": (lambda m: raw(m, npy(np.array([{}, {}], object))), "array-dtype:b"),
    "junk bytes": (lambda m: raw(m, b"\x93NUMPY" + bytes(50)), "array-unreadable:b"),
    "lying header": (lambda m: raw(m, LIE), "array-unreadable:b|array-shape:b"),
    "truncated": (lambda m: raw(m, npy(ZERO)[:-3]), "array-unreadable:b"),
    "huge payload": (lambda m: raw(m, npy(np.zeros(10**6, np.float32))), "array-too-large:b"),
    "foreign serialisation": (lambda m: raw(m, npy(ZERO), stype="torch.pickle"), "array-serialisation:b"),
    "two models": (lambda m: RecordDict({"a": honest(m), "arrays": honest(m), "m": metrics()}), "arrays-2-records"),
    "no model": (lambda m: RecordDict({"metrics": metrics()}), "arrays-0-records"),
    "no metrics": (lambda m: RecordDict({"arrays": honest(m)}), "metrics-0-records"),
    "two metric records": (
        lambda m: RecordDict({"arrays": honest(m), "metrics": metrics(), "more": metrics()}),
        "metrics-2-records",
    ),
    "no weight": (lambda m: both(honest(m), metrics(num_examples=None)), "metric-missing:num-examples"),
    "negative weight": (lambda m: both(honest(m), metrics(num_examples=-5)), "weight-out-of-range"),
    "zero weight": (lambda m: both(honest(m), metrics(num_examples=0)), "weight-out-of-range"),
    "NaN weight": (lambda m: both(honest(m), metrics(num_examples=float("nan"))), "metric-not-finite:num-examples"),
    "weight that dominates": (lambda m: both(honest(m), metrics(num_examples=10**9)), "weight-out-of-range"),
    "weight beyond integers": (lambda m: both(honest(m), metrics(num_examples=1e300)), "weight-out-of-range"),
    "list as weight": (lambda m: both(honest(m), metrics(num_examples=[10, 10])), "metric-not-scalar:num-examples"),
    "update that dominates": (lambda m: both(honest(m, 1e6), metrics()), "update-too-large"),
    "list as metric": (
        lambda m: both(honest(m), MetricRecord({"num-examples": 10, "train_loss": [0.5, 0.5]})),
        "metric-form:train_loss",
    ),
    "extra metric": (lambda m: both(honest(m), metrics(surprise=1.0)), "metric-unknown:surprise"),
    "missing metric": (
        lambda m: both(honest(m), MetricRecord({"num-examples": 10})),
        "metric-missing:train_loss",
    ),
    "NaN metric": (
        lambda m: both(honest(m), MetricRecord({"num-examples": 10, "train_loss": float("nan")})),
        "metric-not-finite:train_loss",
    ),
    "empty content": (lambda m: RecordDict(), "arrays-0-records"),
    "config instead of metrics": (
        lambda m: RecordDict({"arrays": honest(m), "metrics": ConfigRecord({"num-examples": 10})}),
        "metrics-0-records",
    ),
    "signals of the wrong kind": (
        lambda m: RecordDict({"arrays": honest(m), "metrics": metrics(), wire.SIGNALS: ArrayRecord()}),
        "signals-malformed",
    ),
}


def run(hostile, tamper=None, state_dir=None, rounds=3):
    """Four clients, all asked every round; the last one is hostile."""

    class Hostile(FakeClient):
        def train(self, message):
            return hostile(message)

    grid = FakeGrid([*(FakeClient(str(i), step=0.1 * (i + 1), samples=10 + i) for i in range(3)), Hostile("3")])
    if tamper is not None:
        grid.tamper = tamper
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0),
        selector="uniform",
        cohort_size=4,
        over_select=1.0,
        deadline=10,
        state_dir=state_dir,
        **timing(grid),
    )
    return start(strategy, grid, rounds=rounds), strategy.history


@pytest.fixture(scope="module")
def without():
    return run(lambda m: Error(2, "it failed"))[0].arrays.to_numpy_ndarrays()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_reply_is_rejected_with_its_reason_and_changes_nothing(name, without, tmp_path):
    hostile, reason = HOSTILE[name]
    result, history = run(hostile, state_dir=tmp_path)
    for row in history:
        assert (row["ok"], row["rejected"]) == (3.0, 1.0), (name, row)
    for mine, clean in zip(result.arrays.to_numpy_ndarrays(), without, strict=True):
        np.testing.assert_array_equal(mine, clean)
    from fedcohort.storage.journal import Journal

    journal = Journal.read(tmp_path / "journal.db")
    given = [r.unpack()[1]["reasons"] for r in journal.records("tell")]
    journal.close()
    assert all(row["3"] in reason.split("|") for row in given), given


def test_stock_fedavg_would_have_died_or_swallowed_it():
    """The control: the same replies handed to the wrapped strategy as it is end the run or spoil the model."""
    bad = 0
    for hostile, _ in HOSTILE.values():
        grid = FakeGrid([])
        message = Message(
            RecordDict({"arrays": as_record({"w": np.zeros((2, 3), np.float32), "b": ZERO})}),
            dst_node_id=7,
            message_type="train",
        )
        good = Message(both(honest(message), metrics()), reply_to=message)
        evil = Message(hostile(message), reply_to=message)
        del grid
        try:
            arrays, _ = FedAvg(fraction_evaluate=0.1).aggregate_train(1, [good, evil])
            values = arrays.to_numpy_ndarrays()
            bad += not all(np.isfinite(v).all() and np.abs(v).max() < 10 for v in values)
        except Exception:
            bad += 1
    assert bad >= 17


def impostor(message):
    """Replies of the last node claim to come from the first."""
    if message.metadata.src_node_id == 1004:
        message.metadata.__dict__["_src_node_id"] = 1001
    return [message]


def test_reply_in_another_name_is_rejected(without):
    def tamper(message):
        return impostor(message) if message.metadata.message_type == "train" else [message]

    result, history = run(lambda m: both(honest(m), metrics()), tamper)
    assert [row["rejected"] for row in history] == [1.0] * 3
    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], without[0])


def test_second_reply_to_one_message_and_unasked_ones_are_ignored(without):
    def tamper(message):
        if message.metadata.src_node_id != 1004 or message.metadata.message_type != "train":
            return [message]
        stranger = Message(message.content, reply_to=message)
        stranger.metadata.__dict__["_reply_to_message_id"] = "never-sent"
        return [Message(Error(2, "it failed"), reply_to=_asked(message)), message, stranger]

    def _asked(reply):
        asked = Message(RecordDict(), dst_node_id=1004, message_type="train")
        asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
        return asked

    result, history = run(lambda m: both(honest(m, 50.0), metrics()), tamper)
    assert [(row["ok"], row["failed"]) for row in history] == [(3.0, 1.0)] * 3
    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], without[0])


FREE = {
    "extra array": lambda m: both(honest(m, c=ZERO), metrics()),
    "missing array": lambda m: both(honest(m, b=None), metrics()),
    "long name": lambda m: both(honest(m, **{"n" * 1000: ZERO}), metrics()),
    "many arrays": lambda m: both(honest(m, **{str(i): ZERO for i in range(20_000)}), metrics()),
}


def free(train, clients=4):
    grid = FakeGrid([FakeClient(str(i)) for i in range(clients)])
    grid.clients[1001].train = train
    keys = {"selector": "uniform", "cohort_size": clients, "deadline": 9, "check_shapes": False, **timing(grid)}
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), **keys)
    start(strategy, grid, rounds=3)
    return strategy


@pytest.mark.parametrize("name", FREE)
def test_where_shapes_are_free_names_are_still_those_of_the_others(name):
    strategy = free(FREE[name])
    assert [(row["ok"], row["rejected"]) for row in strategy.history] == [(3.0, 1.0)] * 3
    assert strategy._engine.history.reasons[-1] == {0: "array-names"}
    assert free(FREE["extra array"], clients=2).history[-1]["ok"] == 1.0  # one against one: the model's own names hold


def test_where_shapes_are_free_one_client_can_make_a_strategy_fail_that_needs_equal_ones():
    with pytest.raises(ContractError, match="failed 3 rounds in a row"):
        free(lambda m: both(honest(m, b=np.zeros(7, np.float32)), metrics()))


def test_nobody_owns_the_evaluation_by_its_weight():
    class Loud(FakeClient):
        def reply(self, message):
            if not message.metadata.message_type.startswith("evaluate"):
                return super().reply(message)
            return RecordDict({"metrics": MetricRecord({"accuracy": 99.0, "num-examples": 10**11})})

    grid = FakeGrid([*(FakeClient(str(i)) for i in range(3)), Loud("3")])
    wrapped = FedAvg(fraction_evaluate=1.0)
    strategy = CohortStrategy(wrapped, selector="uniform", cohort_size=4, deadline=9, **timing(grid))
    result = start(strategy, grid, rounds=2)
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.5)


def test_one_list_does_not_end_the_evaluation():
    class Listing(FakeClient):
        def reply(self, message):
            if not message.metadata.message_type.startswith("evaluate"):
                return super().reply(message)
            return RecordDict({"metrics": MetricRecord({"accuracy": [0.9, 0.9], "num-examples": 10})})

    grid = FakeGrid([*(FakeClient(str(i)) for i in range(3)), Listing("3")])
    strategy = CohortStrategy(FedAvg(), selector="uniform", cohort_size=4, deadline=9, **timing(grid))
    start(strategy, grid, rounds=2)
    assert [row["score"] for row in strategy.history] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    ("lengths", "rejected"),
    [([3, 3, 3, 2], {3}), ([3, 3, None, 3], {2}), ([1, 2, 3, 4], set()), ([1, 2, 3, None], {3}), ([2, None], {0})],
)
def test_the_form_of_a_metric_is_that_of_most_and_lengths_are_free_where_they_differ(lengths, rejected):
    """Losses of every batch, for instance: our methods do not average lists."""
    grid = FakeGrid([FakeClient(str(i)) for i in range(len(lengths))])
    for client, length in zip(grid.clients.values(), lengths, strict=True):
        loss = 0.5 if length is None else [0.5] * length
        client.train = lambda m, loss=loss: both(honest(m), MetricRecord({"num-examples": 10, "loss": loss}))
    keys = {"selector": "uniform", "cohort_size": len(lengths), "deadline": 9}
    strategy = CohortStrategy(method="fedavg", **keys, **timing(grid))
    start(strategy, grid, rounds=2)
    assert strategy._engine.history.reasons == [dict.fromkeys(rejected, "metric-form:loss")] * 2


NORMALISED = {
    "w": np.zeros((2, 3), np.float32),
    "bn.running_mean": np.zeros(2, np.float32),
    "bn.running_var": np.ones(2, np.float32),
    "bn.num_batches_tracked": np.array(0),
    "table": np.array([-1, 7]),
}


BENT = [
    ("bn.running_var", np.full(2, -1e30, np.float32), "variance-negative"),
    ("bn.running_var", np.array([1, -0.1], np.float32), "variance-negative"),
    ("bn.running_var", np.full(2, 1e30, np.float32), "statistics-too-large:bn"),
    ("bn.running_mean", np.full(2, -1e6, np.float32), "statistics-too-large:bn"),
    ("bn.num_batches_tracked", np.array(2**62), "counter-too-large:bn.num_batches_tracked"),
    ("bn.num_batches_tracked", np.array(-1), "counter-negative"),
    ("table", np.array([-1, -(2**63)]), "counter-negative"),
    ("bn.running_mean", np.array([9, -9], np.float32), None),  # odd data, and still not incredible
    ("bn.num_batches_tracked", np.array(50), None),
]


@pytest.mark.parametrize("keys", [{"inner": FedAvg(fraction_evaluate=0.0)}, {"method": "fedavg"}])
@pytest.mark.parametrize(("name", "value", "reason"), BENT)
def test_nobody_owns_the_model_by_its_statistics_or_counters(keys, name, value, reason):
    class Bent(FakeClient):
        def train(self, message):
            content = super().train(message)
            content["arrays"][name] = Array(value)
            return content

    grid = FakeGrid([*(FakeClient(str(i)) for i in range(4)), Bent("4")])
    strategy = CohortStrategy(selector="uniform", cohort_size=5, deadline=9, **keys, **timing(grid))
    start(strategy, grid, arrays=NORMALISED, rounds=1)
    assert strategy._engine.history.reasons[-1] == ({4: reason} if reason else {})


def test_what_statistics_are_usual_is_remembered_over_a_restart(tmp_path):
    """Replies come one by one, so there is nobody to compare with but those of earlier rounds."""

    class Later(FakeClient):
        def train(self, message):
            content = super().train(message)
            if grid.now > 103:
                content["arrays"]["bn.running_var"] = Array(np.full(2, 1e9, np.float32))
            return content

    for rounds in (3, 6):
        grid = FakeGrid([FakeClient("0"), Later("1", seconds=1.5 if rounds == 3 else 0.5)])
        keys = {"cohort_size": 2, "buffer_size": 1, "deadline": 9, "state_dir": tmp_path}
        strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), selector="uniform", **keys, **timing(grid))
        grid.now += 10 * (rounds > 3)
        found = start(strategy, grid, arrays=NORMALISED, rounds=rounds)
    assert {1: "statistics-too-large:bn"} in strategy._engine.history.reasons
    assert found.arrays["bn.running_var"].numpy().max() < 100


def test_strategy_that_cannot_aggregate_leaves_the_model_and_the_run_alone():
    class Moody(FedAvg):
        def aggregate_train(self, server_round, replies):
            if server_round == 2:
                raise ZeroDivisionError("no")
            return super().aggregate_train(server_round, replies)

    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    strategy = CohortStrategy(
        Moody(fraction_evaluate=0.0), selector="uniform", cohort_size=3, deadline=9, **timing(grid)
    )
    result = start(strategy, grid, rounds=3)
    assert [row["filtered"] for row in strategy.history] == [0.0, 3.0, 0.0]
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[1], 2.0)  # two of three rounds added one


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_model_that_is_finite_only_in_double_precision_is_not_sent():
    class Large(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, found = super().aggregate_train(server_round, replies)
            return (
                as_record({k: np.full(v.shape, 1e39) for k, v in arrays.items()}) if server_round == 2 else arrays
            ), found

    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    keys = {"selector": "uniform", "cohort_size": 3, "deadline": 9}
    strategy = CohortStrategy(Large(fraction_evaluate=0.0), **keys, **timing(grid))
    result = start(strategy, grid, rounds=2)
    assert [row["filtered"] for row in strategy.history] == [0.0, 3.0]
    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[1], 1.0)


# -- names and texts from outside are bounded before they are kept ---------------------------------------------------

LONG, FORGED = "n" * 20_000_000, "loss\x1b[2J\nround 9: all is well"
BRICKS = {
    "a long metric name": lambda m: both(honest(m), metrics(**{LONG: 1.0})),
    "many metrics": lambda m: both(honest(m), MetricRecord({f"m{i}": 1.0 for i in range(300_000)})),
    "a long array name": lambda m: both(honest(m, **{LONG: ZERO}), metrics()),
    "many arrays": lambda m: both(honest(m, **{f"a{i}": ZERO for i in range(3_000)}), metrics()),
    "a forged log line": lambda m: both(honest(m, **{FORGED: ZERO}), metrics()),
    "a forged metric": lambda m: both(honest(m), metrics(**{FORGED: 1.0})),
    "a long error": lambda m: Error(2, LONG),
}


@pytest.mark.parametrize("name", sorted(BRICKS))
def test_nothing_from_outside_can_make_the_state_folder_unreadable(name, tmp_path, caplog):
    """The next process resumes, the journal verifies, and no control character reaches the log."""
    from fedcohort.experiment.verification import verify

    for rounds in (2, 3):
        grid = FakeGrid([FakeClient(str(i)) for i in range(4)])
        grid.clients[1001].train = BRICKS[name]
        strategy = CohortStrategy(
            FedAvg(fraction_evaluate=0.0),
            selector="uniform",
            cohort_size=4,
            deadline=9.0,
            state_dir=tmp_path,
            **timing(grid),
        )
        start(strategy, grid, rounds=rounds)
        row = strategy.history[-1]
        assert (row["ok"], row["rejected"] + row["failed"]) == (3.0, 1.0)
    reasons = [why for found in strategy._engine.history.reasons for why in found.values()]
    assert reasons
    assert all(len(why) <= 200 and why.isprintable() for why in reasons)
    assert not [r for r in caplog.records if "\x1b" in r.getMessage() or "\n" in r.getMessage().strip("\t\n")]
    assert verify(tmp_path).rounds == 3


@pytest.mark.parametrize(
    "bent", [{"app-version": LONG}, {"app-version": FORGED}, {"id": LONG}, {"id": FORGED}, {"provides": ["x"] * 10**6}]
)
def test_a_registration_cannot_either(bent, tmp_path):
    class Bent(FakeClient):
        def register(self, message):
            answer = super().register(message)
            answer[wire.REQUEST].update(bent)
            return answer

    for rounds in (1, 2):
        grid = FakeGrid([Bent("0"), FakeClient("1"), FakeClient("2")])
        strategy = CohortStrategy(
            FedAvg(fraction_evaluate=0.0),
            selector="uniform",
            cohort_size=2,
            deadline=9.0,
            state_dir=tmp_path,
            app_version="" if "app-version" in bent else None,
            **timing(grid),
        )
        start(strategy, grid, rounds=rounds)
    assert strategy.history[-1]["ok"] == 2.0
    assert all(len(why) <= 200 and why.isprintable() for _, why in strategy._backend.clients.refused.values())
