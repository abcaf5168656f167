"""FLASH, Table I: eight selectors x seven methods in three worlds (30 % skewed, 15 % wrong labels, both)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from fedcohort.papers.flash import flash_setting as flash
from fedcohort.papers.flash.flash_setting import (
    CHOICE,
    DEPARTURES,
    FEDACS,
    FEDCOR,
    FLASH,
    LOSS,
    OWN_LOSS,
    RANDOM,
    RIVALS,
    TUNED,
    TUNED_LOSS,
    UNTIMED,
)
from fedcohort.papers.published import published
from fedcohort.papers.study import (
    PERFECT_COHORTS,
    PERFECT_ROW,
    SEEDS,
    Cell,
    Claim,
    Quantity,
    Study,
    of_scale,
    our_own,
    row_beats,
    until,
)

COLUMNS = ("FedAvg", "FedProx", "FedBiO", "FedDF", "FedNova", "SCAFFOLD", "RHFL")
ROWS = (*RIVALS, FLASH)
BESIDE = (OWN_LOSS, CHOICE, LOSS, FEDACS, PERFECT_ROW)  # rows that the paper has not
AT_DESK = (RANDOM, "Oort", FEDCOR, FLASH, UNTIMED, *BESIDE, PERFECT_COHORTS)
AT_LAPTOP = (*ROWS, *BESIDE, TUNED, TUNED_LOSS)
WORLDS = {"noniid": (30, 0), "noise": (0, 15), "both": (30, 15)}  # % of clients skewed, mean % of wrong labels
TITLES = {"noniid": "30 % skewed clients", "noise": "15 % label noise", "both": "30 % skewed clients, 15 % label noise"}
PUBLISHED = published("flash", "table1")  # by block, row and column


def methods(scale: str) -> Mapping[str, str]:
    """The columns; distillation and cleaning of few steps, so that training is what costs."""
    few = "steps=20, batch_size=64, check_every=10"
    distil = of_scale(scale, smoke="steps=4, batch_size=16", laptop=few, desk=few, paper="")
    rhfl = of_scale(scale, smoke="batch_size=16", laptop="batch_size=64", desk="batch_size=64", paper="")
    texts = (
        "fedavg",
        "fedprox",
        "fedbio",
        f"feddf({distil})",
        "fednova(adam='steps')",
        "scaffold(option='I')",
        f"rhfl({rhfl})",
    )
    return dict(zip(COLUMNS, texts, strict=True))


def rows(block: str, scale: str) -> Sequence[str]:
    """At scale desk those that say most: the choice, the loss, the best of the rivals and what could be gained."""
    found = {"desk": AT_DESK, "laptop": AT_LAPTOP}.get(scale, (*ROWS, *BESIDE))
    even = WORLDS[block][0] == 0  # a perfect choice makes even cohorts anyway
    return [row for row in found if not (even and row == PERFECT_COHORTS)]


def columns(scale: str) -> Sequence[str]:
    """At scale desk FedAvg only."""
    return COLUMNS[:1] if scale == "desk" else COLUMNS


def cells(block: str, scale: str) -> Sequence[Cell]:
    """One world: selectors times methods. The rows beside the paper's have FedAvg only, but for FLASH's choice."""
    found = []
    where = flash.world(*WORLDS[block], scale=scale)
    for row in rows(block, scale):
        selector, loss = flash.who(scale, row, skewed=WORLDS[block][0])
        for column in columns(scale) if row in (*ROWS, OWN_LOSS, CHOICE) else COLUMNS[:1]:
            keys = flash.run(scale, selector, where, loss=loss, method=methods(scale)[column])
            printed = PUBLISHED[block].get(row, {}).get(column)
            found.append(Cell(row, column, keys, flash.accuracy(scale), printed))
            if scale == "desk":
                found.append(Cell(row, time_column(block), keys, days_to(block)))
    return found


def time_column(block: str) -> str:
    """The heading of the time until the accuracy that the paper prints for random choice."""
    return f"virtual days to {PUBLISHED[block][RANDOM]['FedAvg']:g} %"


def days_to(block: str) -> Quantity:
    """That time, by the clock of the simulated devices."""
    target = PUBLISHED[block][RANDOM]["FedAvg"] / 100
    return replace(until(lambda *_: target, "time_to_target"), factor=1 / 86400, digits=1, alone=True)


def claims(block: str, scale: str) -> Sequence[Claim]:
    """FLASH has the best average; and our own questions."""
    found = []
    where = columns(scale)
    over = "with FedAvg" if len(where) == 1 else "on average over the methods"
    for row in RIVALS:
        if row in rows(block, scale):
            gap = average(block, FLASH, where) - average(block, row, where)
            mine = flash.among_bandits(scale) if "bandit" in row else FLASH
            like = "" if mine == FLASH else ", rewarded as it is,"
            found.append(row_beats(f"FLASH{like} beats {row} {over}", mine, row, where, round(gap, 2)))
    return [*found, *our_own(questions(block, scale, where))]


def questions(block: str, scale: str, where: Sequence[str]) -> Sequence[Claim]:
    """What choice, loss, reading and duration do by themselves."""
    one, same = COLUMNS[:1], "FLASH's choice beats {} where all train on the same loss"
    found = [
        row_beats(same.format(RANDOM), CHOICE, RANDOM, where),
        row_beats(same.format(FEDCOR), CHOICE, FEDCOR, where),
        row_beats("with FLASH's loss its choice beats Random (FedAvg)", FLASH, LOSS, one),
        row_beats("FLASH beats its reading by own loss (FedAvg)", FLASH, OWN_LOSS, one),
        row_beats("a perfect choice beats Random (FedAvg)", PERFECT_ROW, RANDOM, one),
        row_beats("Random gains by FLASH's loss (FedAvg)", LOSS, RANDOM, one),
    ]
    if PERFECT_COHORTS in rows(block, scale):
        found.append(row_beats("perfectly even cohorts beat Random (FedAvg)", PERFECT_COHORTS, RANDOM, one))
    if TUNED in rows(block, scale):
        words = "with its loss tuned FLASH beats Random on {} (FedAvg)"
        found.append(row_beats(words.format("cross-entropy"), TUNED, RANDOM, one))
        found.append(row_beats(words.format("the same loss"), TUNED, TUNED_LOSS, one))
    if UNTIMED in rows(block, scale):
        words, time = "without the duration in its reward FLASH beats {} (FedAvg)", [time_column(block)]
        found += [row_beats(words.format(row), UNTIMED, row, one) for row in (RANDOM, LOSS)]
        found += [
            row_beats("FLASH needs less time than Random on cross-entropy", FLASH, RANDOM, time),
            row_beats("FLASH needs less time than Random on FLASH's loss", FLASH, LOSS, time),
        ]
    return found


def average(block: str, row: str, over: Sequence[str] = COLUMNS) -> float:
    """The mean of a published row."""
    return float(sum(PUBLISHED[block][row][column] for column in over) / len(over))


def departures(scale: str) -> Sequence[str]:
    """How the table departs from the paper; at scale desk it has FedAvg only."""
    return (*DEPARTURES[scale], *(OF_METHODS if scale in ("laptop", "paper") else ()))


def _study(block: str) -> Study:
    return Study(
        f"flash:table1-{block}",
        f"FLASH, Table I: selectors and methods with {TITLES[block]} (CIFAR-10, accuracy, %)",
        partial(cells, block),
        partial(claims, block),
        SEEDS,
        {scale: departures(scale) for scale in DEPARTURES},
        average="average",
    )


OF_METHODS = (
    "all clients take the same number of steps, so FedNova is FedAvg up to rounding: what the two columns differ by is "
    "the noise between two runs of one configuration",
    "FedNova counts steps (Adam is not a linear solver) and SCAFFOLD takes full gradients as variates, before Adam",
    "FedBiO, and a global model of RHFL, are our constructions; FedDF and RHFL distil on unlabelled images (FedDF: 20 "
    "steps); FedBiO and FedDF also use the server's labelled images; FedProx has mu = 0.1",
    "RHFL's loss is trained with the rate of cross-entropy; no rate was looked for",
    "FLASH trains on its robust loss except under RHFL, which has one of its own; the row without is not in the paper",
)
STUDIES = tuple(_study(block) for block in WORLDS)
