"""A synthetic federation: every signal of the catalogue, for clients of which it is known who is good.

There is no data, and no model is trained. Clients of even *identity* are good: they own more samples, are faster and
more reliable, have more to learn (higher losses, larger gradients) and learn it (the loss falls more), see all classes,
and their updates point in the direction of the federation. Clients of odd identity are the opposite. Everything is a
function of (seed, round, identity), so that a run can be interrupted, continued and repeated anywhere, and a relabelled
federation (`identity` permuted over the slots) is the same world with other slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import exponential_at, generator, normal_at, uniform_at
from fedcohort.errors import ContractError
from fedcohort.protocols import Prober, Selector
from fedcohort.signals import SIGNALS, of_side
from fedcohort.types import Arrays, Cohort, Index, Mask, Outcome, Probed, Real, Round, RoundResult, Signals

CLASSES = 4
LAST_LAYER = 8  # width of insight and last_layer_delta
PARAMS = 12  # width of delta, weights, model

# name: (value of a good client, value of a bad client, power of the common decay of the losses over the rounds)
_LEVELS: Mapping[str, tuple[float, float, int]] = {
    "samples": (120.0, 60.0, 0),
    "cores": (4.0, 2.0, 0),
    "frequency": (2000.0, 1000.0, 0),
    "bandwidth": (20.0, 5.0, 0),
    "expected_seconds": (5.0, 20.0, 0),
    "train_loss": (2.0, 0.6, 1),
    "train_loss_sq": (5.0, 0.5, 2),
    "loss_count": (120.0, 60.0, 0),
    "utility": (260.0, 40.0, 1),
    "loss_before": (2.0, 0.6, 1),
    "loss_after": (1.0, 0.55, 1),
    "val_loss": (2.1, 0.7, 1),
    "robust_loss": (5.0, 1.5, 1),
    "grad_norm": (2.0, 0.4, 1),
    "delta_norm": (2.0, 0.4, 1),
    "model_gain": (0.3, -0.1, 0),
    "probe_loss": (2.0, 0.6, 1),
    "probe_batch_loss": (2.0, 0.6, 1),
    "probe_val_loss": (2.1, 0.7, 1),
    "probe_robust_loss": (5.0, 1.5, 1),
    "probe_grad_norm": (2.0, 0.4, 1),
    "probe_accuracy": (0.4, 0.8, 0),
}
_WIDTHS: Mapping[str, int] = {
    "insight": LAST_LAYER,
    "last_layer_delta": LAST_LAYER,
    "network_insight": PARAMS,
    "delta": PARAMS,
    "weights": PARAMS,
    "probe_weights": PARAMS,
}
_BROKEN = (Outcome.FAILED, Outcome.LATE, Outcome.REJECTED, Outcome.FILTERED)
_REPORTED = (of_side(SIGNALS, "client") | of_side(SIGNALS, "server")) - {"model"}
_DEADLINE = 60.0  # seconds waited for those that never come


@dataclass
class SyntheticFederation:
    """A world and a task in one, cheap enough for thousands of rounds a second.

    Args:
        population: number of clients.
        seed: of every random draw.
        contrast: 1 makes two classes of clients, 0 makes them all alike.
        noise: relative noise of every measured number.
        failure: share of dispatched clients whose outcome is not OK.
        availability: probability that a client is available in a round.
        identity: which client is in which slot; by default in the order of the slots.
        flipped: scalar signals of which a good client has the *other* class's value.
        forced: the outcome of everybody, if given.
        poison: put into every other row of every client, server and probe signal.
        full: also carry the signals that were not declared (reading them still raises).

    >>> from fedcohort.selectors.uniform import Uniform
    >>> [cohort.clients.size for _, cohort in SyntheticFederation(24).play(Uniform(), rounds=3, size=6)]
    [6, 6, 6]
    """

    population: int = 24
    seed: int = 0
    contrast: float = 1.0
    noise: float = 0.05
    failure: float = 0.1
    availability: float = 1.0
    identity: Index | None = None
    flipped: frozenset[str] = frozenset()
    forced: Outcome | None = None
    poison: float | None = None
    full: bool = False
    classes: int = field(default=CLASSES, init=False)

    def __post_init__(self) -> None:
        if self.identity is None:
            self.identity = np.arange(self.population, dtype=np.int64)

    def grow(self, population: int) -> None:
        """Register new clients: they get the next slots and the next identities."""
        fresh = np.arange(self.population, population, dtype=np.int64)
        self.identity, self.population = np.concatenate([self._identity, fresh]), population

    @property
    def good(self) -> Mask:
        """Who belongs to the better half, by slot."""
        return np.equal(self._identity % 2, 0)

    def available(self, index: int) -> Index:
        """Sorted slots of the clients that are available in this round."""
        if self.availability >= 1.0:
            return np.arange(self.population)
        here = uniform_at(self.seed, "available", index, self._identity) < self.availability
        return np.flatnonzero(here)

    def round(self, index: int, size: int, needs: frozenset[str]) -> Round:
        """What a selector with these needs may know in this round."""
        everyone = np.arange(self.population)
        names = of_side(SIGNALS if self.full else needs, "profile")
        profiles = {name: self._profile(name, everyone) for name in sorted(names)}
        return Round(
            index=index,
            size=size,
            available=self.available(index),
            population=self.population,
            clock=30.0 * index,
            profiles=Signals(profiles, needs),
        )

    def answers(self, rnd: Round, selector: Selector, generator: np.random.Generator) -> Round:
        """The round with the answers to the selector's probe, if it probes. A few of those asked do not answer."""
        if not isinstance(selector, Prober):
            return rnd
        asked = np.asarray(selector.probe(rnd, generator))
        self._check(asked, rnd, "probed", rnd.available.size)
        if asked.size == 0:
            return rnd
        lost = uniform_at(self.seed, "probe-lost", rnd.index, self._identity[asked]) < self.failure / 2
        clients = np.sort(asked[~lost])
        names = of_side(SIGNALS if self.full else selector.needs, "probe")
        answers = Signals(self._measured(names, rnd.index, clients), selector.needs)
        return replace(rnd, probed=Probed(clients, answers))

    def ask(self, selector: Selector, index: int, size: int, seed: int = 0) -> tuple[Round, Cohort]:
        """Probe and select, with generators made from (seed, round); the cohort is checked."""
        rnd = self.round(index, size, selector.needs)
        rnd = self.answers(rnd, selector, generator(seed, "probe", index))
        cohort = selector.select(rnd, generator(seed, "select", index))
        self._check(cohort.clients, rnd, "chosen", size)
        return rnd, cohort

    def outcomes(self, index: int, clients: Index) -> NDArray[np.int8]:
        """The outcome of these clients if they are asked in this round."""
        if self.forced is not None or self.failure <= 0.0:
            return np.full(clients.size, self.forced or Outcome.OK, np.int8)
        who = self._identity[clients]
        risk = self.failure * (1.0 + 0.5 * self.contrast * np.where(who % 2 == 0, -1.0, 1.0))
        broken = uniform_at(self.seed, "outcome", index, who) < risk
        kind = (uniform_at(self.seed, "outcome", index, who, 1) * len(_BROKEN)).astype(np.int64)
        return np.where(broken, np.array(_BROKEN, np.int8)[kind], np.int8(Outcome.OK)).astype(np.int8)

    def seconds(self, index: int, clients: Index) -> NDArray[np.float64]:
        """How long these clients take in this round."""
        who = self._identity[clients]
        if self.noise <= 0.0:
            return self._level("expected_seconds", index, who)
        spread = 1.0 - self.noise + self.noise * exponential_at(self.seed, "seconds", index, who)
        return self._level("expected_seconds", index, who) * spread

    def model(self, index: int) -> Real:
        """The global parameters after this round (they move along one line)."""
        params: Real = (_direction(PARAMS) * (1.0 - np.exp(-(index + 1) / 20.0))).astype(np.float32)
        return params

    def result(self, rnd: Round, cohort: Cohort, needs: frozenset[str]) -> RoundResult:
        """The result of the round: one row per dispatched client in ascending order, NaN where nobody replied."""
        clients = np.sort(cohort.clients)
        outcome = self.outcomes(rnd.index, clients)
        columns = self._measured(_REPORTED if self.full else _REPORTED & needs, rnd.index, clients)
        silent = (outcome != Outcome.OK) & (outcome != Outcome.FILTERED)
        for value in columns.values():
            value[silent] = np.nan
        waits = (outcome == Outcome.LATE) | (outcome == Outcome.FAILED)
        return RoundResult(
            index=rnd.index,
            clients=clients,
            outcome=outcome,
            duration=np.where(waits, _DEADLINE, self.seconds(rnd.index, clients)),
            signals=Signals(columns, needs),
            score=self._score(rnd.index, clients[outcome == Outcome.OK]),
            probed=rnd.probed,
            model=self.model(rnd.index) if "model" in needs else None,
        )

    def play(
        self, selector: Selector, rounds: int | Iterable[int], size: int, seed: int = 0
    ) -> list[tuple[Round, Cohort]]:
        """Run the selector through these rounds; returns each round and the cohort it chose."""
        steps = []
        for index in range(rounds) if isinstance(rounds, int) else rounds:
            rnd, cohort = self.ask(selector, index, size, seed)
            selector.observe(self.result(rnd, cohort, selector.needs))
            steps.append((rnd, cohort))
        return steps

    @property
    def _identity(self) -> Index:
        assert self.identity is not None
        return self.identity

    def _check(self, clients: Index, rnd: Round, what: str, most: int) -> None:
        """The clauses on membership and size, for a cohort or a probe."""
        chosen = np.asarray(clients)
        faults = {
            f"has dtype {chosen.dtype}{chosen.shape}": chosen.ndim != 1 or chosen.dtype != np.int64,
            "names a client twice": np.unique(chosen).size != chosen.size,
            "names a client that is not available": not set(chosen.ravel().tolist()) <= set(rnd.available.tolist()),
            f"names more than {most}": chosen.size > most,
        }
        for fault, found in faults.items():
            if found:
                rule = (
                    f"the clients {what} in round {rnd.index} must be unique available slots as int64, at most {most}"
                )
                raise ContractError(f"{what}: {fault}", rule, "check how the array is computed")

    def _level(self, name: str, index: int, who: Index) -> NDArray[np.float64]:
        """The value of a scalar signal without noise."""
        good, bad, power = _LEVELS[name]
        if name in self.flipped:
            good, bad = bad, good
        side = np.where(who % 2 == 0, 0.5, -0.5) * self.contrast
        decay = 0.5 + 0.5 * float(np.exp(-index / 20.0))
        return (0.5 * (good + bad) + side * (good - bad)) * decay**power

    def _vector(self, name: str, index: int, who: Index) -> NDArray[np.float64]:
        """Rows that point in the common direction (good) or in one of their own (bad)."""
        width = _WIDTHS[name]
        cell = who[:, None] * 64 + np.arange(width)
        astray = (np.where(who % 2 == 0, 0.0, 1.0) * self.contrast)[:, None]
        own = normal_at(self.seed, "direction", 0, cell.reshape(-1)).reshape(cell.shape) / np.sqrt(width)
        shake = normal_at(self.seed, name, index, cell.reshape(-1)).reshape(cell.shape) / np.sqrt(width)
        row = (1.0 - astray) * _direction(width) + astray * own + self.noise * shake
        if name in ("weights", "probe_weights"):
            row = row + self.model(index - 1)
        out: NDArray[np.float64] = row
        return out

    def _profile(self, name: str, clients: Index) -> NDArray[np.float32] | Index:
        who = self._identity[clients]
        if name == "label_histogram":
            astray = (np.where(who % 2 == 0, 0.0, 0.8) * self.contrast)[:, None]
            return ((1 - astray) / CLASSES + astray * np.eye(CLASSES)[who // 2 % CLASSES]).astype(np.float32)
        level = self._level(name, 0, who)
        return np.rint(level).astype(np.int64) if name == "samples" else level.astype(np.float32)

    def _measured(self, names: Iterable[str], index: int, clients: Index) -> Arrays:
        """Columns of client, server or probe signals, poisoned if `poison` is given."""
        who, columns = self._identity[clients], {}
        for name in sorted(names):
            if name in _WIDTHS:
                value = self._vector(name, index, who)
            else:
                value = self._level(name, index, who)
                if self.noise > 0.0 and name != "loss_count":
                    value = value * np.exp(self.noise * normal_at(self.seed, name, index, who))
            if self.poison is not None:
                value[::2] = self.poison
            columns[name] = value.astype(np.float32)
        return columns

    def _score(self, index: int, used: Index) -> float:
        """The server's metric: better the more of the used updates are good; NaN where poisoned."""
        if self.poison is not None:
            return float("nan")
        share = float(self.good[used].mean()) if used.size else 0.0
        shake = float(normal_at(self.seed, "score", index, np.zeros(1, np.int64))[0])
        return 0.5 + 0.3 * self.contrast * (share - 0.5) + 0.2 * self.noise * shake


def _direction(width: int) -> NDArray[np.float64]:
    """The unit vector in whose direction the federation moves."""
    wave = np.cos(np.arange(width) + 1.0)
    unit: NDArray[np.float64] = wave / np.linalg.norm(wave)
    return unit
