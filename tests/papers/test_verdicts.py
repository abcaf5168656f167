"""How claims are judged: by seed, by the rule of `compare`, and undecided where seeds are few."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedcohort import papers
from fedcohort.papers import reproduce
from fedcohort.papers.paper_evidence import counted
from fedcohort.papers.study import Claim, our_own
from fedcohort.papers.verdicts import FAILS, HOLDS, NOISE, UNDECIDED, UNKNOWN, judge

FOLDER = Path(__file__).parents[2] / "results"
RESULTS = [path for scale in ("laptop", "desk", "paper") for path in sorted(FOLDER.glob(f"*-*-{scale}.json"))]
SIX = (5.0, 6.0, 7.0, 8.0, 9.0, 10.5)


def by_seed(*values):
    return dict(enumerate(values))


def one(left, right, *, better=1, others=0, **claim):
    """The verdict on "a beats b"; `others` are further claims of the study."""
    a, b = ("a", "x"), ("b", "x")
    claims = [Claim("a beats b", (a,), (b,), **claim)] * (1 + others)
    return judge(claims, {a: left, b: right}, {a: better}, {})[-1]


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        (by_seed(*SIX), by_seed(1, 2, 3, 4, 5, 6), HOLDS),  # 2 / 2^6 = 0.031
        (by_seed(1, 2, 3, 4, 5, 6), by_seed(*SIX), FAILS),
        (by_seed(5, 1, 7, 2, 6, 3), by_seed(4, 3, 5, 4, 4, 4), NOISE),
        (by_seed(5, 6, 7, 8, 9), by_seed(1, 2, 3, 4, 5), UNDECIDED),
        (by_seed(5), by_seed(1), UNDECIDED),
        ({}, by_seed(1), UNKNOWN),
    ],
)
def test_verdicts(left, right, verdict):
    assert one(left, right)["verdict"] == verdict


def test_the_main_claim_is_tested_alone_and_the_others_together():
    """Six seeds give 0.031 at best: not enough for two claims beside the main one, nine are (2 / 2^9 = 0.004)."""
    six, nine = (by_seed(*SIX), by_seed(1, 2, 3, 4, 5, 6)), (by_seed(*np.arange(9) * 1.1 + 3), by_seed(*range(9)))
    assert one(*six, others=1)["verdict"] == HOLDS  # the only one beside the main claim
    other = one(*six, others=2)
    assert (other["verdict"], other["main"], other["needs"]) == (UNDECIDED, False, 7)
    assert one(*nine, others=2)["verdict"] == HOLDS
    assert one(*nine, others=2)["adjusted"] == pytest.approx(2 * 2 / 2**9)
    main = one(*six)
    assert (main["verdict"], main["main"], main["needs"]) == (HOLDS, True, 6)


def test_too_few_seeds_for_so_many_claims_are_undecided_however_they_fall():
    """Six seeds cannot decide one of three others: that they do not agree is not known either."""
    mixed = one(by_seed(5, 1, 7, 2, 6, 3), by_seed(4, 3, 5, 4, 4, 4), others=3)
    assert (mixed["verdict"], mixed["needs"]) == (UNDECIDED, 7)
    eight = by_seed(5, 1, 7, 2, 6, 3, 5, 1), by_seed(4, 3, 5, 4, 4, 4, 4, 3)
    assert one(*eight, others=3)["verdict"] == NOISE


@pytest.mark.parametrize("first", [1.0, -1.0])
def test_claims_that_were_not_measured_count_in_the_correction(first):
    """One of seven measured with eight seeds: 2 / 2^8 * 7 = 0.055 and what is weaker are both not enough."""
    places = [(name, "x") for name in "abcdefgh"]
    claims = [Claim(name, (place,), (("none", "x"),)) for name, place in zip("abcdefgh", places, strict=True)]
    values = {place: {} for place in places} | {("none", "x"): by_seed(*[0.0] * 8)}
    values["b", "x"] = by_seed(first, 2, 3, 4, 5, 6, 7, 8)
    found = judge(claims, values, dict.fromkeys(places, 1), {})[1]
    assert (found["verdict"], found["needs"]) == (UNDECIDED, 9)
    assert found["adjusted"] == pytest.approx(7 * found["p"])


def test_alike_is_tested_too():
    """Six differences within 1 by the interval; the test sees one seed far out and does not agree."""
    found = one(by_seed(1, 1, 1, 1, 1, 1.1), by_seed(*[1.0] * 6), within=1.0)
    assert (found["verdict"], found["p"]) == (HOLDS, pytest.approx(2 / 64))
    assert (found["wins"], found["losses"]) == (6, 0)  # seeds that speak for it, not those above
    found = one(by_seed(1, 1, 1, 1, 1, 4.5), by_seed(*[1.0] * 6), within=1.0)
    assert (found["verdict"], found["wins"], found["losses"]) == (NOISE, 5, 1)
    assert one(by_seed(None, 1), by_seed(1, None), within=1.0)["losses"] == 2


def test_our_own_questions_are_counted_apart():
    paper, ours = Claim("a beats b", (("a", "x"),)), our_own([Claim("b beats a", (("b", "x"),))])[0]
    assert (paper.ours, ours.ours, our_own([ours])) == (False, True, [ours])
    claims = [{"ours": c.ours, "main": True, "verdict": HOLDS} for c in (paper, ours)]
    assert counted([{"claims": claims}], ours=False, main=True)[HOLDS] == 1
    assert counted([{"claims": claims}], ours=True)[HOLDS] == 1


def test_columns_of_a_seed_are_one_piece_of_evidence():
    """Seven columns that all say the same in three seeds are three pairs, not twenty-one."""
    places = [("a", str(c)) for c in range(7)], [("b", str(c)) for c in range(7)]
    values = {p: by_seed(5, 6, 7) for p in places[0]} | {p: by_seed(1, 2, 3.5) for p in places[1]}
    claim = Claim("a beats b", tuple(places[0]), tuple(places[1]))
    found = judge([claim], values, dict.fromkeys(places[0], 1), {})[0]
    assert (found["seeds"], found["wins"], found["verdict"]) == (3, 3, UNDECIDED)
    assert (found["low"], found["high"]) == (3.5, 4.0)  # the range: three seeds have no interval


def test_lower_is_better_where_it_is():
    assert one(by_seed(*SIX), by_seed(1, 2, 3, 4, 5, 6), better=-1)["verdict"] == FAILS
    assert one(by_seed(1, 2, 3, 4, 5, 6), by_seed(*SIX), better=-1)["verdict"] == HOLDS


def test_a_margin_must_be_passed_and_equality_kept():
    left, right = by_seed(5, 6.1, 7.2, 8.3, 9.4, 10.5), by_seed(4, 5, 6, 7, 8, 9)  # 1 to 1.5 apart
    assert one(left, right, margin=2.0)["verdict"] == FAILS
    assert one(left, right, within=2.0)["verdict"] == HOLDS
    assert one(left, right, within=1.25)["verdict"] == NOISE
    assert one(left, right, within=0.5)["verdict"] == FAILS


def test_never_counts_as_a_defeat_and_enters_no_mean():
    found = one(by_seed(10, 20), by_seed(None, 30), better=-1)
    assert (found["wins"], found["losses"], found["difference"]) == (2, 0, -10.0)
    six = one(by_seed(*SIX), by_seed(None, None, None, 9, 10, 12), better=-1)
    assert six["verdict"] == HOLDS  # 6 of 6: the sign test gives 0.031
    assert six["p"] == pytest.approx(2 / 64)
    twelve = one(by_seed(*[20.0] * 12), by_seed(19, 18.5, *[None] * 10), better=-1)
    assert (twelve["wins"], twelve["losses"], twelve["verdict"]) == (10, 2, HOLDS)  # not the mean of two of twelve


def test_against_what_was_published():
    a = ("a", "x")
    found = judge([Claim("as published", (a,), within=1.0)], {a: by_seed(*[382.0] * 6)}, {a: -1}, {a: 382.5})[0]
    assert (found["difference"], found["verdict"]) == (-0.5, HOLDS)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_committed_verdicts_are_those_of_the_rule(path):
    found = json.loads(path.read_text())
    assert json.loads(json.dumps(reproduce.judged(found, papers.studies()[found["study"]]))) == found["claims"]


def test_papers_are_called_as_their_selectors_with_any_case():
    assert [s.id for s in papers.chosen("FLASH-RL:latency")] == ["flash-rl:latency"]
    assert {s.paper for s in papers.chosen("Hetero-Select")} == {"hetero-select"}
    assert {s.paper for s in papers.chosen("flash")} == {"flash"}


def test_differences_that_cancel_speak_for_nobody():
    left = {("a", "x"): dict.fromkeys(range(6), 0.3), ("a", "y"): dict.fromkeys(range(6), 0.1)}
    right = {("b", "x"): dict.fromkeys(range(6), 0.2), ("b", "y"): dict.fromkeys(range(6), 0.2)}
    claim = Claim("a beats b", tuple(left), tuple(right))
    (found,) = judge([claim], left | right, dict.fromkeys(left, 1), {})
    assert (found["wins"], found["losses"], found["p"]) == (0, 0, 1.0)
