"""FLASH-RL, Table I: accuracy and total latency of FedAvg, FAVOR and FLASH-RL in six divisions of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fedcohort.papers.flash_rl.flash_rl_setting import (
    CIFAR,
    DEPARTURES,
    DIR5,
    DIR8,
    FAVOR,
    FEDAVG,
    FLASHRL,
    LABELS,
    MNIST,
    ROWS,
    SHARDS,
    latency,
    run,
)
from fedcohort.papers.published import published
from fedcohort.papers.study import OURS, PERFECT_ROW, SEEDS, Cell, Claim, Study, beats, our_own, quantity, row_beats

ROUNDS = {
    (CIFAR, DIR8): 300,
    (CIFAR, DIR5): 300,
    (CIFAR, SHARDS): 300,
    (MNIST, DIR8): 100,
    (MNIST, DIR5): 100,
    (MNIST, LABELS): 150,
}
PUBLISHED = published("flash_rl", "table1")  # by data, division and row: accuracy, seconds
SIMILAR = 0.5  # points: what "similar accuracy" may mean on MNIST


def divisions(data: str) -> tuple[str, ...]:
    """Those of one dataset."""
    return tuple(division for of, division in ROUNDS if of == data)


def accuracy_of(division: str) -> str:
    """The heading of a column."""
    return f"{division}, accuracy (%)"


def latency_of(division: str) -> str:
    """The heading of a column."""
    return f"{division}, latency (s)"


def cells(data: str, scale: str) -> Sequence[Cell]:
    """Four rows, two columns per division; both come from one run."""
    found = []
    for name in ROWS:
        for division in divisions(data):
            many, printed = ROUNDS[data, division], PUBLISHED[data][division].get(name, {})
            keys = run(scale, data, division, name, many)
            found.append(Cell(name, accuracy_of(division), keys, quantity("best", digits=2), printed.get("accuracy")))
            found.append(Cell(name, latency_of(division), keys, latency(scale, data, many), printed.get("seconds")))
    return found


def _difference(data: str, division: str, left: str, right: str, what: str) -> float:
    of = PUBLISHED[data][division]
    return float(of[left][what] - of[right][what])


def _latency_claims(data: str) -> list[Claim]:
    found = []
    for other in (FEDAVG, FAVOR):
        for division in divisions(data):
            words = f"{division}: FLASH-RL takes less time than {other}"
            place, gain = latency_of(division), _difference(data, division, FLASHRL, other, "seconds")
            found.append(beats(words, (FLASHRL, place), (other, place), gain))
        columns = [latency_of(d) for d in divisions(data)]
        found.append(
            row_beats(f"over the three divisions: FLASH-RL takes less time than {other}", FLASHRL, other, columns)
        )
    same = [((FEDAVG, latency_of(d)), 0.03 * PUBLISHED[data][d][FEDAVG]["seconds"]) for d in divisions(data)]
    near = "FedAvg's latency is the published one within 3 % ({})"
    return [*found, *our_own(Claim(near.format(place[1]), (place,), within=width) for place, width in same)]


def claims_cifar(scale: str) -> Sequence[Claim]:
    """More accurate than FedAvg everywhere and than FAVOR in two of three divisions, and faster."""
    del scale
    found = []
    for left, right, division in (
        (FLASHRL, FEDAVG, DIR8),
        (FLASHRL, FAVOR, DIR8),
        (FLASHRL, FEDAVG, DIR5),
        (FAVOR, FLASHRL, DIR5),
        (FLASHRL, FEDAVG, SHARDS),
        (FLASHRL, FAVOR, SHARDS),
    ):
        place, published = accuracy_of(division), _difference(CIFAR, division, left, right, "accuracy")
        found.append(
            beats(f"{division}: {left} is more accurate than {right}", (left, place), (right, place), published)
        )
    columns = [accuracy_of(d) for d in divisions(CIFAR)]
    words = "over the three divisions: {} is more accurate than FedAvg"
    most = row_beats(f"{OURS}{words.format(PERFECT_ROW)}", PERFECT_ROW, FEDAVG, columns)
    return [*found, row_beats(words.format(FLASHRL), FLASHRL, FEDAVG, columns), most, *_latency_claims(CIFAR)]


def claims_mnist(scale: str) -> Sequence[Claim]:
    """Faster, which is what the text says of MNIST, and as accurate as FAVOR."""
    del scale
    places = [accuracy_of(d) for d in divisions(MNIST)]
    alike = [
        Claim(
            f"{place.partition(',')[0]}: FLASH-RL and FAVOR are within {SIMILAR} points",
            ((FLASHRL, place),),
            ((FAVOR, place),),
            _difference(MNIST, division, FLASHRL, FAVOR, "accuracy"),
            within=SIMILAR,
        )
        for place, division in zip(places, divisions(MNIST), strict=True)
    ]
    return [*_latency_claims(MNIST), *alike]


def _study(block: str, data: str, claims: Callable[[str], Sequence[Claim]]) -> Study:
    title = f"FLASH-RL, Table I, {data}: accuracy and total latency"
    return Study(f"flash-rl:table1-{block}", title, partial(cells, data), claims, SEEDS, DEPARTURES)


STUDIES = (_study("cifar", CIFAR, claims_cifar), _study("mnist", MNIST, claims_mnist))
