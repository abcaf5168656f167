"""FedCM, Table 3: what combinatorial averaging adds to FedProx and FedPdp, in both kinds of heterogeneity."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.experiment.papers.fedcm import CLASS, CLIENT, DEPARTURES, SCORES, SEEDS, WORLDS, run
from fedcohort.experiment.papers.study import Cell, Claim, Study, beats, quantity

PROX, PDP = "FedProx", "FedPdp"
METHODS = {PROX: "fedprox(mu=0.1)", PDP: "fedpdp"}
PUBLISHED = {  # without, Dirac delta, classification loss
    (CLIENT, PROX): (62.75, 62.83, 64.54),
    (CLIENT, PDP): (74.16, 73.70, 74.73),
    (CLASS, PROX): (44.34, 50.73, 48.33),
    (CLASS, PDP): (57.75, 60.52, 62.78),
}


def row(world: str, score: str | None) -> str:
    """The heading of a row."""
    return f"{world}, {'without CA' if score is None else f'CA, {SCORES[score]}'}"


def cells(scale: str) -> Sequence[Cell]:
    """Two worlds x (no filter, accuracy, loss) x two methods."""
    found = []
    for world, name in WORLDS.items():
        for i, score in enumerate((None, *SCORES)):
            for method, text in METHODS.items():
                whole = text if score is None else f"fedca(inner={text!r}, score={score!r})"
                published = PUBLISHED[world, method][i]
                found.append(Cell(row(world, score), method, run(scale, name, whole), quantity("terminal"), published))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """CA improves both methods in both worlds, with either score."""
    del scale
    found = []
    for world in WORLDS:
        for method in METHODS:
            for i, score in enumerate(SCORES, 1):
                without, with_ca, *_ = PUBLISHED[world, method][0], PUBLISHED[world, method][i]
                words = f"{world}: CA with {SCORES[score]} improves {method}"
                found.append(beats(words, (row(world, score), method), (row(world, None), method), with_ca - without))
    return found


STUDIES = (
    Study(
        "fedcm:table3",
        "FedCM, Table 3: combinatorial averaging on FedProx and FedPdp (accuracy, %)",
        cells,
        claims,
        SEEDS,
        DEPARTURES,
    ),
)
