"""Whether a paper's claims hold here, by the rule of `fedcohort compare`: paired by seed, and seeds only.

The differences of a claim are averaged over its places (methods, levels, columns) within each seed: places of one seed
share their world and random draws, so they are not independent. A claim is decided when it has at least six seeds, the
bootstrap interval over seeds leaves the margin out, and the exact Wilcoxon test says so.

The first claim of a study is its main one, what the table is printed for, and is tested on its own. The others are
tested with Holm's correction for all of them, so that they need more seeds: each row says how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.experiment.metrics import paired
from fedcohort.papers.study import Claim, Place, Value

HOLDS, FAILS, NOISE, UNDECIDED, UNKNOWN = "holds", "does not hold", "inside the noise", "undecided", "not measured"
Differences = NDArray[np.float64]  # by seed
Values = Mapping[Place, Mapping[int, Value]]  # by place and seed; None: not reached


def judge(
    claims: Sequence[Claim], values: Values, better: Mapping[Place, int], published: Mapping[Place, Value]
) -> list[dict[str, Any]]:
    """What was found for every claim of a study, with a verdict in words."""
    found = [_measured(claim, values, better[claim.left[0]], published) for claim in claims]
    for family in (found[:1], found[1:]):
        for row, adjusted in zip(family, paired.holm([_known(row["p"]) for row in family]), strict=True):
            row["adjusted"] = None if row["p"] is None else float(adjusted)
            row["needs"] = paired.seeds_for(len(family))
    for claim, row in zip(claims, found, strict=True):
        row["main"] = row is found[0]
        row["verdict"] = _verdict(claim, row, better[claim.left[0]])
    return found


def values_of(result: Mapping[str, Any]) -> Values:
    """The values of a result that was written down."""
    return {(c["row"], c["column"]): {int(s): v for s, v in c["values"].items()} for c in result["cells"]}


def _measured(claim: Claim, values: Values, better: int, published: Mapping[Place, Value]) -> dict[str, Any]:
    by_seed = _pairs(claim, values, published)
    whole = {s: pairs for s, pairs in by_seed.items() if all(a is not None and b is not None for a, b in pairs)}
    d = np.array([np.mean([a - b for a, b in pairs]) for pairs in whole.values()], np.float64)  # type: ignore[operator]
    signs = [_sign(claim, pairs, better) for pairs in by_seed.values()]
    wins, losses = signs.count(1), signs.count(-1)
    low, high = paired.spread(d) if d.size > 1 else (None, None)
    complete = len(whole) == len(by_seed)
    return {
        "words": claim.words,
        "ours": claim.ours,
        "published": claim.published,
        "margin": claim.margin,
        "within": claim.within,
        "difference": float(d.mean()) if d.size else None,
        "low": low,
        "high": high,
        "seeds": len(by_seed),
        "complete": complete,
        "wins": wins,
        "losses": losses,
        "p": _p(_gains(claim, d, better), wins, losses, complete=complete) if by_seed else None,
        "adjusted": None,
    }


def _exact(numbers: Any) -> Differences:
    """In printed units, without the noise of subtraction: what cancels is zero, and speaks for nobody."""
    return np.asarray(np.round(np.asarray(numbers, np.float64), 9) + 0.0)


def _known(p: float | None) -> float:
    """What was not measured yet is one of the claims all the same."""
    return 1.0 if p is None else p


def _pairs(claim: Claim, values: Values, published: Mapping[Place, Value]) -> dict[int, list[tuple[Value, Value]]]:
    """By seed, left and right at every place; without a right side, left and what was published there."""
    sides = [values[place] for place in (*claim.left, *claim.right)]
    seeds = sorted(set.intersection(*(set(side) for side in sides)))
    if not claim.right:
        return {s: [(values[place][s], published[place]) for place in claim.left] for s in seeds}
    both = list(zip(claim.left, claim.right, strict=True))
    return {s: [(values[left][s], values[right][s]) for left, right in both] for s in seeds}


def _sign(claim: Claim, pairs: Sequence[tuple[Value, Value]], better: int) -> int:
    """1 where a seed speaks for the claim, -1 where it speaks against it; what is not reached loses to what is."""
    known = [a - b for a, b in pairs if a is not None and b is not None]
    if len(known) == len(pairs):
        d = float(_exact(np.mean(known)))
        return int(np.sign(better * d - claim.margin if claim.within is None else claim.within - abs(d)))
    reached = sum((a is not None) - (b is not None) for a, b in pairs)
    return int(np.sign(reached if claim.within is None else -abs(reached)))


def _p(gains: Differences, wins: int, losses: int, *, complete: bool) -> float:
    return paired.wilcoxon(gains) if complete else paired.sign_test(wins, losses)


def _gains(claim: Claim, d: Differences, better: int) -> Differences:
    """By how much each seed speaks for the claim; of "within", the distance from the nearer end."""
    if claim.within is None or not d.size:
        return _exact(better * d - claim.margin)
    return _exact(claim.within - d if d.mean() >= 0 else claim.within + d)


def _verdict(claim: Claim, row: Mapping[str, Any], better: int) -> str:
    seeds, low, high = row["seeds"], row["low"], row["high"]
    if not seeds:
        return UNKNOWN
    if seeds < paired.VERDICT_SEEDS:
        return UNDECIDED
    if low is None or not row["complete"]:  # where a target was not reached, a mean would be of the other seeds only
        ends: tuple[float, ...] = (row["wins"] - row["losses"],)
    elif claim.within is None:
        ends = tuple(better * end - claim.margin for end in (low, high))
    else:
        ends = (claim.within - max(abs(low), abs(high)), claim.within - max(low, -high, 0.0))
    if row["adjusted"] >= paired.ALPHA or min(ends) <= 0 <= max(ends):
        return NOISE if seeds >= row["needs"] else UNDECIDED
    return HOLDS if min(ends) > 0 else FAILS
