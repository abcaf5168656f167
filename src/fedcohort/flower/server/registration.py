"""Who came: new nodes are asked who they are, late replies are taken in, and no wait is without end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import ArrayRecord

from fedcohort.errors import MissingSignal, StoreError, VersionMismatch
from fedcohort.flower import wire
from fedcohort.flower.server.clients import Clients
from fedcohort.flower.server.driver import Arrival, Driver
from fedcohort.flower.server.patience import nobody_left
from fedcohort.flower.server.strategy_settings import StrategySettings

_AT_LEAST = 2.0  # seconds for the rest to answer, once enough have


class Attendance:
    """Keeps the register of clients up to date between the phases of a round."""

    def __init__(self, settings: StrategySettings, driver: Driver, clients: Clients) -> None:
        self.settings, self.driver, self.clients = settings, driver, clients
        self.late: dict[int, float] = {}  # slot -> seconds, since the last row
        self._answers: list[Arrival] = []  # registrations that were pulled and not yet taken in
        self.awaited: Callable[[Arrival], bool] = lambda arrival: False  # whether the open round takes this reply

    def gather(self, arrays: ArrayRecord) -> None:
        """Ask everybody there who they are, until enough are known or the time is up."""
        s, until = self.settings, self.settings.clock() + self.settings.wait
        enough = self._enough()
        while True:
            ids = self.clients.refresh(s.ttl, arrays)
            self.driver.gather(ids, max(until - s.clock(), 0.0), self.registered, self.registered, enough)
            self.sweep()
            if len(self.clients.node) >= s.min_available or s.clock() >= until:
                return
            s.sleep(min(s.poll, max(until - s.clock(), 0.0)))

    def _enough(self) -> Callable[[], bool]:
        """When `min_available` have answered, the others get as long again: a dead node is not worth the whole wait."""
        began, reached = self.settings.clock(), math.inf

        def enough() -> bool:
            nonlocal reached
            now = self.settings.clock()
            if len(self.clients.node) + len(self._answers) >= self.settings.min_available:
                reached = min(reached, now)
            return now - reached >= max(reached - began, _AT_LEAST)

        return enough

    def check(self, selector: str) -> None:
        """Refuse to begin where fewer than `min_available` clients can be asked, with the names of those refused."""
        known, s = len(self.clients.node), self.settings
        if known >= s.min_available:
            return
        refused = sorted(self.clients.refused.values())
        if refused:
            name, why = refused[0]
            others = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            kind = VersionMismatch if "version" in why else MissingSignal
            raise kind(
                f"client {name}{others}",
                f"{why}; {known} of at least {s.min_available} clients can be asked by {selector}",
                _remedy(why),
            )
        silent = len(self.clients.seen & self.clients.asked)
        raise StoreError(
            f"{known} clients",
            f"at least {s.min_available} must be there within {s.wait:g} s"
            + (f", and {silent} SuperNodes have not answered yet" if silent else ""),
            "see their logs, or give them longer with the keyword wait"
            if silent
            else "start more SuperNodes, or lower min_available",
        )

    def assemble(self, arrays: ArrayRecord, *, wait: bool = True) -> None:
        """Take in what came since the last round; `wait` at most one deadline for somebody to be there."""
        s = self.settings
        until = s.clock() + s.deadline
        while True:
            self.sweep()
            self.clients.refresh(s.ttl, arrays)
            self.sweep()
            if not wait or self.clients.available().size:
                return
            quiet = s.clock() - self.driver.heard
            if quiet > max(s.max_silence, s.ttl):  # beyond its time to live no message is answered
                raise nobody_left(quiet)
            if s.clock() >= until:
                return
            s.sleep(min(s.poll, max(until - s.clock(), 0.0)))

    def wait_for(self, slots: Sequence[int], arrays: ArrayRecord) -> None:
        """Wait for these clients of an earlier process to say who they are, at most `wait` or one deadline."""
        s = self.settings
        until = s.clock() + min(s.wait, s.deadline)
        while not self.clients.node.keys() >= set(slots) and s.clock() < until:
            s.sleep(min(s.poll, max(until - s.clock(), 0.0)))
            self.clients.refresh(s.ttl, arrays)
            self.sweep()

    def registered(self, arrival: Arrival) -> None:
        """A reply that the open phase does not wait for: for the open round, a registration, or a late one."""
        if self.awaited(arrival):
            return
        if arrival.sent.kind == wire.REGISTER:
            self._answers.append(arrival)  # taken in together, so that slots follow the order of ids
            return
        slot = arrival.sent.slot
        if not arrival.unreachable:
            self.clients.alive(slot)
            self.clients.measured(slot, arrival.seconds)
            self.late[slot] = arrival.seconds

    def sweep(self) -> None:
        """Late replies and registrations; those whose time is over owe a sign of life."""
        for arrival in self.driver.pull():
            self.registered(arrival)
        answers, self._answers = self._answers, []
        self.clients.handle_registrations(answers)
        for sent in self.driver.expired:
            if sent.slot >= 0:
                self.clients.silent.add(sent.slot)
            self.clients.asked.discard(sent.node)
        self.driver.expired.clear()

    def late_row(self) -> dict[str, Any]:
        """Late replies since the last row, by name."""
        late, self.late = self.late, {}
        return {"late_replies": {self.clients.roster.name(s): round(v, 3) for s, v in late.items()}} if late else {}


def _remedy(why: str) -> str:
    if "does not apply" in why:
        return "let the training function do it and say so with CohortApp(applies=...), or choose another method"
    if "version" in why:
        return "bring these clients up to date"
    return "give the CohortApp of these clients what it needs for it, or choose another selector or method"
