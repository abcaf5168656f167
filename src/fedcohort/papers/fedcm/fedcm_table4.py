"""FedCM, Table 4: bandit sampling on top of combinatorial averaging, against FedAvg, FedProx and FedPdp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedcohort.papers.fedcm.fedcm_setting import (
    AVG,
    BANDITS,
    CLASS,
    CLIENT,
    DEPARTURES,
    EVEN,
    PDP,
    PROX,
    SCORES,
    TS,
    UCB,
    WORLDS,
    filtered,
    row,
    run,
)
from fedcohort.papers.published import published
from fedcohort.papers.study import (
    OURS,
    PERFECT_ROW,
    SEEDS,
    Cell,
    Claim,
    Quantity,
    Study,
    Value,
    and_also,
    beats,
    quantity,
)

Numbers = Mapping[str, Mapping[str, Mapping[str, Value]]]  # by world, algorithm and filter

PUBLISHED: Numbers = published("fedcm", "table4")


def grid(scale: str, what: Mapping[str, Quantity], numbers: Numbers) -> list[Cell]:
    """Every combination that the paper's Tables 4 and 5 have; `what` is measured in each world.

    At scale desk without FedProx with CA, which no claim of them is about.
    """
    plain, with_ca = (AVG, PROX, PDP, PERFECT_ROW), (*([PROX] * (scale != "desk")), PDP, UCB, TS)
    found = []
    for world, name in WORLDS.items():
        for score in (None, *SCORES):
            for algorithm in plain if score is None else with_ca:
                printed = numbers[world].get(algorithm, {}).get(filtered(score))
                keys = run(scale, name, algorithm, score)
                found.append(Cell(row(world, score), algorithm, keys, what[world], printed))
    return found


def cells(scale: str) -> Sequence[Cell]:
    """Two worlds x (no filter, accuracy, loss) x five algorithms, less those that do not exist; the other reading."""
    what = quantity("terminal")
    other = [
        Cell(row(EVEN, score), who, run(scale, WORLDS[CLIENT], who, score, equal=True), what)
        for who, score in ((AVG, None), (PDP, None), (PDP, "accuracy"), (UCB, "accuracy"))
    ]
    return [*grid(scale, dict.fromkeys(WORLDS, what), PUBLISHED), *other]


def rivals(numbers: Numbers, verb: str, headline: str) -> list[Claim]:
    """Both bandits beat FedAvg and FedProx everywhere, and FedPdp in class heterogeneity (the text on Figure 3).

    First what the abstract prints: FedCM-TS with one of the scores against FedAvg in class heterogeneity.
    """
    found = []
    for world in WORLDS:
        for bandit in BANDITS:
            for score, name in SCORES.items():
                for rival in (AVG, PROX, *((PDP,) if world == CLASS else ())):
                    ours, theirs = numbers[world][bandit][name], numbers[world][rival][filtered(None)]
                    gain = None if ours is None or theirs is None else round(ours - theirs, 2)
                    words = f"{world}: {bandit} with {name} {verb} {rival}"
                    found.append(beats(words, (row(world, score), bandit), (row(world, None), rival), gain))
    first = (row(CLASS, headline), TS), (row(CLASS, None), AVG)
    return sorted(found, key=lambda claim: (claim.left[0], claim.right[0]) != first)


def synergy() -> Claim:
    """Asking by a bandit adds to averaging by CA (section 6)."""
    left, right, gains = [], [], []
    for world, of in PUBLISHED.items():
        for score, name in SCORES.items():
            for bandit in BANDITS:
                left.append((row(world, score), bandit))
                right.append((row(world, score), PDP))
                gains.append((of[bandit][name] or 0.0) - (of[PDP][name] or 0.0))
    words = "over both worlds and scores: the bandits beat FedPdp with CA"
    return Claim(words, tuple(left), tuple(right), round(sum(gains) / len(gains), 2))


def claims(scale: str) -> Sequence[Claim]:
    """What the text says about Figure 3, whose numbers these are."""
    del scale
    rows = [row(world, None) for world in WORLDS]
    gain = f"{OURS}over both worlds FedPdp with a perfect choice beats FedPdp"
    most = Claim(gain, tuple((r, PERFECT_ROW) for r in rows), tuple((r, PDP) for r in rows))
    return [*rivals(PUBLISHED, "beats", "log_likelihood"), synergy(), most, *averaging()]


def averaging() -> list[Claim]:
    """How much of the bandits' lead over FedAvg is FedPdp's, which only takes whole steps; and the other reading."""
    found = []
    for world, of in PUBLISHED.items():
        at, printed = row(world, None), [of[who][filtered(None)] or 0.0 for who in (PDP, AVG)]
        words = f"{OURS}{world}: FedPdp, without CA and bandits, beats FedAvg"
        found.append(beats(words, (at, PDP), (at, AVG), round(printed[0] - printed[1], 2)))
    plain, filtering = row(EVEN, None), row(EVEN, "accuracy")
    return [
        *found,
        beats(f"{OURS}{EVEN}: FedCM-UCB with Dirac delta beats FedAvg", (filtering, UCB), (plain, AVG)),
        beats(f"{OURS}{EVEN}: CA with Dirac delta improves FedPdp", (filtering, PDP), (plain, PDP)),
    ]


def departures(*more: str) -> dict[str, Sequence[str]]:
    """How Tables 4 and 5 depart from the paper, by scale."""
    told = and_also(DEPARTURES, *more)
    return {**told, "desk": (*told["desk"], "without FedProx with CA, which no claim of this table is about")}


STUDIES = (
    Study(
        "fedcm:table4",
        "FedCM, Table 4: bandit sampling and combinatorial averaging (accuracy, %)",
        cells,
        claims,
        SEEDS,
        departures(),
    ),
)
