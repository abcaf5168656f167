"""FedCM, Table 2: FedPdp with and without combinatorial averaging, by how many clients are asked and how skewed."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedcm.fedcm_setting import CLASS, DEPARTURES, EXHAUSTIVE, PDP, SCORES, WORLDS, run
from fedcohort.papers.study import Cell, Claim, Study, beats, quantity, row_beats

NON_IID, IID = "non-IID (alpha 0.1)", "IID (alpha 5)"
MIXES = {NON_IID: WORLDS[CLASS], IID: "fedcm-class-0.1-v1(alpha=5.0, held_out=0.0)"}
SIZES = {"0.2": 4, "0.4": 8, "0.6": 12}  # of 20
PUBLISHED = {  # by ratio
    (NON_IID, None): (54.12, 57.75, 59.20),
    (NON_IID, "accuracy"): (52.51, 61.46, 71.11),
    (NON_IID, "log_likelihood"): (55.48, 65.28, 69.72),
    (IID, None): (82.26, 82.62, 83.08),
    (IID, "accuracy"): (82.26, 82.60, 83.03),
    (IID, "log_likelihood"): (82.43, 82.71, 82.91),
}
SAME = 1.0  # points within which the paper's IID rows agree, generously


def row(mix: str, score: str | None) -> str:
    """The heading of a row."""
    return f"{mix}, {PDP if score is None else f'FedCA, {SCORES[score]}'}"


def cells(scale: str) -> Sequence[Cell]:
    """Two mixes x (no filter, accuracy, loss) x three sampling ratios."""
    found = []
    for mix, world in MIXES.items():
        for score in (None, *SCORES):
            for i, (ratio, size) in enumerate(SIZES.items()):
                search = EXHAUSTIVE if scale == "laptop" and size > EXHAUSTIVE else None
                keys = run(scale, world, PDP, score, size, search)
                found.append(Cell(row(mix, score), ratio, keys, quantity("terminal"), PUBLISHED[mix, score][i]))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """CA helps in the non-IID world, does no harm in the IID one, and wants many clients."""
    del scale
    found: list[Claim] = []
    ratios = tuple(SIZES)
    for score, name in SCORES.items():
        gain = [a - b for a, b in zip(PUBLISHED[NON_IID, score], PUBLISHED[NON_IID, None], strict=True)]
        words = f"non-IID, all ratios: FedCA with {name} beats FedPdp"
        found.append(row_beats(words, row(NON_IID, score), row(NON_IID, None), ratios, round(sum(gain) / 3, 2)))
        more = PUBLISHED[NON_IID, score][2] - PUBLISHED[NON_IID, score][0]
        words = f"non-IID: FedCA with {name} is better at ratio 0.6 than at 0.2"
        left, right = (row(NON_IID, score), "0.6"), (row(NON_IID, score), "0.2")
        found.append(beats(words, left, right, round(more, 2)))
        even = [a - b for a, b in zip(PUBLISHED[IID, score], PUBLISHED[IID, None], strict=True)]
        places = tuple((row(IID, score), r) for r in ratios), tuple((row(IID, None), r) for r in ratios)
        words = f"IID, all ratios: FedCA with {name} and FedPdp differ by at most {SAME:g} (the paper's differ by 0.2)"
        found.append(Claim(words, *places, round(sum(even) / 3, 2), within=SAME))
    return found


STUDIES = (
    Study(
        "fedcm:table2",
        "FedCM, Table 2: combinatorial averaging by sampling ratio (accuracy, %)",
        cells,
        claims,
        {"smoke": 1, "laptop": 2, "paper": 2},
        {
            **DEPARTURES,
            "laptop": (
                *DEPARTURES["laptop"],
                f"for more than {EXHAUSTIVE} clients the best subset is searched by backward elimination",
            ),
        },
    ),
)
