"""FedCM, Table 4: bandit sampling on top of combinatorial averaging, against FedAvg, FedProx and FedPdp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedcohort.papers.fedcm import fedcm_table3
from fedcohort.papers.fedcm.fedcm_setting import (
    AVG,
    BANDITS,
    CLASS,
    CLIENT,
    DEPARTURES,
    PDP,
    PROX,
    SCORES,
    SEEDS,
    TS,
    UCB,
    WORLDS,
    row,
    run,
)
from fedcohort.papers.study import Cell, Claim, Quantity, Study, Value, beats, quantity

Numbers = Mapping[tuple[str, str], tuple[Value, Value, Value]]  # without, Dirac delta, classification loss

PUBLISHED: Numbers = {
    **fedcm_table3.PUBLISHED,
    (CLIENT, AVG): (63.97, None, None),
    (CLIENT, UCB): (None, 75.05, 72.05),
    (CLIENT, TS): (None, 75.06, 72.95),
    (CLASS, AVG): (40.24, None, None),
    (CLASS, UCB): (None, 63.96, 61.76),
    (CLASS, TS): (None, 61.29, 64.13),
}


def grid(scale: str, what: Mapping[str, Quantity], published: Numbers) -> list[Cell]:
    """Every combination that the paper's Tables 4 and 5 have; `what` is measured in each world."""
    found = []
    for world, name in WORLDS.items():
        for i, score in enumerate((None, *SCORES)):
            plain = (AVG, PROX, PDP) if score is None else (PROX, PDP, UCB, TS)
            for algorithm in plain:
                keys = run(scale, name, algorithm, score)
                found.append(Cell(row(world, score), algorithm, keys, what[world], published[world, algorithm][i]))
    return found


def cells(scale: str) -> Sequence[Cell]:
    """Two worlds x (no filter, accuracy, loss) x five algorithms, less those that do not exist."""
    return grid(scale, dict.fromkeys(WORLDS, quantity("terminal")), PUBLISHED)


def rivals(published: Numbers, verb: str) -> list[Claim]:
    """Both bandits beat FedAvg and FedProx everywhere, and FedPdp in class heterogeneity (the text on Figure 3)."""
    found = []
    for world in WORLDS:
        for bandit in BANDITS:
            for i, score in enumerate(SCORES, 1):
                for rival in (AVG, PROX, *((PDP,) if world == CLASS else ())):
                    ours, theirs = published[world, bandit][i], published[world, rival][0]
                    gain = None if ours is None or theirs is None else round(ours - theirs, 2)
                    words = f"{world}: {bandit} with {SCORES[score]} {verb} {rival}"
                    found.append(beats(words, (row(world, score), bandit), (row(world, None), rival), gain))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """What the text says about Figure 3, whose numbers these are."""
    del scale
    return rivals(PUBLISHED, "beats")


STUDIES = (
    Study(
        "fedcm:table4",
        "FedCM, Table 4: bandit sampling and combinatorial averaging (accuracy, %)",
        cells,
        claims,
        SEEDS,
        DEPARTURES,
        notes=(
            "Of 20 orderings 18 come out as published, 8 of them beyond the noise of three seeds. Under class "
            "heterogeneity every FedCM beats FedAvg by 4 to 5 points; the published 21 to 24 belong to 100 rounds of a "
            "network ten times larger, after which FedAvg has drifted much further.",
            "The two that fail are FedCM-TS with the classification loss under client heterogeneity, where sizes "
            "differ by an order of magnitude: see Table 3 for what CA does there to weights by size.",
        ),
    ),
)
