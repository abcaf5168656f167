"""One reply judged on its own: every reason code, nothing raises, and what is refused changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.rounds.engine import Policy, RoundEngine
from fedcohort.rounds.session import Session
from fedcohort.rounds.validation import REASONS, Expected, Limits, validate, validate_reply
from fedcohort.selectors.uniform import Uniform
from fedcohort.types import Outcome, Updates

EXPECTED = Expected(4, frozenset({1, 2, 3}), 3, {"train_loss": 0, "val_loss": 0, "insight": 2}, Limits(max_norm=10.0))


def good(**changes):
    signals = {"train_loss": 0.5, "val_loss": 1, "insight": np.ones(2, np.float32)}
    reply = {
        "client": 2,
        "round": 4,
        "weight": 10,
        "steps": 5,
        "signals": signals,
        "delta": np.ones(3, np.float32),
    }
    return {**reply, **changes}


def told(**changes):
    return {**good()["signals"], **changes}


CASES = [
    ("schema", None),
    ("schema", []),
    ("schema", {}),
    ("schema", good(extra=1)),
    ("schema", {k: v for k, v in good().items() if k != "steps"}),
    ("schema", good(client=True)),
    ("schema", good(client=2.0)),
    ("schema", good(weight="10")),
    ("schema", good(delta=[1.0, 1.0, 1.0])),
    ("not-asked", good(client=9)),
    ("not-asked", good(client=-1)),
    ("stale-round", good(round=3)),
    ("stale-round", good(round=5)),
    ("duplicate", good(client=3)),
    ("weight-out-of-range", good(weight=0)),
    ("weight-out-of-range", good(weight=math.nan)),
    ("weight-out-of-range", good(weight=10**400)),
    ("steps-out-of-range", good(steps=-1)),
    ("steps-out-of-range", good(steps=10**12)),
    ("update-shape", good(delta=np.ones(4, np.float32))),
    ("update-shape", good(delta=np.ones((1, 3), np.float32))),
    ("update-shape", good(delta=None)),
    ("update-dtype", good(delta=np.ones(3))),
    ("update-dtype", good(delta=np.array([None] * 3, object))),
    ("update-not-finite", good(delta=np.array([1, np.inf, 1], np.float32))),
    ("update-too-large", good(delta=np.full(3, 1e30, np.float32))),
    ("signal-missing:train_loss", good(signals={"insight": np.ones(2, np.float32)})),
    ("signal-unknown", good(signals=told(more=1.0))),
    ("signal-unknown", good(signals={**{k: v for k, v in told().items() if k != "val_loss"}, "more": 1.0})),
    ("signal-shape:train_loss", good(signals=told(train_loss=np.float32(1)))),
    ("signal-shape:insight", good(signals=told(insight=np.ones(3, np.float32)))),
    ("signal-shape:insight", good(signals=told(insight=0.5))),
    ("signal-not-sane:train_loss", good(signals=told(train_loss=math.nan))),
    ("signal-not-sane:train_loss", good(signals=told(train_loss=1e16))),
    ("signal-not-sane:insight", good(signals=told(insight=np.array([0, np.nan], np.float32)))),
]


@pytest.mark.parametrize(("reason", "reply"), CASES)
def test_each_fault_has_its_reason(reason, reply):
    assert validate_reply(reply, EXPECTED, {3}) == reason
    assert reason.partition(":")[0] in REASONS


def test_good_replies_are_accepted():
    assert validate_reply(good(), EXPECTED, {3}) is None
    optional = {k: v for k, v in told().items() if k != "val_loss"}
    assert validate_reply(good(signals=optional), EXPECTED) is None
    assert validate_reply(good(delta=None, signals={}), Expected(4, {2})) is None


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(good())), junk, max_size=6), junk)
def test_nothing_raises(changes, other):
    for reply in (good(**changes), changes, other):
        answer = validate_reply(reply, EXPECTED)
        assert answer is None or answer.partition(":")[0] in REASONS


def test_both_validators_agree_on_what_both_can_see():
    rng = np.random.default_rng(0)
    limits = Limits(max_norm=2.0)
    for _ in range(200):
        delta = rng.choice([0.1, 1.0, 5.0, np.nan, np.inf], 3, p=[0.5, 0.2, 0.1, 0.1, 0.1]).astype(np.float32)
        weight = float(rng.choice([1.0, 0.0, -1.0, np.nan, 1e13]))
        steps, loss = int(rng.integers(-1, 3)), float(rng.choice([0.5, np.nan, 1e20]))
        row = Updates(np.array([2]), delta[None], np.array([weight]), np.array([steps]))
        many = validate(row, {"train_loss": np.array([loss])}, limits).accepted[0]
        reply = good(delta=delta, weight=weight, steps=steps, signals={"train_loss": loss})
        one = validate_reply(reply, Expected(4, {2}, 3, {"train_loss": 0}, limits))
        assert (one is None) == many


def engine(now):
    session = Session(Uniform(), cohort_size=6, seed=3)
    policy = Policy(size=6, deadline=10.0, over_select=1.0)
    return RoundEngine(session, policy, clock=lambda: now[0], params=3, signals={"train_loss": 0})


def honest(client, index):
    rng = np.random.default_rng((client, index))
    delta, loss = rng.standard_normal(3, np.float32), float(rng.random())
    return good(client=client, round=index, delta=delta, signals={"train_loss": loss})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_refused_reply_changes_nothing_but_its_senders_record(data):
    """Two engines, the same honest replies; one also gets rubbish. Everything but the senders' rows is the same."""
    now, still = [0.0], [0.0]
    noisy, quiet = engine(now), engine(still)
    for index in range(2):
        now[0] = still[0] = 100.0 * index
        clients = noisy.plan(np.arange(12)).clients
        assert quiet.plan(np.arange(12)).clients.tolist() == clients.tolist()
        liar = int(clients[0])
        for client in data.draw(st.permutations(clients[1:].tolist())):
            for sender in data.draw(st.lists(st.sampled_from([liar, client, 77]), max_size=2)):
                bad = data.draw(st.sampled_from([{"weight": -1.0}, {"delta": None}, {"round": 9}, {"signals": {}}]))
                assert noisy.reply({**honest(sender, index), **bad}) is not None
            now[0] += 1.0
            still[0] += 1.0
            assert noisy.reply(honest(client, index)) is None
            assert quiet.reply(honest(client, index)) is None
        now[0] = still[0] = 100.0 * index + 10.0
        a, b = noisy.due(), quiet.due()
        others = np.sort(clients) != liar
        assert [r["client"] for r in a.accepted] == [r["client"] for r in b.accepted] == sorted(clients[1:].tolist())
        sums = [np.sum([r["delta"] for r in c.accepted], axis=0, dtype=np.float32).tobytes() for c in (a, b)]
        assert sums[0] == sums[1]
        assert a.outcome[others].tolist() == b.outcome[others].tolist()
        assert a.duration.tobytes() == b.duration.tobytes()
        assert a.outcome[~others][0] in (Outcome.LATE, Outcome.REJECTED)
        noisy.settle(a)
        quiet.settle(b)
    assert noisy.over_selection.ask_for(10) == quiet.over_selection.ask_for(10)
