"""Every reply that must be refused, on both backends: with its reason, without an exception, and without a trace in
anything but the record of who sent it.
"""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flower.grid import FakeGrid, as_record, timing
from tests.flower.test_hostile import BENT
from tests.stress.federation import simulated
from tests.stress.rubbish import MAX_NORM, MESSAGES, ROWS, Counted, Liar, Liars, listen, with_extra

from fedcohort.flower import CohortStrategy
from fedcohort.registry.lookup import make_method, make_selector
from fedcohort.rounds.validation import Limits
from fedcohort.types import Outcome

FIRST = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
ROW_KINDS, MESSAGE_KINDS = sorted(ROWS), sorted(MESSAGES)
# Refused for what they are. The others are refused when enough replies are here to compare them with: in asynchronous
# rounds the sender's place in the cohort is free only then.
COMPARED = {"weight that dominates", "update that dominates", "extra metric", "missing metric", "list as metric"}
ALONE = sorted(set(MESSAGES) - COMPARED)
REASONS = {  # every code with which a reply can be refused
    *("update-not-finite", "update-too-large", "weight-out-of-range", "steps-out-of-range", "buffers-not-finite"),
    *("signal-not-sane", "signal-missing", "signal-not-scalar", "signals-malformed", "duplicate", "not-asked"),
    *("array-serialisation", "array-too-large", "array-unreadable", "array-dtype", "array-shape", "array-missing"),
    *("array-unknown", "arrays-0-records", "arrays-2-records", "metrics-0-records", "metrics-2-records"),
    *("metric-form", "variance-negative", "counter-negative", "statistics-too-large", "counter-too-large"),
    *("metric-not-finite", "metric-not-scalar", "metric-missing", "metric-unknown", "sender-is-not-the-one-asked"),
}


def on_simulator(kind_of, *, silent=False, selector="oort", population=40, **keys):
    """An engine on simulated clients; kind_of(round, clients) gives numbers of ROWS, -1 for the truth."""
    world = Liars(population, kind_of, silent=silent)
    made = simulated(
        make_selector(selector), world, Counted(world), make_method("fedavg"), max_norm=MAX_NORM, seed=3, **keys
    )
    return made.engine


def on_flower(kind_of, *, silent=False, selector="oort", population=40, tamper=None, **keys):
    """An engine on Flower clients; kind_of(round, client) gives kinds of MESSAGES, "" for the truth."""
    clients = [
        Liar(f"{i:03}", lambda r, i=i: kind_of(r, i), silent=silent, step=0.1 * (i % 7 + 1), seconds=1.0 + i / 100)
        for i in range(population)
    ]
    grid = FakeGrid(clients)
    grid.tamper = tamper or grid.tamper
    keys = {"deadline": 10.0, "seed": 3, "limits": Limits(max_norm=MAX_NORM), **keys}
    strategy = CohortStrategy(method="fedavg", selector=selector, **keys, **timing(grid))
    return strategy._begin(grid, as_record(FIRST), 1e6)


def test_each_row_is_refused_with_its_reason():
    """Everybody is asked; the first clients send one kind each. Nothing is raised, the others are used."""
    engine = on_simulator(lambda r, c: np.where(c < len(ROWS), c, -1), selector="uniform", cohort_size=40)
    engine.method.prepare = lambda plan, model, clients: type(plan)(measure=frozenset({"utility"}), round=plan.round)
    row = engine.round()
    assert (row["ok"], row["rejected"]) == (40 - len(ROWS), len(ROWS))
    assert engine.history.reasons[0] == {i: reason for i, (_, reason) in enumerate(ROWS.values())}
    assert np.isfinite(engine.model.params).all()


def test_each_message_is_refused_with_its_reason():
    many = 3 * len(MESSAGES)
    kinds = list(MESSAGES)
    engine = on_flower(lambda r, i: kinds[i] if i < len(kinds) else "", population=many, cohort_size=many)
    row = engine.round()
    assert (row["ok"], row["rejected"]) == (many - len(kinds), len(kinds))
    for i, kind in enumerate(kinds):
        allowed = MESSAGES[kind][1].split("|")
        assert any(engine.history.reasons[0][i].startswith(reason) for reason in allowed), (kind, i)
    assert np.isfinite(engine.model.params).all()


def impostor(message):
    """Replies of the first client claim to come from the second."""
    if message.metadata.message_type == "train" and message.metadata.src_node_id == 1001:
        message.metadata.__dict__["_src_node_id"] = 1002
    return [message]


def test_a_reply_in_another_name_is_refused():
    engine = on_flower(lambda r, i: "", tamper=impostor, cohort_size=40)
    assert engine.round()["rejected"] == 1
    assert engine.history.reasons[0] == {0: "sender-is-not-the-one-asked"}


def test_second_and_unasked_replies_are_refused():
    """In one batch and in a later one, and from clients that are idle or do not exist."""

    def lie(index, clients):
        return np.where(clients % 4 == 0, 0, -1)  # every round gets its replies in several batches

    engine, twin = (on_simulator(lie, cohort_size=10, over_select=2.0) for _ in range(2))
    inner, seen = engine.backend.replies, []

    def replies(until, enough):
        seen.append(inner(until, enough))
        waited_for = engine.out.clients[engine.out.running]
        return with_extra(seen[-1], np.arange(len(seen[-1].updates)), np.setdiff1d(np.arange(60), waited_for))

    engine.backend.replies = replies
    assert [engine.round() for _ in range(3)] == [twin.round() for _ in range(3)]
    assert engine.model.params.tobytes() == twin.model.params.tobytes()
    assert len(seen) > 3
    assert engine.refused["duplicate"] > sum(len(here.updates) for here in seen)
    assert engine.refused["not-asked"] == 40 * len(seen)
    late = engine.out.take(seen[0], engine.limits)  # everything once more, when nobody is out
    assert late["not-asked"] == seen[0].clients.size
    assert not engine.out.accepted


def test_no_reason_is_left_out():
    """Each code that the sources know is among those that are tested here."""
    found = {reason.partition(":")[0] for _, reason in ROWS.values()}
    found |= {reason.partition(":")[0] for _, _, reason in BENT if reason}
    found |= {code.partition(":")[0] for _, reasons in MESSAGES.values() for code in reasons.split("|")}
    assert found | {"duplicate", "not-asked", "sender-is-not-the-one-asked"} == REASONS


def honest_part(heard, liars):
    """Cohorts, outcomes and durations of all that were told, without the liars' outcomes."""
    out = []
    for result in heard:
        rows = ~np.isin(result.clients, [c for r, c in liars if r == result.index])
        out.append((result.clients.tolist(), result.outcome[rows].tolist(), result.duration.tolist()))
    return out


def played(engine, rounds):
    """The engine after some rounds, and what its selector was told."""
    heard = listen(engine)
    for _ in range(rounds):
        engine.round()
    return engine, heard


@pytest.mark.parametrize("buffer_size", [0, 4])
@pytest.mark.parametrize("backend", [on_simulator, on_flower])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_refused_reply_changes_nothing_but_its_senders_record(backend, buffer_size, data):
    """Two runs with the same honest replies; in one, some clients also send rubbish: everything else is the same."""
    kinds = ROW_KINDS if backend is on_simulator else ALONE if buffer_size else MESSAGE_KINDS
    share = data.draw(st.sampled_from([0.1, 0.3]))
    lie = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    table = np.where(lie.random((8, 40)) < share, lie.integers(0, len(kinds), (8, 40)), -1)
    numbers = [list(ROWS).index(k) if backend is on_simulator else k for k in kinds]

    def kind_of(index, clients):
        if backend is on_flower:
            return "" if table[index, clients] < 0 else numbers[table[index, clients]]
        return np.array([-1 if table[index, c] < 0 else numbers[table[index, c]] for c in clients], np.int64)

    keys = {"cohort_size": 8, **({"buffer_size": buffer_size} if buffer_size else {"over_select": 1.5})}
    noisy, heard = played(backend(kind_of, **keys), 6)
    twin, said = played(backend(kind_of, silent=True, **keys), 6)
    liars = {(r, c) for r, c in np.argwhere(table >= 0).tolist()}
    if buffer_size:
        liars = {(r, c) for r in range(8) for _, c in liars}  # told of in a later round
    assert honest_part(heard, liars) == honest_part(said, liars)
    assert noisy.model.params.tobytes() == twin.model.params.tobytes()
    assert noisy.model.buffers.tobytes() == twin.model.buffers.tobytes()
    assert [row["clock"] for row in noisy.history.rows] == [row["clock"] for row in twin.history.rows]
    lied = [r.outcome[i] for r in heard for i, c in enumerate(r.clients) if (r.index, int(c)) in liars]
    if not buffer_size:
        assert set(lied) <= {Outcome.REJECTED, Outcome.LATE}


def test_replies_to_nobody(tmp_path):
    """Messages without content, or to a request that was never made, end nowhere."""
    extra = []

    def tamper(message):
        if message.metadata.message_type != "train":
            return [message]
        stranger = Message(message.content if message.has_content() else RecordDict(), reply_to=message)
        stranger.metadata.__dict__["_reply_to_message_id"] = "never-sent"
        extra.append(stranger)
        return [stranger, message, message, stranger]

    noisy = on_flower(lambda r, i: "", tamper=tamper, cohort_size=8, state_dir=tmp_path)
    twin = on_flower(lambda r, i: "", cohort_size=8)
    for _ in range(3):
        assert noisy.round()["ok"] == twin.round()["ok"] == 8
    assert noisy.model.params.tobytes() == twin.model.params.tobytes()
    assert noisy.backend.driver.unsolicited == 3 * len(extra)
    assert [c.tolist() for c in noisy.history.cohorts] == [c.tolist() for c in twin.history.cohorts]


def test_a_world_of_liars_only_leaves_the_model_alone():
    engine = on_simulator(lambda r, c: np.arange(c.size) % len(ROWS), cohort_size=30)
    before = engine.model.params
    rows = [engine.round() for _ in range(3)]
    assert [row["rejected"] for row in rows] == [30.0] * 3
    assert all("abandoned" in row for row in rows)
    assert np.array_equal(engine.model.params, before)
