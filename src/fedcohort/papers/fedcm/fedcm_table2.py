"""FedCM, Table 2: FedPdp with and without combinatorial averaging, by how many clients are asked and how skewed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedcohort.papers.fedcm.fedcm_setting import (
    CLASS,
    DEPARTURES,
    EXHAUSTIVE,
    PDP,
    SCORES,
    WORLDS,
    filtered,
    run,
)
from fedcohort.papers.published import published
from fedcohort.papers.study import SEEDS, Cell, Claim, Study, beats, our_own, quantity, row_beats

NON_IID, IID = "non-IID (alpha 0.1)", "IID (alpha 5)"
MIXES = {NON_IID: WORLDS[CLASS], IID: "fedcm-class-0.1-v1(alpha=5.0, held_out=0.0)"}
SIZES = {"0.2": 4, "0.4": 8, "0.6": 12}  # of 20
PUBLISHED = published("fedcm", "table2")  # by mix, filter and ratio
SEARCHED = f"for more than {EXHAUSTIVE} clients the best subset is searched by backward elimination"
SAME = 1.0  # points within which the paper's IID rows agree, generously


def row(mix: str, score: str | None) -> str:
    """The heading of a row."""
    return f"{mix}, {PDP if score is None else f'FedCA, {SCORES[score]}'}"


def cells(scale: str) -> Sequence[Cell]:
    """Two mixes x (no filter, accuracy, loss) x three sampling ratios."""
    found = []
    for mix, world in MIXES.items():
        for score in (None, *SCORES):
            for ratio, size in SIZES.items():
                search = EXHAUSTIVE if scale in ("laptop", "desk") and size > EXHAUSTIVE else None
                keys = run(scale, world, PDP, score, size, search)
                printed = PUBLISHED[mix][filtered(score)][ratio]
                found.append(Cell(row(mix, score), ratio, keys, quantity("terminal"), printed))
    return found


def gain(mix: str, name: str) -> float:
    """What a filter adds to FedPdp, mean over the published ratios."""
    with_, without = PUBLISHED[mix][name], PUBLISHED[mix][filtered(None)]
    return round(float(sum(with_[ratio] - without[ratio] for ratio in SIZES)) / len(SIZES), 2)


def claims(scale: str) -> Sequence[Claim]:
    """CA helps in both worlds, and wants many clients; our own question is how little it matters in the IID one."""
    del scale
    found: list[Claim] = []
    ratios = tuple(SIZES)
    for score, name in SCORES.items():
        words = f"non-IID, all ratios: FedCA with {name} beats FedPdp"
        found.append(row_beats(words, row(NON_IID, score), row(NON_IID, None), ratios, gain(NON_IID, name)))
        printed = PUBLISHED[NON_IID][name]
        words = f"non-IID: FedCA with {name} is better at ratio 0.6 than at 0.2"
        left, right = (row(NON_IID, score), "0.6"), (row(NON_IID, score), "0.2")
        found.append(beats(words, left, right, round(printed["0.6"] - printed["0.2"], 2)))
        words = f"IID, all ratios: FedCA with {name} {{}}"
        better = row_beats(words.format("beats FedPdp"), row(IID, score), row(IID, None), ratios, gain(IID, name))
        alike = replace(better, words=words.format(f"and FedPdp differ by at most {SAME:g}"), within=SAME)
        found += [better, *our_own([alike])]
    return found


STUDIES = (
    Study(
        "fedcm:table2",
        "FedCM, Table 2: combinatorial averaging by sampling ratio (accuracy, %)",
        cells,
        claims,
        SEEDS,
        {
            **DEPARTURES,
            **{scale: (*DEPARTURES[scale], SEARCHED) for scale in ("laptop", "desk")},
        },
    ),
)
