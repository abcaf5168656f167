"""Hostile replies against the round engine, with a twin that never receives them.

Both engines run the same rounds with the same honest replies; one is also sent rubbish of every kind, before, between
and after them. Everything but the senders' own records must be equal to the bit: who was accepted, in which order, the
model made of it, and each honest client's row.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from fedcohort.rounds.engine import Policy, RoundEngine
from fedcohort.rounds.session import Session
from fedcohort.rounds.validation import Expected, validate_reply
from fedcohort.selectors.uniform import Uniform

PARAMS = 16
SIGNALS = {"train_loss": 0, "insight": 4}


class _Liar(dict):
    def keys(self):
        raise RuntimeError("looked at")


class _Trap:
    def __getattr__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = None


def honest(client: int, index: int) -> dict[str, Any]:
    rng = np.random.default_rng((client, index))
    return {
        "client": client,
        "round": index,
        "weight": float(rng.integers(1, 500)),
        "steps": int(rng.integers(1, 50)),
        "signals": {"train_loss": float(rng.random()), "insight": rng.random(4, np.float32)},
        "delta": rng.standard_normal(PARAMS, np.float32),
    }


def _bent(reply: dict, **changes: Any) -> dict:
    return {**reply, **changes}


_NAN, _INF = np.full(PARAMS, np.nan, np.float32), np.full(PARAMS, np.inf, np.float32)
KINDS = {
    "nan update": lambda r: _bent(r, delta=_NAN),
    "infinite update": lambda r: _bent(r, delta=_INF),
    "one nan": lambda r: _bent(r, delta=np.where(np.arange(PARAMS) == 3, np.nan, r["delta"]).astype(np.float32)),
    "short update": lambda r: _bent(r, delta=r["delta"][:-1]),
    "matrix": lambda r: _bent(r, delta=r["delta"].reshape(4, 4)),
    "float64": lambda r: _bent(r, delta=r["delta"].astype(np.float64)),
    "objects": lambda r: _bent(r, delta=np.array([{}] * PARAMS, object)),
    "text": lambda r: _bent(r, delta="0" * PARAMS),
    "no update": lambda r: _bent(r, delta=None),
    "weight zero": lambda r: _bent(r, weight=0.0),
    "weight negative": lambda r: _bent(r, weight=-5.0),
    "weight nan": lambda r: _bent(r, weight=math.nan),
    "weight huge": lambda r: _bent(r, weight=1e300),
    "weight bool": lambda r: _bent(r, weight=True),
    "weight integer beyond floats": lambda r: _bent(r, weight=10**400),
    "steps negative": lambda r: _bent(r, steps=-1),
    "steps float": lambda r: _bent(r, steps=1.5),
    "signal nan": lambda r: _bent(r, signals={**r["signals"], "train_loss": math.nan}),
    "signal huge": lambda r: _bent(r, signals={**r["signals"], "train_loss": 1e30}),
    "signal text": lambda r: _bent(r, signals={**r["signals"], "train_loss": "0.5"}),
    "signal missing": lambda r: _bent(r, signals={"train_loss": 0.5}),
    "signal unknown": lambda r: _bent(r, signals={**r["signals"], "extra": 1.0}),
    "signal wrong width": lambda r: _bent(r, signals={**r["signals"], "insight": np.zeros(5, np.float32)}),
    "many signals": lambda r: _bent(r, signals={str(i): 1.0 for i in range(200)}),
    "stale": lambda r: _bent(r, round=r["round"] - 1),
    "from the future": lambda r: _bent(r, round=r["round"] + 1),
    "unsolicited": lambda r: _bent(r, client=10**6),
    "negative client": lambda r: _bent(r, client=-1),
    "client text": lambda r: _bent(r, client="0"),
    "field missing": lambda r: {k: v for k, v in r.items() if k != "steps"},
    "field extra": lambda r: _bent(r, admin=True),
    "empty": lambda r: {},
    "none": lambda r: None,
    "list": lambda r: [r],
    "bytes": lambda r: b"\x80\x04\x95",
    "subclass": lambda r: _Liar(r),
    "trap": lambda r: _Trap(),
    "trap inside": lambda r: _bent(r, client=_Trap()),
    "number": lambda r: 7,
}


def _engine(cohort: int, seed: int):
    now = [0.0]
    session = Session(Uniform(), cohort_size=cohort, seed=seed)
    policy = Policy(size=cohort, deadline=100.0, over_select=1.0)
    return RoundEngine(session, policy, clock=lambda: now[0], params=PARAMS, signals=SIGNALS), now


def _model(closed) -> bytes:
    total = np.zeros(PARAMS, np.float32)
    for reply in closed.accepted:
        total = total + np.float32(reply["weight"]) * reply["delta"]
    return total.tobytes()


def _play(engine, now, index: int, liars: set, rubbish) -> Any:
    """One round; `rubbish` is sent between the honest replies (None: it never arrives)."""
    now[0] = 1000.0 * index
    cohort = engine.plan(np.arange(200))
    raised = 0
    for client in cohort.clients.tolist():
        now[0] += 0.1
        for reply in next(rubbish) if rubbish is not None else ():
            try:
                engine.reply(reply)
            except Exception:
                raised += 1
        if client not in liars:
            engine.reply(honest(client, index))
            if rubbish is not None and engine.reply(honest(client, index)) != "duplicate":
                raised += 1
    now[0] = 1000.0 * index + 100.0
    closed = engine.due()
    engine.settle(closed)
    return cohort, closed, raised


def hostile(many: int, seed: int) -> dict:
    """Send `many` hostile replies in rounds of 40 clients, a quarter of which send nothing but rubbish."""
    rng, names = np.random.default_rng(seed), sorted(KINDS)
    (noisy, now), (quiet, still) = _engine(40, seed), _engine(40, seed)
    sent = raised = lost = different = rounds = 0
    batch = 125
    while sent < many:
        cohort_size, index = 40, rounds
        liars: set[int] = set()

        def rubbish(index: int = index):
            while True:
                asked = list(noisy._open.expected.asked)
                kinds, senders = rng.integers(0, len(names), batch), rng.integers(0, len(asked), batch)
                yield [KINDS[names[k]](honest_cache(asked[s], index)) for k, s in zip(kinds, senders, strict=True)]

        probe = Session(Uniform(), cohort_size=cohort_size, seed=seed)
        probe.index = index
        chosen = np.sort(probe.ask(np.arange(200)).clients)
        liars = set(chosen[::4].tolist())
        first, a, bad = _play(noisy, now, index, liars, rubbish())
        _, b, _ = _play(quiet, still, index, liars, None)
        sent += batch * first.clients.size + int(first.clients.size) - len(liars)
        raised += bad
        rows = ~np.isin(np.sort(first.clients), list(liars))
        lost += int((a.outcome[rows] != 0).sum())
        different += (
            _model(a) != _model(b)
            or [r["client"] for r in a.accepted] != [r["client"] for r in b.accepted]
            or not np.array_equal(a.outcome[rows], b.outcome[rows])
            or a.duration[rows].tobytes() != b.duration[rows].tobytes()
        )
        rounds += 1
    return {
        "sent": sent,
        "kinds": len(KINDS) + 1,  # and duplicates
        "exceptions": raised,
        "accepted by mistake": sent - int(noisy.refused.total()),
        "honest lost": lost,
        "rounds": rounds,
        "rounds that differ from the twin": different,
    }


_CACHE: dict[tuple[int, int], dict] = {}


def honest_cache(client: int, index: int) -> dict[str, Any]:
    if len(_CACHE) > 200:
        _CACHE.clear()
    if (client, index) not in _CACHE:
        _CACHE[client, index] = honest(client, index)
    return _CACHE[client, index]


def cost() -> dict:
    """Microseconds of one verdict: a reply of scalars only, and one with an update of a million numbers."""
    scalar = {**honest(3, 0), "signals": {"train_loss": 0.5}, "delta": None}
    large = {**honest(3, 0), "signals": {"train_loss": 0.5}, "delta": np.zeros(10**6, np.float32)}
    out = {}
    for name, reply, params, many in (("scalar", scalar, None, 20000), ("10^6 numbers", large, 10**6, 20)):
        expected = Expected(0, frozenset(range(10)), params, {"train_loss": 0})
        assert validate_reply(reply, expected) is None
        best = math.inf
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(many):
                validate_reply(reply, expected)
            best = min(best, (time.perf_counter() - start) / many)
        out[name] = round(1e6 * best, 2)
    return out
