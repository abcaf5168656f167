"""What goes wrong: drop-out, stragglers, and clients that are broken or malicious.

Exactly round(share N) clients get each fault, drawn without overlap from one keyed order. A fault stays with its
client; drop-out and straggling are drawn per (client, round).

    nan            the update is NaN (broken hardware, a diverged run)
    scaled         the update is multiplied by `scale`
    sign_flipped   the update is multiplied by -1
    free_riders    the update is noise of a thousandth of the size of the others' mean norm; nothing was trained
    boasting       the reported loss-like signals, probes too, are multiplied by `scale` to be chosen more often
    label_flipped  every label y is K - 1 - y when the world is built; the training itself is honest
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Finite, Interval, Share
from fedcohort.core.rng import uniform_at
from fedcohort.errors import check
from fedcohort.types import Array, Arrays, Index, Mask, Updates
from fedcohort.worlds import keyed_draws
from fedcohort.worlds.section import Section, table

LIES = ("nan", "scaled", "sign_flipped", "free_riders", "boasting", "label_flipped")
HONEST = -1
BOASTED = frozenset(
    {
        "train_loss",
        "train_loss_sq",
        "utility",
        "loss_before",
        "val_loss",
        "robust_loss",
        "grad_norm",
        "loss",
        "batch_loss",
    }
)


@dataclass(frozen=True)
class Faults(Section):
    """Which clients fail, and how; with all zero, everybody is honest and nobody fails.

    `dropout` is the probability per round to start and never come back, `flaky_dropout` that of a share `flaky` of the
    clients; `stragglers` is the probability per round to take `straggle` times as long. `nan`, `scaled`,
    `sign_flipped`, `free_riders`, `boasting` and `label_flipped` are shares of clients with that fault (see the
    module), and `scale` is the factor of those that scale or boast.

    >>> fixed = Faults(sign_flipped=0.2).bind(clients=10, seed=0)
    >>> int((fixed["lie"] != HONEST).sum())
    2
    """

    kind: ClassVar[str] = "faults"

    dropout: Share = 0.0
    flaky: Share = 0.0
    flaky_dropout: Share = 0.5
    stragglers: Share = 0.0
    straggle: Annotated[float, Interval(1, ends="[)")] = 10.0
    nan: Share = 0.0
    scaled: Share = 0.0
    sign_flipped: Share = 0.0
    free_riders: Share = 0.0
    boasting: Share = 0.0
    label_flipped: Share = 0.0
    scale: Finite = 10.0

    def check(self) -> None:
        """No client has two faults."""
        shares = {lie: getattr(self, lie) for lie in LIES}
        total = sum(shares.values())
        shown = ", ".join(f"{lie} = {value:g}" for lie, value in shares.items() if value)
        check(total <= 1.0 + 1e-9, shown, f"they must add up to at most 1, not {total:g}", "lower one of them")

    def bind(self, clients: int, seed: int) -> Arrays:
        """The fault of each client (an index into LIES, or HONEST) and its drop-out rate."""
        part = np.full(clients, HONEST, np.int8)
        order, at = keyed_draws.order(seed, "liars", clients), 0
        for lie, name in enumerate(LIES):
            many = min(int(np.floor(getattr(self, name) * clients + 0.5)), clients - at)
            part[order[at : at + many]] = lie
            at += many
        rate = np.full(clients, self.dropout, np.float32)
        rate[keyed_draws.order(seed, "flaky", clients)[: int(np.floor(self.flaky * clients + 0.5))]] = (
            self.flaky_dropout
        )
        return {"lie": part, "dropout": rate}

    def dropped(self, seed: int, index: int, clients: Index, fixed: Arrays, *, probe: bool = False) -> Mask:
        """Who starts and never comes back."""
        stream = "dropout-probe" if probe else "dropout"
        gone: Mask = uniform_at(seed, stream, index, clients) < fixed["dropout"][clients]
        return gone

    def slowed(self, seed: int, index: int, clients: Index) -> NDArray[np.float64]:
        """What the time of each client is multiplied by."""
        return np.where(uniform_at(seed, "straggle", index, clients) < self.stragglers, self.straggle, 1.0)

    def labels(self, label: Index, sizes: Index, classes: int, fixed: Arrays) -> Index:
        """Labels as the flipping clients have them; the same array where there are none."""
        flips = np.repeat(fixed["lie"] == LIES.index("label_flipped"), sizes)
        return np.where(flips, classes - 1 - label, label) if flips.any() else label

    def tamper(self, seed: int, index: int, updates: Updates, signals: Arrays, fixed: Arrays) -> tuple[Updates, Arrays]:
        """Rewrite the rows of faulty clients; the other rows keep their bytes."""
        rows = _liars(updates.clients, fixed)
        if all(rows[name].size == 0 for name in LIES if name != "label_flipped"):
            return updates, signals
        delta = updates.delta.copy()
        size = float(np.linalg.norm(delta, axis=1).mean()) if len(updates) else 0.0
        delta[rows["nan"]] = np.nan
        delta[rows["scaled"]] *= self.scale
        delta[rows["sign_flipped"]] *= -1.0
        for row in rows["free_riders"]:
            noise = keyed_draws.normal(
                seed, f"free-rider/{index}", int(updates.clients[row]), np.arange(delta.shape[1])
            )
            delta[row] = noise * (1e-3 * size / np.sqrt(max(delta.shape[1], 1)))
        reports = {name: _boasted(name, value, rows, self.scale) for name, value in signals.items()}
        return replace(updates, delta=delta), reports

    def boasted(self, clients: Index, answers: Arrays, fixed: Arrays) -> Arrays:
        """Answers to a probe, one row per client: NaN of the broken ones, loss-like ones of boasters scaled."""
        rows = _liars(clients, fixed)
        return {name: _boasted(name.removeprefix("probe_"), value, rows, self.scale) for name, value in answers.items()}


def _liars(clients: Index, fixed: Arrays) -> dict[str, Index]:
    """Rows of these clients by fault."""
    lie = fixed["lie"][clients]
    return {name: np.flatnonzero(lie == number) for number, name in enumerate(LIES)}


def _boasted(name: str, value: Array, rows: dict[str, Index], scale: float) -> Array:
    if value.dtype.kind != "f" or not (rows["boasting"].size or rows["nan"].size):
        return value
    out = value.copy()
    out[rows["nan"]] = np.nan
    if name in BOASTED:
        out[rows["boasting"]] *= scale
    return out


FAULTS: dict[str, type[Faults]] = table(Faults)
