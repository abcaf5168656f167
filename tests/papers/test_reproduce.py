"""Reproduction: what is measured, how claims are judged, and that a result can be had again from the store."""

import json
import math
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from fedcohort import papers
from fedcohort.errors import FedcohortError, UnknownName
from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.experiment.store import Store
from fedcohort.papers import catalogue, reproduce, result_files
from fedcohort.papers import results_page as page
from fedcohort.papers.study import (
    PERFECT_ROW,
    SCALES,
    Cell,
    Claim,
    Quantity,
    Study,
    beats,
    common_target,
    derived,
    of_scale,
    our_own,
    quantity,
    share_of_terminal,
    until,
)
from fedcohort.papers.verdicts import UNKNOWN
from fedcohort.rounds.history import History
from fedcohort.storage.run_folder import RunFolder

from .tiny_study import RUN, SEEDS, tiny


def test_values_are_those_of_the_runs_in_printed_units(done):
    work, store, found = done
    for cell in found["cells"]:
        for seed, value in cell["values"].items():
            config = work.configs[(cell["row"], cell["column"]), int(seed)]
            rows = (store.folder(config) / "metrics.jsonl").read_text().splitlines()
            assert value == pytest.approx(100 * json.loads(rows[-1])["accuracy"])
            assert cell["digests"][seed] == config.digest()
        assert cell["mean"] == pytest.approx(np.mean(list(cell["values"].values())))


def test_the_claim_pairs_by_seed_and_averages_columns(done):
    _, _, found = done
    at = {(c["row"], c["column"]): c["values"] for c in found["cells"]}
    by_seed = [
        np.mean([at["uniform", m][s] - at["round-robin", m][s] for m in ("fedavg", "fedprox")]) for s in ("0", "1")
    ]
    claim = found["claims"][0]
    assert claim["difference"] == pytest.approx(np.mean(by_seed))
    assert (claim["seeds"], claim["wins"]) == (2, sum(d > 0 for d in by_seed))
    assert (claim["low"], claim["high"]) == pytest.approx((min(by_seed), max(by_seed)))


def test_a_second_time_everything_is_read(done):
    work, store, found = done
    again = reproduce.perform(work, store, workers=1)
    assert again["cost"]["run_now"] == 0
    assert again["cells"] == found["cells"]


def test_a_number_measured_against_a_later_run_is_there_when_that_run_is(tmp_path):
    """The first run needs the second one's; the result is written after each of them."""
    both = common_target((("uniform", "x"), ("round-robin", "x")))

    def cells(scale):
        del scale
        return [Cell(name, "x", {**RUN, "selector": name}, until(both)) for name in ("uniform", "round-robin")]

    study = Study("pair:x", "Pair", cells, lambda _: [beats("a", ("uniform", "x"), ("round-robin", "x"))], SEEDS, {})
    work, seen = reproduce.plan(study, "smoke", 1), []

    def heard(event):
        if event.kind == "done":
            seen.append(
                [c["mean"] for c in result_files.load(result_files.file_of(study.id, "smoke", tmp_path))["cells"]]
            )

    found = reproduce.perform(work, Store(tmp_path / "runs"), heard, keep=tmp_path, workers=1)
    assert seen[0] == [None, None]
    assert None not in [c["mean"] for c in found["cells"]]
    store = Store(tmp_path / "runs")  # a run that still goes on has rounds, and no number is taken from them
    RunFolder(store.folder(work.configs[("round-robin", "x"), 0])).metrics.unlink()
    assert [c["mean"] for c in reproduce.result(work, store)["cells"]] == [None, None]


def test_a_run_that_fails_leaves_its_cell_empty_and_the_rest_stands(tmp_path):
    def cells(scale):
        del scale
        return [
            Cell("a", "x", RUN, quantity("final")),
            Cell("b", "x", {**RUN, "selector": "fedcs"}, quantity("final")),
        ]

    study = Study("t:t", "T", cells, lambda _: [beats("a beats b", ("a", "x"), ("b", "x"))], SEEDS)
    work, store = reproduce.plan(study, "smoke", 1), Store(tmp_path)
    store.obtain(work.configs[("a", "x"), 0])  # of b there is nothing, as after a failure
    work.errors["fedcs-x"] = "it fell over"
    found = reproduce.result(work, store)
    first, second = found["cells"]
    assert first["mean"] is not None
    assert second["mean"] is None
    assert found["claims"][0]["verdict"] == UNKNOWN
    assert "it fell over" in page.markdown(found)


def test_a_number_is_unknown_while_the_run_it_is_measured_against_is_missing(tmp_path):
    """Not the same as a target that was not reached."""
    other = {**RUN, "selector": "round-robin"}
    half = until(lambda _, others: others(("b", "x")).history.accuracy[-1] / 2)

    def cells(scale):
        del scale
        return [Cell("a", "x", RUN, half), Cell("b", "x", other, half)]

    study = Study("t:t", "T", cells, lambda _: [beats("a is faster", ("a", "x"), ("b", "x"))], SEEDS)
    work, store = reproduce.plan(study, "smoke", 1), Store(tmp_path)
    store.obtain(work.configs[("a", "x"), 0])
    found = reproduce.result(work, store)
    assert [cell["values"] for cell in found["cells"]] == [{}, {}]
    assert found["claims"][0]["verdict"] == UNKNOWN
    store.obtain(work.configs[("b", "x"), 0])
    assert [list(cell["values"]) for cell in reproduce.result(work, store)["cells"]] == [["0"], ["0"]]


def test_what_a_number_is_measured_against_is_run_again_where_only_its_own_number_is_known(tmp_path):
    """The file knows b's accuracy, the store has a's run only: a's gain over b needs b's run."""
    other = {**RUN, "selector": "round-robin"}
    gain = Quantity("gain", lambda mine, others: mine.history.accuracy[-1] - others(("b", "x")).history.accuracy[-1])

    def cells(scale):
        del scale
        return [Cell("a", "x", RUN, gain), Cell("b", "x", other, quantity("final"))]

    study = Study("t:t", "T", cells, lambda _: [], SEEDS)
    whole = reproduce.perform(reproduce.plan(study, "smoke", 1), Store(tmp_path / "whole"), workers=1)
    del whole["cells"][0]["values"]["0"]
    file = result_files.save(whole, tmp_path)
    work, store = reproduce.plan(study, "smoke", 1, file), Store(tmp_path / "runs")
    store.obtain(work.configs[("a", "x"), 0])
    found = reproduce.result(work, store)
    assert (found["done"], found["wanted"]) == (1, 4)  # of the whole study, which has two seeds
    later = reproduce.perform(work, store, workers=1)
    assert (later["done"], later["cost"]["run_now"]) == (2, 1)
    assert list(later["cells"][0]["values"]) == ["0"]


def gain_study(other: dict) -> Study:
    """a's gain over b, and b's own accuracy."""
    gain = Quantity("gain", lambda mine, others: mine.history.accuracy[-1] - others(("b", "x")).history.accuracy[-1])

    def cells(scale):
        del scale
        return [
            Cell("a", "x", RUN, gain),
            Cell("a", "y", RUN, quantity("final")),
            Cell("b", "x", other, quantity("final")),
        ]

    claims = [beats("a's own", ("a", "y"), ("a", "y")), beats("other", ("b", "x"), ("a", "y"))]
    return Study("t:t", "T", cells, lambda _: claims, SEEDS)


def test_a_number_that_was_measured_against_a_run_that_has_changed_is_not_kept(tmp_path):
    before, after = (gain_study({**RUN, "selector": who}) for who in ("round-robin", "afl"))
    whole = reproduce.perform(reproduce.plan(before, "smoke", 1), Store(tmp_path / "runs"), workers=1)
    assert [cell.get("against") for cell in whole["cells"]] == [[("b", "x")], None, None]
    file, empty = result_files.save(whole, tmp_path), Store(tmp_path / "empty")
    same = reproduce.result(reproduce.plan(before, "smoke", 1, file), empty)
    assert [list(cell["values"]) for cell in same["cells"]] == [["0"], ["0"], ["0"]]
    assert same["cells"][0]["against"] == [("b", "x")]  # still known where nothing was measured
    changed = reproduce.result(reproduce.plan(after, "smoke", 1, file), empty)
    assert [list(cell["values"]) for cell in changed["cells"]] == [[], ["0"], []]


def test_for_the_main_claim_nothing_is_run_that_only_other_cells_are_measured_against(tmp_path):
    work, store = reproduce.plan(gain_study({**RUN, "selector": "afl"}), "smoke", 1), Store(tmp_path)
    made = reproduce.perform(work, store, workers=1, main=True)
    assert made["cost"]["run_now"] == 1
    assert [list(cell["values"]) for cell in made["cells"]] == [[], ["0"], []]


def test_a_known_number_needs_no_run_that_it_was_measured_against(tmp_path):
    study = gain_study({**RUN, "selector": "afl"})
    whole = reproduce.perform(reproduce.plan(study, "smoke", 1), Store(tmp_path / "whole"), workers=1)
    work, store = reproduce.plan(study, "smoke", 1, result_files.save(whole, tmp_path)), Store(tmp_path / "runs")
    store.obtain(work.configs[("a", "x"), 0])
    assert reproduce.missing(work, store) == []


def test_a_target_is_taken_from_results_where_its_run_is_gone(tmp_path):
    """The rounds to half of b's terminal accuracy, which the result beside it knows: b is not run again."""
    rounds = until(share_of_terminal(("b", "x"), 0.5))

    def study(name, what):
        runs = {"a": RUN, "b": {**RUN, "selector": "round-robin"}}
        return Study(
            name, "T", lambda _: [Cell(row, "x", keys, what) for row, keys in runs.items()], lambda _: [], SEEDS
        )

    store, empty = Store(tmp_path / "whole"), Store(tmp_path / "runs")
    accuracy = reproduce.plan(study("t:accuracy", quantity("terminal")), "smoke", 1)
    result_files.save(reproduce.perform(accuracy, store, workers=1), tmp_path)
    work = reproduce.plan(study("t:rounds", rounds), "smoke", 1, result_files.file_of("t:rounds", "smoke", tmp_path))
    empty.obtain(work.configs[("a", "x"), 0])
    found, by_run = reproduce.result(work, empty)["cells"], reproduce.result(work, store)["cells"]
    assert found[0]["values"] == by_run[0]["values"] != {}
    assert (found[0]["against"], found[1]["values"]) == ([("b", "x")], {})


def test_runs_of_the_main_claim_come_first_and_can_be_asked_for_alone():
    def cells(scale):
        del scale
        named = {who: who for who in ("afl", "oort", "uniform")} | {PERFECT_ROW: "ucb1"}
        return [Cell(row, "x", {**RUN, "selector": who}, quantity("final")) for row, who in named.items()]

    claims = [beats("main", ("uniform", "x"), ("oort", "x")), beats("other", ("afl", "x"), ("oort", "x"))]
    work = reproduce.plan(Study("t:t", "T", cells, lambda _: claims, SEEDS), "smoke", 7)
    runs = work.runs()
    assert len(runs) == 28
    assert {run.selector for run in runs[:14]} == {"oort", "uniform"}
    assert [(run.selector, run.seed) for run in runs[14:21]] == [("ucb1", seed) for seed in range(7)]
    assert {run.selector for run in runs[21:]} == {"afl"}
    study = replace(work.study, seeds=dict.fromkeys(SCALES, 8))
    for seeds, run_for in ((None, 6), (7, 7), (3, 3)):  # six decide; who names a number gets it
        main = reproduce.plan(study, "smoke", seeds).runs(main=True)
        assert {run.selector for run in main} == {"oort", "uniform", "ucb1"}
        assert sorted(run.seed for run in main) == sorted([*range(run_for)] * 3)


def difference_study(derived_first: bool = False) -> Study:
    """a, b, and a number that is derived from both, which the main claim is about or is not."""
    what = derived("difference", [("a", "x"), ("b", "x")], np.subtract)

    def cells(scale):
        del scale
        named = {"a": "uniform", "b": "oort", "c": "afl"}
        found = [Cell(row, "x", {**RUN, "selector": who}, quantity("final")) for row, who in named.items()]
        return [Cell("a", "minus b", {}, what), *found]

    claims = [beats("other", ("c", "x"), ("c", "x")), Claim("derived", (("a", "minus b"),))]
    return Study("t:t", "T", cells, lambda _: claims[:: -1 if derived_first else 1], SEEDS)


def test_a_derived_number_comes_from_those_of_other_cells_and_counts_as_no_run(tmp_path):
    work = reproduce.plan(difference_study(), "smoke")
    made = reproduce.perform(work, Store(tmp_path / "runs"), keep=tmp_path, workers=1)
    difference, a, b, _ = (cell["values"] for cell in made["cells"])
    assert difference == {s: a[s] - b[s] for s in ("0", "1")}
    assert (made["done"], made["wanted"], made["cost"]["run_now"]) == (6, 6, 6)
    made["cells"][0]["values"] = {"0": 99.0}  # of an earlier version: what is derived is derived again, without runs
    path = result_files.save(made, tmp_path)
    again = reproduce.plan(difference_study(), "smoke", earlier=path)
    assert reproduce.missing(again, Store(tmp_path / "empty")) == []
    found = reproduce.result(again, Store(tmp_path / "empty"))
    assert found["cells"][0]["values"] == difference
    assert result_files.load(result_files.save(found, tmp_path))["cells"][0]["against"] == [["a", "x"], ["b", "x"]]


def test_for_a_main_claim_on_a_derived_number_its_sources_are_run():
    for first, selectors in ((True, {"uniform", "oort"}), (False, {"afl"})):
        runs = reproduce.plan(difference_study(first), "smoke").runs(main=True)
        assert {run.selector for run in runs} == selectors


def test_at_the_larger_scales_the_main_claim_has_six_seeds_and_the_others_three(tmp_path):
    def cells(scale):
        del scale
        gain = Quantity("gain", lambda _, others: others(("afl", "x")).history.accuracy[-1])
        named = [Cell(who, "x", {**RUN, "selector": who}, quantity("final")) for who in ("afl", "oort", "uniform")]
        return [*named, Cell("uniform", "gain", {**RUN, "selector": "uniform"}, gain)]

    others = [beats(who, (who, "x"), ("afl", "x")) for who in ("uniform", "oort")]
    claims = [beats("main", ("uniform", "x"), ("oort", "x")), *others]
    study, brief = (Study("t:t", "T", cells, lambda _, n=n: claims[:n], dict.fromkeys(SCALES, 6)) for n in (3, 2))
    work = reproduce.plan(study, "desk")
    seeds = {who: [run.seed for run in work.runs() if run.selector == who] for who in ("afl", "oort", "uniform")}
    assert seeds == {"afl": [0, 1, 2], "oort": [*range(6)], "uniform": [*range(6)]}
    assert len(reproduce.plan(study, "desk", 6).runs()) == 18  # who names a number gets it
    assert [len(reproduce.plan(study, scale).runs()) for scale in ("laptop", "paper", "smoke")] == [15, 15, 18]
    assert len(reproduce.plan(brief, "desk").runs()) == 18  # six decide a single other claim
    asked = Study("t:t", "T", cells, lambda _: [claims[0], *our_own(claims[1:2])], dict.fromkeys(SCALES, 6))
    assert len(reproduce.plan(asked, "desk").runs()) == 15  # but not a question of our own
    alone = Study("t:t", "T", cells, lambda _: claims[:1], dict.fromkeys(SCALES, 6))
    assert len(reproduce.plan(alone, "desk").runs()) == 15  # what no claim is about has three
    made = reproduce.perform(work, Store(tmp_path / "runs"), keep=tmp_path)
    assert (made["done"], made["wanted"]) == (15, 15)
    assert list({c["row"]: c["values"] for c in made["cells"]}["uniform"]) == ["0", "1", "2"]  # gain, which needs afl
    later = reproduce.plan(study, "desk", earlier=result_files.file_of("t:t", "desk", tmp_path))
    assert reproduce.result(later, Store(tmp_path / "empty"))["done"] == 15  # nothing is run again for a missing gain


def test_until_takes_its_target_from_another_run():
    def record(*accuracy):
        rows = [{"round": i, "clock": float(i), "accuracy": a} for i, a in enumerate(accuracy)]
        return RunRecord(reproduce.from_mapping(RUN), History(8, rows))

    mine, base = record(0.1, 0.5, 0.9), record(0.2, 0.4, 0.5)
    rounds = until(lambda _, others: others(("base", "x")).history.accuracy[-1])
    assert rounds.compute(mine, lambda place: {("base", "x"): base}[place]) == 2
    assert until(lambda *_: 0.95).compute(mine, lambda _: base) is None
    assert until(lambda *_: None).compute(mine, lambda _: base) is None


def test_the_table_shows_ours_and_theirs(done):
    text = page.markdown(done[2])
    cell = done[2]["cells"][0]
    assert f"**{cell['mean']:.1f}** [{cell['low']:.1f}, {cell['high']:.1f}] / 50" in text
    assert "uniform wins" in text
    assert "all of it is small" in text
    mean = np.mean([c["mean"] for c in done[2]["cells"][:2]])
    assert f"**{mean:.1f}** / 50.0 |" in text


def test_never_and_partly_never_are_said():
    cell = {"digits": 0, "published": 3, "missing": "not reached", "low": None, "high": None}
    assert page.cell_text({**cell, "mean": None, "values": {"0": None}}) == "not reached / 3"
    assert page.cell_text({**cell, "mean": 4.0, "values": {"0": 4.0, "1": None}}) == "**4** (1 of 2) / 3"


def test_every_study_of_the_catalogue_has_an_id_of_its_own():
    every = [s for name in catalogue._FILES for s in import_module(f"fedcohort.papers.{name}").STUDIES]
    assert len(every) == len(papers.studies())
    assert all(set(study.seeds) == set(SCALES) for study in every)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("study", papers.studies().values(), ids=lambda s: s.id)
def test_every_scale_plans_and_claims_name_cells_that_exist(study, scale):
    work = reproduce.plan(study, scale, 1)
    assert work.runs()
    places = [c.place for c in work.cells]
    assert len(places) == len(set(places))
    for claim in study.claims(scale):
        assert {*claim.left, *claim.right} <= set(places), claim.words
        assert len(claim.left) > 0
        assert len(claim.right) in (0, len(claim.left))  # none: held against the published numbers
    assert all(c.published is None or math.isfinite(c.published) for c in work.cells)
    with_runs = {c.place for c in work.cells if c.run}
    assert all(with_runs.issuperset(c.quantity.sources) and bool(c.run) != bool(c.quantity.sources) for c in work.cells)


def test_names_are_found_and_mistakes_answered():
    ids = [s.id for s in papers.chosen("fedcm")]
    assert "fedcm:table3" in ids
    assert [s.id for s in papers.chosen("fedcm:table3")] == ["fedcm:table3"]
    with pytest.raises(UnknownName, match="fedcm"):
        papers.chosen("fedmc")
    with pytest.raises(UnknownName, match="laptop"):
        reproduce.plan(tiny(), "labtop")
    with pytest.raises(UnknownName, match="laptop"):
        of_scale("labtop", smoke=1, laptop=2, desk=3, paper=4)
    with pytest.raises(FedcohortError, match="at least one"):
        reproduce.plan(tiny(), "smoke", 0)
