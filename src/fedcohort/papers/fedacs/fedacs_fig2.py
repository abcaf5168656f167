"""FedACS, Fig. 2: what three kinds of skew cost plain federated averaging; Fig. 5: what few samples cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fedcohort.experiment.metrics.stored_metrics import RunRecord, metric
from fedcohort.papers.fedacs.fedacs_setting import (
    BASE,
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
from fedcohort.papers.study import SEEDS, Cell, Claim, Lookup, Quantity, Study, Value, beats, of_scale, quantity

ENVIRONMENTS = (UNIFORM, PARETO, DIRICHLET)
TERMINAL, LOST = "terminal accuracy", "lost against IID"
PRINTED = published("fedacs", "fig2")[LOST]
SHARES = (0.25, 0.5, 0.75, 1.0)
EARLY, LATE = "first fifth of the rounds", "terminal"


def lost() -> Quantity:
    """Points below the run with even clients, same seed."""
    terminal = metric("terminal").compute

    def compute(record: RunRecord, others: Lookup) -> Value:
        own, even = terminal(record), terminal(others((IID, TERMINAL)))
        return None if own is None or even is None else even - own

    return Quantity("lost", compute, -1, 100.0)


def skew_cells(scale: str) -> Sequence[Cell]:
    """The even world and three skewed ones, all asked at random."""
    found = [Cell(IID, TERMINAL, run(scale, UNIFORM, IID), quantity("terminal"))]
    for world in ENVIRONMENTS:
        keys = run(scale, world, BASE)
        found += [Cell(world, TERMINAL, keys, quantity("terminal")), Cell(world, LOST, keys, lost(), PRINTED[world])]
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


def with_share(scale: str, share: float) -> Mapping[str, Any]:
    """Even clients of a 200th of the images each, none dealt twice, but only this share of the clients is there."""
    samples = of_scale(scale, smoke=30, laptop=100, desk=220, paper=220)
    sizes = f"clients={round(share * CLIENTS[scale])}, samples={samples}, reuse=1.0, allocation='strict'"
    world = f"{WORLDS[UNIFORM]}({sizes}, law='fixed', alpha=0.0, held_out=0.0)"
    return {**run(scale, UNIFORM, IID, unused=0.6), "world": world}


def _early(record: RunRecord, _: Lookup) -> Value:
    curve = record.history.accuracy
    known = [float(a) for a in curve[: max(len(curve) // 5, 1)] if a == a]
    return max(known) if known else None


def few_cells(scale: str) -> Sequence[Cell]:
    """A quarter, a half, three quarters and all of the clients: accuracy early in the run and at its end."""
    early = Quantity("best of the first fifth", _early, 1, 100.0, alone=True)
    found = []
    for share in SHARES:
        keys, row = with_share(scale, share), f"{share:.0%} of the clients"
        found += [Cell(row, EARLY, keys, early), Cell(row, LATE, keys, quantity("terminal"))]
    return found


def few_claims(scale: str) -> Sequence[Claim]:
    """Fewer samples, lower end; but not a slower start."""
    del scale
    rows = [f"{share:.0%} of the clients" for share in SHARES]
    found = [beats(f"{more} end above {less}", (more, LATE), (less, LATE)) for less, more in pairwise(rows)]
    words = f"{rows[0]} start no slower than {rows[-1]} (by a point)"
    return [*found, beats(words, (rows[0], EARLY), (rows[-1], EARLY), margin=-1.0)]


_DEALT = (
    "in Fig. 5 no image is dealt twice, as in the paper: 200 clients of 100 samples at scale laptop, of 220 otherwise "
    "(the paper: 250; a tenth of the images is validation data at the server)"
)
STUDIES = (
    Study(
        "fedacs:fig2",
        "FedACS, Fig. 2: what skew costs random choice (terminal accuracy, %)",
        skew_cells,
        skew_claims,
        {**SEEDS, "laptop": 8},
        DEPARTURES,
    ),
    Study(
        "fedacs:fig5",
        "FedACS, Fig. 5: even clients, but only a share of them is there (%)",
        few_cells,
        few_claims,
        {**SEEDS, "laptop": 8},
        {scale: (*told, _DEALT) if scale != "smoke" else told for scale, told in DEPARTURES.items()},
    ),
)
