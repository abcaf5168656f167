"""Hostile replies against the round engine on both backends, beside a twin that never receives them.

Both engines run the same rounds with the same honest replies; to one, a share of the clients also sends rubbish of every
kind, everything arrives twice, and strangers write. In the twin those clients fail at the moment at which their rubbish
would have come. Everything but the senders' own outcomes must be equal to the bit: cohorts, the outcomes and durations
of all others, and the model.
"""

from __future__ import annotations

import logging
import math
import time

import numpy as np
from flwr.app import Message
from tests.flower.grid import FakeClient, FakeGrid, as_record, timing
from tests.stress.federation import simulated
from tests.stress.rubbish import MAX_NORM, MESSAGES, ROWS, Counted, Liar, Liars, listen, with_extra

from fedcohort.flower import CohortStrategy
from fedcohort.flower.model_layout import ModelLayout
from fedcohort.flower.server.driver import Arrival, Sent
from fedcohort.flower.server.reply_reader import ReplyValidator
from fedcohort.registry.lookup import make_method, make_selector
from fedcohort.rounds.history import History
from fedcohort.rounds.validation import Limits, validate
from fedcohort.types import Model, Outcome, Updates

logging.getLogger("flwr").setLevel(logging.CRITICAL)
SHARE = 0.4  # of the clients that lie in a round
IMPOSTOR = "in another name"
KINDS = [*MESSAGES, IMPOSTOR]


class Lies:
    """Who lies how in which round: a number from 0 to `kinds` - 1, or -1 for the truth."""

    def __init__(self, kinds: int, population: int, seed: int) -> None:
        self.kinds, self.population, self.seed, self.index = kinds, population, seed, -1

    def __call__(self, index: int, clients: np.ndarray) -> np.ndarray:
        if index != self.index:
            rng = np.random.default_rng((self.seed, index))
            lies = rng.random(self.population) < SHARE
            self.index, self.table = index, np.where(lies, rng.integers(0, self.kinds, self.population), -1)
        return self.table[clients]


def compared(noisy, twin, lies, many: int, sent) -> dict:
    """Rounds of both engines until `many` hostile replies were sent; what differs."""
    heard, said = listen(noisy), listen(twin)
    figures = {"sent": 0, "judged one by one": 0, "exceptions": 0, "accepted by mistake": 0, "honest lost": 0}
    rounds = different = 0
    while figures["sent"] < many:
        try:
            noisy.round()
        except Exception:
            figures["exceptions"] += 1
            break
        twin.round()
        a, b = heard.pop(), said.pop()
        liars = lies(a.index, a.clients) >= 0
        figures["sent"] += int(liars.sum()) + sent()
        figures["judged one by one"] += int(liars.sum())
        figures["accepted by mistake"] += int(np.isin(a.outcome[liars], (Outcome.OK, Outcome.FILTERED)).sum())
        figures["honest lost"] += int((a.outcome[~liars] != Outcome.OK).sum())
        different += not (
            np.array_equal(a.clients, b.clients)
            and np.array_equal(a.outcome[~liars], b.outcome[~liars])
            and np.asarray(a.duration).tobytes() == np.asarray(b.duration).tobytes()
            and noisy.model.params.tobytes() == twin.model.params.tobytes()
        )
        rounds += 1
        noisy.history, twin.history = History(noisy.backend.population), History(twin.backend.population)
    return {**figures, "rounds": rounds, "rounds that differ from the twin": different}


def rows(many: int, seed: int) -> dict:
    """Through the simulator: cohorts of 1000 of 2000 clients, every reply twice, and 200 strangers with each batch."""
    lies, extra = Lies(len(ROWS), 2000, seed), [0]

    def engine(silent: bool):
        world = Liars(2000, lies, silent=silent)
        keys = {"cohort_size": 1000, "max_norm": MAX_NORM, "seed": seed}
        return simulated(make_selector("oort"), world, Counted(world), make_method("fedavg"), **keys).engine

    def sent() -> int:
        found, extra[0] = extra[0], 0
        return found

    noisy, twin = engine(False), engine(True)
    inner = noisy.backend.replies

    def replies(until: float, enough: int):
        here = inner(until, enough)
        extra[0] += len(here.updates) + 200
        return with_extra(here, np.arange(len(here.updates)), 5000 + np.arange(200))

    noisy.backend.replies = replies
    return {"kinds": len(ROWS) + 2, **compared(noisy, twin, lies, many, sent)}


class Network(FakeGrid):
    """Delivers every reply twice, one more that answers nothing, and some in another client's name."""

    def __init__(self, clients, lies, *, noisy: bool) -> None:
        super().__init__(clients)
        self.lies, self.extra = lies, 0
        if noisy:
            self.tamper = self.forged

    def push_messages(self, messages):
        self.pushed.clear()
        return super().push_messages(messages)

    def forged(self, message: Message) -> list[Message]:
        if message.metadata.message_type != "train":
            return [message]
        number = message.metadata.src_node_id - 1001
        kind = self.lies(self.lies.index, np.array([number]))[0]
        if kind >= 0 and KINDS[kind] == IMPOSTOR:
            message.metadata.__dict__["_src_node_id"] = 1001 + (number + 1) % len(self.clients)
        stray = Message(message.content, reply_to=message)
        stray.metadata.__dict__["_reply_to_message_id"] = "never-sent"
        self.extra += 2
        return [stray, message, message]

    def sent(self) -> int:
        found, self.extra = self.extra, 0
        return found


def messages(many: int, seed: int) -> dict:
    """Through Flower: cohorts of 40 of 60 clients."""
    lies = Lies(len(KINDS), 60, seed)

    def kind_of(index: int, number: int) -> str:
        kind = lies(index, np.array([number]))[0]
        return "" if kind < 0 else KINDS[kind]

    def engine(silent: bool):
        clients = [Answering(f"{i:02}", lambda r, i=i: kind_of(r, i), silent=silent) for i in range(60)]
        grid = Network(clients, lies, noisy=not silent)
        keys = {"cohort_size": 40, "deadline": 10.0, "seed": seed, "limits": Limits(max_norm=MAX_NORM)}
        strategy = CohortStrategy(method="fedavg", selector="oort", **keys, **timing(grid))
        first = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
        return strategy._begin(grid, as_record(first), 1e6)

    noisy, twin = engine(False), engine(True)
    return {"kinds": len(KINDS) + 2, **compared(noisy, twin, lies, many, noisy.backend.driver.grid.sent)}


class Answering(Liar):
    """A liar that also poses as another client: then it sends an honest reply, and the network changes its name."""

    def __init__(self, name: str, kind_of, *, silent: bool) -> None:
        super().__init__(name, kind_of, silent=silent, step=0.1 * (int(name) % 7 + 1), seconds=1.0 + int(name) / 100)

    def train(self, message: Message):
        kind_of = self.kind_of
        try:
            if not self.silent:
                self.kind_of = lambda index: kind_of(index).replace(IMPOSTOR, "")
            return super().train(message)
        finally:
            self.kind_of = kind_of


def cost() -> dict:
    """Microseconds of the processor per reply: a row among a thousand, and reading one Flower message of 8 and of 10^6 numbers."""
    wide = Updates(np.arange(1000), np.zeros((1000, 8), np.float32), np.ones(1000), np.ones(1000, np.int64))
    signals = {"utility": np.ones(1000)}
    out = {"a row of a matrix": _best(lambda: validate(wide, signals), 20) / 1000}
    for size in (8, 10**6):
        first = {"w": np.zeros(size, np.float32)}
        layout = ModelLayout.of(as_record(first))
        validator = ReplyValidator(layout, weight_key="num-examples", weight_needed=True)
        asked = Message(_request(first), dst_node_id=7, message_type="train")
        client = FakeClient("0", provides=["utility"], utility=1.0)
        arrival = Arrival(Sent(0, 7, "train", 0, 0.0, 9.0), Message(client.train(asked), reply_to=asked), 1.0)
        model = Model(np.zeros(size, np.float32))
        wanted = frozenset({"utility"})
        name = f"a Flower message of {size:,} numbers"
        out[name] = _best(lambda v=validator, a=arrival, m=model, w=wanted: v.read(a, m, w), 20)
    return {name: round(1e6 * seconds, 2) for name, seconds in out.items()}


def _request(first):
    from flwr.app import ConfigRecord, RecordDict

    from fedcohort.flower import wire

    return RecordDict({"arrays": as_record(first), wire.REQUEST: ConfigRecord({"measure": ["utility"], "round": 0})})


def _best(call, many: int) -> float:
    best = math.inf
    for _ in range(5):
        start = time.process_time()
        for _ in range(many):
            call()
        best = min(best, (time.process_time() - start) / many)
    return best
