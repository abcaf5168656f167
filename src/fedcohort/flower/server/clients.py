"""Who is there: stable ids, what each client can tell, and a liveness of our own.

Node ids are random per start, so every node is asked once, by a query, for the id of the client behind it (node
config ``client-id``, else ``partition-id``; or its public key). A ClientApp that knows no such query is a plain client:
it is known by its node id and provides no signals. Flower's list keeps dead nodes for about a minute: a client that
let an ask go unanswered is asked for a sign of life before it can be chosen again.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedcohort import signals as catalogue
from fedcohort.core.plain_text import shown
from fedcohort.flower import wire
from fedcohort.flower.server.driver import Arrival, Driver
from fedcohort.flower.server.histogram_length import CLASSES, HISTOGRAM, HistogramLength, histograms
from fedcohort.flower.server.json_log import event
from fedcohort.flower.server.reply_reader import RATIO, usual_size
from fedcohort.flower.wire import Refused
from fedcohort.rounds.roster import Roster
from fedcohort.types import Arrays, Index

_AT_ONCE = 5.0  # seconds between registration and activation of a SuperNode that registers itself
_LONGEST_ID = 200
_MOST_VALUES = 10_000  # entries of a list that a client may send about itself
_NEWER = "a newer node answers to its id"
_OTHER_LENGTH = f"its {HISTOGRAM} has another length than that of most"
IDENTITIES = ("client-id", "public-key")
SERVER_SIDE = frozenset(
    {"expected_seconds", "delta_norm", "delta", "weights", "last_layer_delta", "model_gain", "model"}
)
APP_RAISED = 2  # Flower's code for an exception in the ClientApp: here, that it knows no such query
CANNOT_LOAD = (1, 7)  # the ClientApp, or the app bundle, cannot be loaded there
log = logging.getLogger("flwr")  # what the ServerApp's log shows


@dataclass(frozen=True)
class Requirements:
    """What a client must offer to be asked."""

    signals: frozenset[str]  # client, probe and profile signals that the selector or the method reads
    app_version: str | None
    abilities: frozenset[str]  # what the method's client half asks for
    from_metrics: frozenset[str]  # signals that arrive as ordinary metrics
    identity: str = "client-id"

    def request(self, max_privacy: str, arrays: ArrayRecord) -> RecordDict:
        """The question to a new node; the model comes along only where clients are asked about their labels."""
        body = {
            "wire": wire.WIRE,
            "profiles": sorted(catalogue.of_side(self.signals, "profile") - SERVER_SIDE),
            "max-privacy": max_privacy,
        }
        about_labels = {"samples", "label_histogram"} & self.signals
        return RecordDict({wire.REQUEST: ConfigRecord(body), **({"arrays": arrays} if about_labels else {})})


@dataclass(frozen=True)
class ClientInfo:
    """What a node said of itself."""

    name: str
    app_version: str = ""
    provides: frozenset[str] = frozenset()
    abilities: frozenset[str] = frozenset()
    profile: Mapping[str, Any] | None = None

    def rejection_reason(self, terms: Requirements) -> str | None:
        """Why this client cannot be asked under these terms."""
        if terms.app_version is not None and self.app_version != terms.app_version:
            return f"it runs version {self.app_version or 'unknown'!r} of the app, this server {terms.app_version!r}"
        missing = sorted(terms.signals - SERVER_SIDE - terms.from_metrics - self.provides)
        if missing:
            return f"it does not provide the signal {missing[0]!r}"
        lacking = sorted(terms.abilities - self.abilities)
        return f"its client half does not apply {lacking[0]!r}" if lacking else None


class Clients:
    """The register of one deployment."""

    def __init__(self, driver: Driver, terms: Requirements, max_privacy: str) -> None:
        self.driver, self.terms, self.max_privacy = driver, terms, max_privacy
        self.roster = Roster()
        self.node: dict[int, int] = {}  # slot -> node id
        self.slot: dict[int, int] = {}  # node id -> slot
        self.asked: set[int] = set()  # nodes whose registration is under way
        self.refused: dict[int, tuple[str, str]] = {}  # node id -> (name, why)
        self.news: dict[str, str] = {}  # refusals since the last record, by name
        self.profile: list[Mapping[str, Any]] = []  # by slot
        self.length = HistogramLength()
        self.silent: set[int] = set()  # slots that owe a sign of life
        self.latency: dict[int, float] = {}  # slot -> smoothed seconds, measured here
        self.recorded = self.recorded_length = 0  # slots, and length of histograms, that are in the journal
        self.keys: dict[int, str] = {}
        self.authenticated: set[int] = set()  # nodes whose key was registered by the operator
        self.seen: set[int] = set()  # nodes on Flower's list
        self.since: dict[int, int] = {}  # node id -> at which look at Flower's list it was there first
        self.looks = 0

    def refresh(self, ttl: float, arrays: ArrayRecord) -> set[str]:
        """Read Flower's list, ask new nodes who they are, and silent ones for a sign of life."""
        nodes = self.driver.nodes()
        self.seen = {int(n.node_id) for n in nodes}
        self.keys.update({int(n.node_id): n.public_key.hex() for n in nodes if n.public_key})
        self.authenticated |= {int(n.node_id) for n in nodes if n.public_key and _registered_ahead(n)}
        self.looks += 1
        for node in self.seen:
            self.since.setdefault(node, self.looks)
        self._reconsider()
        self.asked &= self.seen
        fresh = self.seen - self.asked - set(self.slot) - set(self.refused)
        unresponsive = {self.node[s] for s in self.silent if self.node.get(s) in self.seen and not self.driver.busy(s)}
        question = self.terms.request(self.max_privacy, arrays)
        ping = RecordDict({wire.REQUEST: question[wire.REQUEST]})
        contents = {-1 - i: (node, question) for i, node in enumerate(sorted(fresh))}
        contents.update({self.slot[n]: (n, ping) for n in unresponsive})
        ids, lost = self.driver.push(contents, wire.REGISTER, -1, ttl)
        self.asked |= fresh - {contents[s][0] for s in lost}
        return ids

    def handle_registrations(self, arrivals: Iterable[Arrival]) -> None:
        """Take in answers to :meth:`look`; new clients get their slots in the order of their ids."""
        cards = []
        for arrival in arrivals:
            node = arrival.sent.node
            self.asked.discard(node)
            if arrival.unreachable:
                continue
            if node in self.slot:
                self.alive(self.slot[node])
                continue
            try:
                card = self._card(arrival)
            except Refused as reason:
                self._refuse(node, f"node-{node}", reason.reason)
            except Exception as error:  # whatever a hostile answer can set off, it ends here
                self._refuse(node, f"node-{node}", f"its answer is malformed ({type(error).__name__})")
            else:
                cards.extend([(node, card)] if card is not None else [])
        self._vote([card for _, card in cards])
        for node, card in sorted(cards, key=lambda c: (len(c[1].name), c[1].name, c[0])):
            self._admit(node, card)

    def alive(self, slot: int) -> None:
        """A sign of life."""
        self.silent.discard(slot)

    def measured(self, slot: int, seconds: float) -> None:
        """A latency, measured by the server."""
        old = self.latency.get(slot)
        self.latency[slot] = seconds if old is None else 0.7 * old + 0.3 * seconds

    def available(self) -> Index:
        """Slots that can be asked now: on Flower's list, not silent, and owing no reply."""
        here = (s for s, n in self.node.items() if n in self.seen and s not in self.silent)
        return np.array(sorted(s for s in here if not self.driver.busy(s)), np.int64)

    def profiles(self, names: Iterable[str], deadline: float) -> Arrays:
        """Declared profile columns, one row per slot; `expected_seconds` is the server's own estimate."""
        out: Arrays = {}
        for name in sorted(names):
            if name == "expected_seconds":
                usual = median(self.latency.values()) if self.latency else min(deadline, 60.0)
                column: Any = [self.latency.get(s, usual) for s in range(len(self.roster))]
            elif name == HISTOGRAM:
                column = histograms(self.profile, self.length.holds)
            else:
                column = [p[name] for p in self.profile]
            out[name] = np.asarray(column, np.int64 if name == "samples" else np.float32)
        return out

    def samples(self) -> Index:
        """Samples that each client said it has, at most RATIO times the usual: one alone is not almost all the data."""
        said = np.array([int(p.get("samples", 0)) for p in self.profile], np.int64)
        return np.minimum(said, RATIO * usual_size(said.tolist(), [])).astype(np.int64)

    def news_record(self) -> tuple[Arrays, dict[str, Any]] | None:
        """What the journal should know since the last time, if anything."""
        new = self.roster.ids[self.recorded :]
        if not new and not self.news and self.length.holds == self.recorded_length:
            return None
        profiles = [dict(p) for p in self.profile[self.recorded :]]
        meta = {"ids": list(new), "profiles": profiles, "refused": dict(self.news)}
        if self.length.holds:
            meta[CLASSES] = self.length.holds
        self.recorded, self.recorded_length, self.news = len(self.roster), self.length.holds, {}
        return {}, meta

    def load(self, meta: Mapping[str, Any]) -> None:
        """Take over a record of an earlier process."""
        self.roster.register_all(meta["ids"])
        self.profile.extend(meta["profiles"])
        self.recorded = len(self.roster)
        self.length.vote(dict(zip(meta["ids"], meta["profiles"], strict=True)))
        self.length.holds = self.recorded_length = meta.get(CLASSES, self.length.holds)

    def _card(self, arrival: Arrival) -> ClientInfo | None:
        """What the node says of itself; None where it should be asked again."""
        node, error = arrival.sent.node, arrival.error
        plain = self._name(node, f"node-{node}")
        if error is not None:
            if arrival.message.error.code in CANNOT_LOAD:
                raise Refused(f"the app cannot be loaded there ({error})")
            return ClientInfo(plain, profile={}) if arrival.message.error.code == APP_RAISED else None
        body = arrival.message.content.get(wire.REQUEST)
        if not isinstance(body, ConfigRecord) or arrival.message.metadata.src_node_id != node:
            return ClientInfo(plain, profile={})
        if body.get("wire") != wire.WIRE:
            raise Refused(f"it speaks version {body.get('wire')!r} of the wire format, this server {wire.WIRE}")
        name = str(body.get("id", ""))
        if not 0 < len(name) <= _LONGEST_ID or not name.isprintable():
            raise Refused("its client id is empty, too long or not printable")
        provides = frozenset(str(s) for s in _texts(body, "provides") if s in catalogue.SIGNALS)
        scalars, _ = wire.own(arrival.message.content)
        profile = {n: _profile(n, scalars) for n in catalogue.of_side(self.terms.signals, "profile") if n in scalars}
        app = shown(str(body.get("app-version", "")), _LONGEST_ID)
        return ClientInfo(self._name(node, name), app, provides, frozenset(_texts(body, "abilities")), profile)

    def _name(self, node: int, said: str) -> str:
        if self.terms.identity == "public-key" and node in self.keys:
            return f"key-{hashlib.sha256(bytes.fromhex(self.keys[node])).hexdigest()[:24]}"
        return said

    def _admit(self, node: int, card: ClientInfo) -> None:
        why = card.rejection_reason(self.terms) or self._unfit(card) or self._taken(node, card.name)
        if why is not None:
            self._refuse(node, card.name, why)
            return
        known = card.name in self.roster
        slot = self.roster.register(card.name)
        if not known:
            self.profile.append(card.profile or {})
        else:  # what it was not asked for then
            self.profile[slot] = {**(card.profile or {}), **self.profile[slot]}
        before = self.node.get(slot)
        if before is not None and self.slot.pop(before, None) is not None and before in self.seen:
            self.refused[before] = card.name, _NEWER
            log.info("client %s restarted: node %d takes the place of node %d", card.name, node, before)
        self.node[slot], self.slot[node] = node, slot
        self.alive(slot)
        log.info("client %s is slot %d (node %d)", card.name, slot, node, extra=event("registered", client=card.name))

    def _taken(self, node: int, name: str) -> str | None:
        """Why this id belongs to another node: one that is alive and not older, or one with another key.

        A SuperNode that crashes and is restarted comes back under a new node id while Flower still lists the old one,
        so the node that appeared last wins. With authentication it comes back under its old node id: another node with
        another key is somebody else.
        """
        holder = self.node.get(self.roster.slot(name)) if name in self.roster else None
        if holder is None:
            return None
        if node in self.authenticated and self.keys.get(node) != self.keys.get(holder):
            return f"the id {name!r} belongs to a node with another key"
        alive = holder in self.seen and self.roster.slot(name) not in self.silent
        if alive and self.since.get(node, 0) <= self.since.get(holder, 0):
            return f"another node answers to the id {name!r} already"
        return None

    def _reconsider(self) -> None:
        """Whoever was refused because another node had its id may try again when that one is gone."""
        for node, (name, why) in list(self.refused.items()):
            if why == _OTHER_LENGTH and self.length.votes.get(name) == self.length.holds:
                del self.refused[node]
            if why != _NEWER and "another node answers" not in why:
                continue
            holder = self.node.get(self.roster.slot(name)) if name in self.roster else None
            if holder is None or holder not in self.seen:
                del self.refused[node]

    def _unfit(self, card: ClientInfo) -> str | None:
        """Why the profile of this client does not fit the columns of the others."""
        first = self.profile[self.roster.slot(card.name)] if card.name in self.roster else {}
        given = {**(card.profile or {}), **first}  # what it said first is what counts
        for name in sorted(catalogue.of_side(self.terms.signals, "profile") - SERVER_SIDE):
            if name not in given:
                return f"it did not send its {name}"
        return None if self.length.fits(given) else _OTHER_LENGTH

    def _vote(self, cards: Iterable[ClientInfo]) -> None:
        """Count the lengths of newcomers' histograms; where that changes what holds, others are asked no more."""
        fit = [c for c in cards if c.name not in self.roster and c.rejection_reason(self.terms) is None]
        if self.length.vote({c.name: c.profile or {} for c in fit}):
            for slot, node in list(self.node.items()):
                if not self.length.fits(self.profile[slot]):
                    del self.node[slot], self.slot[node]
                    self._refuse(node, self.roster.name(slot), _OTHER_LENGTH)

    def _refuse(self, node: int, name: str, why: str) -> None:
        why = shown(why)
        self.refused[node] = (name, why)
        self.news[name] = why
        log.warning("client %s is refused: %s", name, why, extra=event("refused", client=name, why=why))


def _registered_ahead(node: Any) -> bool:
    """Whether an operator registered this node's key before it started, which authentication demands.

    Without authentication a SuperNode makes a new key at every start and registers itself, a moment before it is
    activated; Flower tells a ServerApp nothing else that differs.
    """
    try:
        made, started = (datetime.fromisoformat(t) for t in (node.registered_at, node.last_activated_at))
    except (AttributeError, TypeError, ValueError):
        return False
    return (started - made).total_seconds() > _AT_ONCE


def _texts(body: ConfigRecord, key: str) -> list[str]:
    value = body.get(key, [])
    return [str(v)[:_LONGEST_ID] for v in value[:_MOST_VALUES]] if isinstance(value, list) else []


def _profile(name: str, scalars: Mapping[str, Any]) -> Any:
    value = scalars[name]
    values = value if isinstance(value, list) else [value]
    if len(values) > _MOST_VALUES:
        raise Refused(f"its {name} has {len(values)} entries")
    if not all(isinstance(v, int | float) and math.isfinite(v) and 0 <= v <= 1e12 for v in values):
        raise Refused(f"its {name} is {value!r}")
    if isinstance(value, list) != (name == "label_histogram"):
        raise Refused(f"its {name} has the wrong form")
    return value
