"""The round driver: push, pull, deadline, early close. No wait is without end.

A message that got no reply in its round stays on the list until its time to live is over: a reply that comes after
all is picked up by the next pull, whoever asks, and reported as late. Errors are attributed by the message they
answer, never by their sender (those made by the SuperLink all come from node 1).

A reply that Flower itself cannot read makes its whole pull fail. From then on replies are pulled one by one, so that
such a sender has no reply and nobody else is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedcohort.core.plain_text import LONGEST
from fedcohort.errors import FedcohortError
from fedcohort.flower.server.patience import at_most

SUPERLINK = 1  # node id of the SuperLink, sender of errors that it makes itself
GRACE = 5.0  # seconds beyond its time to live after which a message is forgotten
log = logging.getLogger("flwr")  # what the ServerApp's log shows


@dataclass(frozen=True, slots=True)
class Sent:
    """A message on its way."""

    slot: int
    node: int
    kind: str  # message type
    round: int
    at: float  # when it was pushed
    expires: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A reply, as the server saw it come in."""

    sent: Sent
    message: Message
    seconds: float  # from push to pull, by the server's clock

    @property
    def error(self) -> str | None:
        """Why there is no content, if there is none."""
        if self.message.has_error():
            said = " ".join(str(self.message.error.reason or "")[: 4 * LONGEST].split())
            return f"error-{self.message.error.code}: {''.join(c for c in said if c.isprintable())[:LONGEST]}"
        return None

    @property
    def unreachable(self) -> bool:
        """The SuperLink answered in the client's place: the client was not reached."""
        return bool(self.message.has_error() and self.message.metadata.src_node_id == SUPERLINK)


class Driver:
    """Sends messages and hands out replies, with the times of both."""

    def __init__(
        self,
        grid: Grid,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        poll: float,
        patience: float = 900.0,
    ) -> None:
        self.grid, self.clock, self.sleep, self.poll, self.patience = grid, clock, sleep, poll, patience
        self.heard = clock()  # when a client last answered
        self.sent: dict[str, Sent] = {}
        self.unsolicited = 0
        self.bytes_sent = self.bytes_received = 0  # of arrays
        self.expired: list[Sent] = []  # never answered; whoever reads it empties it
        self.one_by_one = False  # whether somebody sent what Flower cannot read

    def nodes(self) -> list[Any]:
        """Flower's list of nodes."""
        with at_most(self.patience):
            return list(self.grid.get_nodes())

    def busy(self, slot: int) -> bool:
        """Whether this client still owes a reply to an earlier message."""
        return any(s.slot == slot for s in self.sent.values())

    def push(
        self, contents: Mapping[int, tuple[int, RecordDict]], kind: str, index: int, ttl: float
    ) -> tuple[set[str], list[int]]:
        """Send {slot: (node, content)}; the message ids, and the slots whose message could not be sent."""
        now, slots = self.clock(), list(contents)
        messages = [
            Message(content, dst_node_id=node, message_type=kind, ttl=ttl, group_id=str(index + 1))
            for node, content in contents.values()
        ]
        if not messages:
            return set(), []
        with at_most(self.patience):
            accepted = {str(i) for i in self.grid.push_messages(messages) if i}
        ids, lost = set(), []
        for slot, message in zip(slots, messages, strict=True):
            name = str(message.metadata.message_id)
            if name not in accepted:
                lost.append(slot)
                continue
            self.sent[name] = Sent(slot, message.metadata.dst_node_id, kind, index, now, now + ttl)
            self.bytes_sent += _size(message)
            ids.add(name)
        return ids, lost

    def pull(self) -> list[Arrival]:
        """Everything that has come in, of this round or an earlier one. Each reply is handed out once."""
        now = self.clock()
        for name in [n for n, s in self.sent.items() if now > s.expires + GRACE]:
            self.expired.append(self.sent.pop(name))
        if not self.sent:
            return []
        arrivals = []
        with at_most(self.patience):
            pulled = list(self._pulled(sorted(self.sent)))
        for message in pulled:
            sent = self.sent.pop(str(message.metadata.reply_to_message_id), None)
            if sent is None:  # nobody asked, or it was answered before
                self.unsolicited += 1
            else:
                arrivals.append(Arrival(sent, message, max(now - sent.at, 0.0)))
                self.bytes_received += _size(message)
        if not all(arrival.unreachable for arrival in arrivals):
            self.heard = now
        return arrivals

    def _pulled(self, names: list[str]) -> Iterable[Message]:
        """What the network hands out for these messages, without replies that it cannot read itself."""
        if not self.one_by_one:
            try:
                return list(self.grid.pull_messages(names))
            except Exception as error:
                if _of_the_network(error):
                    raise
                self.one_by_one = True
                log.warning("a reply cannot be read by Flower (%s); they are pulled one by one", type(error).__name__)
        found: list[Message] = []
        for name in names:
            try:
                found.extend(self.grid.pull_messages([name]))
            except Exception as error:
                if _of_the_network(error):
                    raise
                node = self.sent[name].node
                log.warning("the reply of node %d cannot be read by Flower (%s)", node, type(error).__name__)
        return found

    def gather(
        self,
        ids: Iterable[str],
        seconds: float,
        take: Callable[[Arrival], None],
        late: Callable[[Arrival], None],
        enough: Callable[[], bool],
    ) -> None:
        """Wait for the replies to these messages: until all are in, enough are, or the time is up."""
        waiting, until = set(ids), self.clock() + seconds
        while waiting:
            before = {name: self.sent[name] for name in waiting if name in self.sent}
            for arrival in self.pull():
                (take if arrival.sent in before.values() else late)(arrival)
            waiting = {name for name in before if name in self.sent}
            remaining = until - self.clock()
            if not waiting or enough() or remaining <= 0:
                return
            self.sleep(min(self.poll, remaining))


def _size(message: Message) -> int:
    """Bytes of the arrays of a message."""
    if not message.has_content():
        return 0
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())


def _of_the_network(error: Exception) -> bool:
    """Whether it was the connection to the SuperLink that failed, not what came over it."""
    if isinstance(error, OSError | FedcohortError):
        return True
    return type(error).__module__.partition(".")[0] in ("httpx", "httpcore", "grpc")
