"""What stands before a paper's tables: its claims, our reading, and what was found, with numbers from the results.

The words are written here; every number of ours is read from the results when the page is made, so that it cannot
differ from the tables below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcohort.papers.study import PERFECT_ROW
from fedcohort.papers.verdicts import FAILS, HOLDS, NOISE, UNDECIDED

Result = Mapping[str, Any]


@dataclass(frozen=True)
class RowDifference:
    """Two rows of a table whose difference sums up what was found; `column` None: the mean over common columns."""

    study: str
    left: str
    right: str
    column: str | None = None


@dataclass(frozen=True)
class PaperSummary:
    """The half page before a paper's tables."""

    title: str
    claims: str  # what the paper says, with its own numbers
    reading: str  # how we read it where it leaves something open
    found: str  # what holds here, in words that need no number of ours
    comparisons: Sequence[RowDifference]


_FLASH = "flash:table1-{}"
SUMMARIES: dict[str, PaperSummary] = {
    "flash": PaperSummary(
        "FLASH",
        "A linear contextual bandit over losses, duration and the last reward finds the clients that help most, "
        "whatever they differ in. With 30 % skewed clients, 15 % label noise or both, FLASH has the best average over "
        "seven aggregation methods, 7 to 10 points above random choice; other bandits are no better and slower.",
        "The reward is the fall of the server's validation loss under each uploaded model (Algorithm 1, line 20, as a "
        "vector; `flash(preset='model')`). The other reading, the fall of a client's own loss, pays skewed clients "
        "most and is kept as a row of its own. As printed, without scaling, the choice is uniform at random. FLASH is "
        "also a loss: rows tell choice and loss apart. `flash` without a preset is still the older reading, because "
        "recordings and the arena's archive rest on it; where the server has validation data we recommend "
        "`preset='model'`.",
        "Read this way FLASH does find the even clients (its regret is far below random choice's), and its choice "
        "gains where all train on the same loss. A perfect choice gains a few points here, so gaps as large as the "
        "published ones cannot come from selection alone. With few seeds nothing is decided.",
        (
            RowDifference(_FLASH.format("noniid"), "FLASH", "Random", "FedAvg"),
            RowDifference(_FLASH.format("noniid"), "FLASH, choice only", "Random", "FedAvg"),
            RowDifference(_FLASH.format("both"), "FLASH", "Random", "FedAvg"),
            RowDifference(_FLASH.format("both"), "FLASH, choice only", "Random", "FedAvg"),
            RowDifference(_FLASH.format("both"), "FLASH", "FLASH, reward by own loss", "FedAvg"),
        ),
    ),
    "flash-rl": PaperSummary(
        "FLASH-RL",
        "A double deep Q network that sees principal components of the clients' weights, and is rewarded for accuracy "
        "and against latency, is more accurate than FedAvg (by 1.3 to 3.4 points on CIFAR-10) and FAVOR, and needs up "
        "to a quarter less time.",
        "The authors' exploration and learning rate, divergence (eq. 5) with a bounded denominator, rewards from the "
        "server's validation data instead of the test set. Devices, links and clock are theirs.",
        "The clock is the paper's: random choice takes the published seconds. The gain in time shows, the gain in "
        "accuracy does not, at the scales that were run.",
        (
            RowDifference("flash-rl:table1-cifar", "FLASH-RL", "FedAvg"),
            RowDifference("flash-rl:table1-mnist", "FLASH-RL", "FedAvg"),
        ),
    ),
    "hetero-select": PaperSummary(
        "HeteRo-Select",
        "Six parts in one additive score and a softmax over it choose half of twelve very different clients so well "
        "that they beat all twelve (stable 70.97 against 69.19 %) and a random half (66.0 %), and are "
        "steadier than Oort.",
        "Only a summary was at hand. The temperature of the main runs is not stated: tau0 = 1, with which the choice "
        "is close to a random half.",
        "With that temperature it is a random half in all but name; all clients beat any half. Whether the score finds "
        "updates that point elsewhere, what each weight does, and how it bears drop-out are studies of their own.",
        (
            RowDifference("hetero-select:table", "HeteRo-Select, additive", "FedProx, random half", "stable (%)"),
            RowDifference("hetero-select:table", "HeteRo-Select, additive", "FedProx, all clients", "stable (%)"),
        ),
    ),
    "fedcm": PaperSummary(
        "FedCM",
        "Averaging only the subset of models that ensembles best on validation data (CA), and bandits that ask such "
        "clients more often, beat FedAvg by 21 to 24 points where classes are skewed and by 8 to 11 where sizes are.",
        "Weights p_k / sum p_k with and without CA, so that CA is the only difference (the paper's sum to one on "
        "average only).",
        "The order is the paper's in class heterogeneity, by less; in client heterogeneity CA costs weighted averages "
        "accuracy.",
        (
            RowDifference("fedcm:table4", "class heterogeneity, CA, Dirac delta", "class heterogeneity, without CA"),
            RowDifference("fedcm:table4", "client heterogeneity, CA, Dirac delta", "client heterogeneity, without CA"),
        ),
    ),
    "fedacs": PaperSummary(
        "FedACS",
        "The last layer's change in one extra step tells how skewed a client is; duelling bandits then ask the less "
        "skewed. That wins back 54 to 78 % of what skew costs, in half the rounds, for 0.7 % more traffic.",
        "Rivals as in the authors' code; early stop as in the paper. `insight='update'` takes the whole network's "
        "ordinary update instead: no extra step, no traffic.",
        "The analytics do what they say: groups of clients are told apart by their reward, and the bandit asks the "
        "even ones. FedACS and Oort cannot be told apart by accuracy.",
        (
            RowDifference("fedacs:table2", "FedACS", "baseline", "Uniform"),
            RowDifference("fedacs:table2", "FedACS", "baseline", "Inverse Pareto"),
            RowDifference("fedacs:table2", "FedACS", "Oort", "Uniform"),
        ),
    ),
}
_BASES = {"flash": "Random", "flash-rl": "FedAvg", "hetero-select": "FedProx, random half", "fedacs": "baseline"}


def half_page(paper: str, results: Sequence[Result]) -> str:
    """The text before the tables of a paper, from the results that there are."""
    told = SUMMARIES[paper]
    lines = [f"# {told.title}", "", f"**The paper claims.** {told.claims}", "", f"**Our reading.** {told.reading}", ""]
    lines += [f"**What holds here.** {told.found}", ""]
    lines += [*_verdicts(results), "", *_differences(told.comparisons, results)]
    gains = [*_gains(paper, results)]
    lines += ["", "**What a perfect choice would gain** (a selector that knows every client's true labels):"]
    lines += gains or ["no study with this row has been run yet; `fedcohort reproduce` runs it with the others."]
    return "\n".join(lines) + "\n"


def _verdicts(results: Sequence[Result]) -> list[str]:
    verdicts = [claim["verdict"] for result in results for claim in result["claims"]]
    counts = {name: verdicts.count(name) for name in (HOLDS, FAILS, NOISE, UNDECIDED)}
    scales = sorted({result["scale"] for result in results})
    half = sum(result.get("done", 0) < result.get("wanted", 0) for result in results)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    return [
        f"Of {len(verdicts)} claims in {len(results)} results (scale {', '.join(scales)}; {half} half done): {told}."
    ]


def _differences(comparisons: Sequence[RowDifference], results: Sequence[Result]) -> Iterator[str]:
    for comparison in comparisons:
        for result in results:
            if result["study"] != comparison.study:
                continue
            found = difference(result, comparison.left, comparison.right, comparison.column)
            if found is not None:
                mean, seeds = found
                where = f", {comparison.column}" if comparison.column else ", mean over columns"
                rows = f"{comparison.left} - {comparison.right}"
                yield f"* {rows}: {mean:+.2f} ({_source(result)}{where}, {_seeds(seeds)})"


def _gains(paper: str, results: Sequence[Result]) -> Iterator[str]:
    base = _BASES.get(paper)
    for result in results:
        for column in dict.fromkeys(
            c["column"] for c in result["cells"] if c["row"] == PERFECT_ROW and c["better"] > 0
        ):
            found = difference(result, PERFECT_ROW, base, column) if base else None
            if found is not None:
                yield f"* {found[0]:+.2f} against {base} ({_source(result)}, {column}, {_seeds(found[1])})"


def _source(result: Result) -> str:
    return f"`{result['study']}`, {result['scale']}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def difference(result: Result, left: str, right: str | None, column: str | None) -> tuple[float, int] | None:
    """Left minus right, mean over the seeds (and columns) that both have, and how many seeds these are."""
    cells = {(c["row"], c["column"]): c["values"] for c in result["cells"]}
    columns = [column] if column else [c for row, c in cells if row == left and (right, c) in cells]
    by_seed: dict[str, list[float]] = {}
    for where in columns:
        mine, theirs = cells.get((left, where), {}), cells.get((str(right), where), {})
        for seed in mine.keys() & theirs.keys():
            if mine[seed] is not None and theirs[seed] is not None:
                by_seed.setdefault(seed, []).append(mine[seed] - theirs[seed])
    if not by_seed:
        return None
    return float(np.mean([np.mean(values) for values in by_seed.values()])), len(by_seed)
