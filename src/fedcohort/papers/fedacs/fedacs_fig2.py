"""FedACS, Fig. 2: what three kinds of skew cost plain federated averaging; Fig. 5: what few samples cost.

Both have the setting of the paper's section III: every client has a 200th of the images, none is dealt twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.fedacs.fedacs_setting import (
    CLIENTS,
    DEPARTURES,
    DIRICHLET,
    IID,
    PARETO,
    UNIFORM,
    WORLDS,
    run,
)
from fedcohort.papers.published import published
from fedcohort.papers.study import (
    SEEDS,
    Cell,
    Claim,
    Lookup,
    Quantity,
    Study,
    Value,
    beats,
    derived,
    of_scale,
    quantity,
)

ENVIRONMENTS = (UNIFORM, PARETO, DIRICHLET)
TERMINAL, LOST = "terminal accuracy", "lost against IID"
PRINTED = published("fedacs", "fig2")[LOST]
SHARES = (0.25, 0.5, 0.75, 1.0)
EARLY, LATE = "first fifth of the rounds", "terminal"


def lost(world: str) -> Quantity:
    """Points below the run with even clients, same seed."""
    return derived("lost", ((IID, TERMINAL), (world, TERMINAL)), np.subtract, better=-1)


def dealt_once(scale: str, world: str = IID, share: float = 1.0) -> Mapping[str, Any]:
    """Random choice among this share of 200 clients, each with a 200th of the images; `world` says how they are skewed.

    Where skewed clients would need more of a class than there is, other classes take its place.
    """
    samples = of_scale(scale, smoke=30, laptop=100, desk=220, paper=220)
    sizes = f"clients={round(share * CLIENTS[scale])}, samples={samples}, reuse=1.0"
    if world == IID:
        text = f"{WORLDS[UNIFORM]}({sizes}, allocation='strict', law='fixed', alpha=0.0, held_out=0.0)"
    else:
        text = f"{WORLDS[world]}({sizes}, allocation='redistribute', held_out=0.0)"
    return {**run(scale, UNIFORM, unused=0.6, batch=50), "world": text}


def skew_cells(scale: str) -> Sequence[Cell]:
    """The even world and three skewed ones, all asked at random."""
    found = [Cell(IID, TERMINAL, dealt_once(scale), quantity("terminal"))]
    for world in ENVIRONMENTS:
        found.append(Cell(world, TERMINAL, dealt_once(scale, world), quantity("terminal")))
        found.append(Cell(world, LOST, {}, lost(world), PRINTED[world]))
    return found


def skew_claims(scale: str) -> Sequence[Claim]:
    """Every skew costs accuracy; inverse Pareto most."""
    del scale
    found = [
        beats(f"{world} costs accuracy", (IID, TERMINAL), (world, TERMINAL), PRINTED[world]) for world in ENVIRONMENTS
    ]
    for world in (UNIFORM, DIRICHLET):
        gap = round(PRINTED[PARETO] - PRINTED[world], 2)
        found.append(beats(f"{PARETO} costs more than {world}", (world, TERMINAL), (PARETO, TERMINAL), gap))
    return found


def _early(record: RunRecord, _: Lookup) -> Value:
    curve = record.history.accuracy
    known = [float(a) for a in curve[: max(len(curve) // 5, 1)] if a == a]
    return max(known) if known else None


def few_cells(scale: str) -> Sequence[Cell]:
    """A quarter, a half, three quarters and all of the clients: accuracy early in the run and at its end."""
    early = Quantity("best of the first fifth", _early, 1, 100.0, alone=True)
    found = []
    for share in SHARES:
        keys, row = dealt_once(scale, share=share), f"{share:.0%} of the clients"
        found += [Cell(row, EARLY, keys, early), Cell(row, LATE, keys, quantity("terminal"))]
    return found


def few_claims(scale: str) -> Sequence[Claim]:
    """Fewer samples, lower end; but not a slower start."""
    del scale
    rows = [f"{share:.0%} of the clients" for share in SHARES]
    found = [beats(f"{more} end above {less}", (more, LATE), (less, LATE)) for less, more in pairwise(rows)]
    words = f"{rows[0]} start no slower than {rows[-1]} (by a point)"
    return [*found, beats(words, (rows[0], EARLY), (rows[-1], EARLY), margin=-1.0)]


_LARGE = (
    "220 samples per client instead of 250 (a tenth of the images is validation data at the server); no augmentation",
    "where skewed clients would need more of a class than there is, other classes take its place (not told)",
)
SAID = {
    "smoke": DEPARTURES["smoke"],
    "laptop": (
        "100 samples per client instead of 250, of 20,000 images, none dealt twice; no augmentation",
        _LARGE[1],
        "80 rounds (the paper does not say how many); terminal accuracy is the mean of the last 16",
        "3 local epochs of batches of 32 instead of 5 of 50; lr 0.1, decay and momentum as in the paper and its code",
        "test set of 3,000",
    ),
    "desk": (
        *_LARGE,
        "150 rounds (the paper does not say how many), over which the learning rate falls from 0.1 to 0.003; terminal "
        "accuracy is the mean of the last 30",
    ),
    "paper": (*_LARGE, "1,000 rounds, as in the paper's section VII; section III does not say"),
}
STUDIES = (
    Study(
        "fedacs:fig2",
        "FedACS, Fig. 2: what skew costs random choice (terminal accuracy, %)",
        skew_cells,
        skew_claims,
        {**SEEDS, "laptop": 8},
        SAID,
    ),
    Study(
        "fedacs:fig5",
        "FedACS, Fig. 5: even clients, but only a share of them is there (%)",
        few_cells,
        few_claims,
        {**SEEDS, "laptop": 8},
        SAID,
    ),
)
