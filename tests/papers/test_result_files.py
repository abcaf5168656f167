"""Results as files: incomplete ones, what is kept of earlier ones, and damaged ones."""

import json
from dataclasses import replace
from functools import partial

import pytest

from fedcohort.errors import ConfigError
from fedcohort.experiment.store import Store
from fedcohort.papers import reproduce, result_files
from fedcohort.papers.results_page import markdown
from fedcohort.papers.study import Cell, Quantity, Study, beats

from .tiny_study import RUN, SEEDS, tiny

AVG, PROX = ("uniform", "fedavg"), ("uniform", "fedprox")


def test_results_are_written_and_read(done, tmp_path):
    _, _, found = done
    path = result_files.save(found, tmp_path)
    assert path.name == "tiny-table-smoke.json"
    assert result_files.load(path) == json.loads(json.dumps(found))


def test_what_an_earlier_result_knows_is_kept_where_the_digests_are_the_same(done, tmp_path):
    """The store is empty: numbers come from the file. A run with other rounds is another run."""
    found = json.loads(json.dumps(done[2]))
    path = result_files.save(found, tmp_path)
    empty = Store(tmp_path / "runs")
    again = reproduce.result(reproduce.plan(tiny(), "smoke", None, path), empty)
    assert [c["values"] for c in again["cells"]] == [c["values"] for c in found["cells"]]
    assert (again["done"], again["wanted"]) == (8, 8)
    more = reproduce.result(reproduce.plan(tiny(), "smoke", 3, path), empty)
    assert (more["done"], more["wanted"]) == (8, 12)
    assert "incomplete: 8 of 12 runs" in markdown(more)
    for cell in found["cells"]:
        cell["digests"] = dict.fromkeys(cell["digests"], "of another run")
    lost = reproduce.result(reproduce.plan(tiny(), "smoke", None, result_files.save(found, tmp_path)), empty)
    assert lost["done"] == 0
    assert all(c["mean"] is None for c in lost["cells"])


def test_numbers_of_one_name_and_run_are_not_taken_for_each_other_when_a_heading_changes(tmp_path):
    """First and last accuracy of a run are both "accuracy": under new headings neither is known without the run."""

    def study(*headings):
        def cells(scale):
            del scale
            at = dict(zip(headings, (0, -1), strict=True))
            return [
                Cell("uniform", name, RUN, Quantity("accuracy", partial(_accuracy, place), alone=True))
                for name, place in at.items()
            ]

        return Study("t:t", "T", cells, lambda _: [], SEEDS)

    store = Store(tmp_path / "runs")
    found = reproduce.perform(reproduce.plan(study("first", "last"), "smoke", 1), store, keep=tmp_path, workers=1)
    values = [cell["values"]["0"] for cell in found["cells"]]
    assert values[0] != values[1]
    path, empty = result_files.file_of("t:t", "smoke", tmp_path), Store(tmp_path / "empty")
    same = reproduce.result(reproduce.plan(study("first", "last"), "smoke", 1, path), empty)
    assert [cell["values"]["0"] for cell in same["cells"]] == values
    other = reproduce.result(reproduce.plan(study("begin", "end"), "smoke", 1, path), empty)
    assert [cell["values"] for cell in other["cells"]] == [{}, {}]


def _accuracy(place, record, _):
    return float(record.history.accuracy[place])


def test_a_result_is_written_after_every_run(tmp_path):
    study = tiny()
    seen = []

    def heard(event):
        if event.kind == "done":
            seen.append(result_files.load(result_files.file_of(study.id, "smoke", tmp_path))["done"])

    reproduce.perform(reproduce.plan(study, "smoke", 1), Store(tmp_path / "runs"), heard, keep=tmp_path, workers=1)
    assert seen == [1, 2, 3, 4]


def test_files_beside_a_result_that_are_none_are_passed_over(done, tmp_path):
    (tmp_path / "notes-smoke.json").write_text("{}")
    path = result_files.save(done[2], tmp_path)
    assert reproduce.result(reproduce.plan(tiny(), "smoke", None, path), Store(tmp_path / "runs"))["done"] == 8


def test_fewer_seeds_than_were_written_down_lose_none(done, tmp_path):
    _, _, found = done
    path = result_files.save(found, tmp_path)
    again = reproduce.result(reproduce.plan(tiny(), "smoke", 1, path), Store(tmp_path / "runs"))
    assert [c["values"] for c in again["cells"]] == [c["values"] for c in found["cells"]]
    assert (again["seeds"], again["done"], again["wanted"]) == ([0, 1], 8, 8)


def test_a_study_is_incomplete_until_all_its_seeds_are_there_and_all_that_were_asked_for(done, tmp_path):
    """The study has two seeds. Whatever the last command asked for, the result says what the whole one wants."""
    _, store, _ = done
    one = reproduce.result(reproduce.plan(tiny(), "smoke", 1), store)
    assert (one["seeds"], one["done"], one["wanted"]) == ([0], 4, 8)  # the store has the other one, the result has not
    alone = reproduce.result(reproduce.plan(tiny(), "smoke", 1), Store(tmp_path / "empty"))
    assert (alone["done"], alone["wanted"], "goal" in alone) == (0, 8, False)
    more = reproduce.result(reproduce.plan(tiny(), "smoke", 3), store)
    assert (more["done"], more["wanted"], more["goal"]) == (8, 12, 3)
    assert "incomplete: 8 of 12 runs" in markdown(more)
    assert "`fedcohort reproduce tiny:table --scale smoke --seeds 3`" in markdown(more)
    path = result_files.save(more, tmp_path)
    again = reproduce.result(reproduce.plan(tiny(), "smoke", None, path), store)
    assert (again["done"], again["wanted"], again["goal"]) == (8, 12, 3)
    part = reproduce.result(reproduce.plan(tiny(), "smoke", 50, part=True), store)
    assert (part["wanted"], "goal" in part) == (8, False)


def test_at_the_larger_scales_more_seeds_of_every_cell_can_be_asked_for():
    """By itself the study has six seeds of its main claim and three of the other row."""
    study = replace(tiny(), seeds={"desk": 6}, claims=lambda _: [beats(w, AVG, PROX) for w in "abc"])
    wanted = {n: len(reproduce.plan(study, "desk", n).whole()) for n in (None, 3, 4, 6, 7)}
    assert wanted == {None: 2 * 6 + 2 * 3, 3: 18, 4: 2 * 6 + 2 * 4, 6: 4 * 6, 7: 4 * 7}


def test_what_another_result_knows_of_the_same_run_is_taken(done, tmp_path):
    _, _, found = done
    result_files.save(found, tmp_path)
    study = replace(tiny(), id="tiny:other")
    other = reproduce.plan(study, "smoke", None, result_files.file_of(study.id, "smoke", tmp_path))
    taken = reproduce.result(other, Store(tmp_path / "runs"))
    shared = [c for c in taken["cells"] if c["quantity"] in reproduce.SHARED]
    assert shared
    known = {(c["row"], c["column"]): c["values"] for c in found["cells"]}
    assert all(c["values"] == known[c["row"], c["column"]] for c in shared)


BROKEN = {
    "no JSON": lambda text: text[:-9],
    "a list": lambda text: "[]",
    "no digests": lambda text: text.replace('"digests"', '"digest"', 1),
    "values that are none": lambda text: text.replace('"values": {', '"values": "7", "was": {', 1),
    "a value that is none": lambda text: text.replace('"values": {', '"values": {"7": "x", ', 1),
    "seeds that are none": lambda text: text.replace('"seeds": [', '"seeds": ["a", ', 1),
    "a value that is not a number": lambda text: text.replace('"values": {', '"values": {"7": NaN, ', 1),
    "a value that is true": lambda text: text.replace('"values": {', '"values": {"7": true, ', 1),
    "less than no digits": lambda text: text.replace('"digits": ', '"digits": -3, "were": ', 1),
    "a seed below zero": lambda text: text.replace('"seeds": [', '"seeds": [-1, ', 1),
    "another study": lambda text: text.replace('"t:other"', '"t:another"', 1),
    "another scale": lambda text: text.replace('"scale": "smoke"', '"scale": "desk"', 1),
    "no title": lambda text: text.replace('"title"', '"name"', 1),
    "done that is none": lambda text: text.replace('"done": ', '"done": null, "was": ', 1),
    "a claim without a verdict": lambda text: text.replace('"verdict"', '"said"', 1),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_damaged_result_is_one_sentence_and_stops_no_other_study(done, tmp_path, how):
    _, store, found = done
    path = result_files.save(found, tmp_path)
    other = result_files.save({**found, "study": "t:other"}, tmp_path)
    other.write_text(BROKEN[how](other.read_text()))
    with pytest.raises(ConfigError, match=r"not the result of its reproduction: .*; delete it or put it aside"):
        result_files.load(other)
    assert reproduce.result(reproduce.plan(tiny(), "smoke", None, path), store)["done"] == 8
