"""What pages are told about a run, against hand-worked runs and naive re-implementations."""

from __future__ import annotations

import json
import math
import os
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.errors import BadParameter, StoreError, UnknownName
from fedcohort.registry.lookup import make_task_spec, make_world_spec
from fedcohort.report import views
from fedcohort.report.plots import plot_cohorts
from fedcohort.report.traits import order, traits_of
from fedcohort.storage.journal import Journal
from fedcohort.storage.run_folder import FolderLock
from fedcohort.worlds.built_world import build_world

CONFIG = {"world": "mixed-v1(clients=6)", "task": "digits-mlp", "seed": 0}


def test_clients_are_not_ordered_by_what_is_the_same_for_all(made):
    """Every label is right in an even world, and everybody was asked once."""
    folder = made("a", [0.1, 0.2, 0.3], cohorts=[[0, 1], [2, 3], [4, 5]], config={"world": "iid-v1(clients=6)"})
    found = views.cohort_map(folder)
    assert not {"noise", "asked"} & set(found["orders"])
    assert {"slot", "skew"} <= set(found["orders"])
    assert "the same for every client: how often it was asked, noise" in found["note"]
    assert found["traits"]["noise"] == [0.0] * 6
    axes = plot_cohorts(folder)
    assert axes.get_ylabel() == "clients, from even to skewed"
    assert axes.get_xlim() == (-0.5, 2.5)
    with pytest.raises(UnknownName, match="no order that tells the clients apart"):
        plot_cohorts(folder, order="noise")


def test_summary_of_a_finished_run(made):
    found = views.summary(made("a", [0.1, 0.4, 0.3]))
    assert (found["id"], found["state"], found["rounds"], found["total"]) == ("a", "finished", 3, 3)
    assert (found["accuracy"], found["clock"], found["round_of_accuracy"]) == (0.3, 30.0, 2)
    assert found["config"]["world"] == "mixed-v1(clients=6)"
    json.dumps(found, allow_nan=False)


def test_summary_looks_back_to_the_last_evaluation(made):
    found = views.summary(made("a", [0.1, None, 0.4, None], config={"evaluate_every": 2}))
    assert (found["rounds"], found["accuracy"], found["round_of_accuracy"]) == (4, 0.4, 2)


def test_state_follows_the_owner_of_the_lock(made):
    folder = made("a", [0.1], finished=False)
    assert views.summary(folder)["state"] == "unfinished"
    held = FolderLock(folder)
    assert views.summary(folder)["state"] == "running"
    held.release()
    (folder / "lock").write_text(str(os.getpid()))  # a process that has been given the number of a dead owner
    assert views.summary(folder)["state"] == "unfinished"
    (folder / "lock").write_text("4194304999")  # no such process
    assert views.summary(folder)["state"] == "unfinished"


def test_summary_reads_the_ends_of_the_journal_only(made):
    """The body of round 1 is rubbish: a summary does not notice, a curve does."""
    folder = made("a", [0.1, 0.2, 0.3, 0.4])
    with sqlite3.connect(folder / "journal.db") as db:
        db.execute("UPDATE record SET body = x'00' WHERE kind = 'tell' AND round = 1")
    assert views.summary(folder)["accuracy"] == 0.4
    with pytest.raises(StoreError, match="does not check out"):
        views.curves(folder)


def test_damage_is_told_in_a_list_and_a_missing_folder_is_refused(made, tmp_path):
    folder = made("a", [0.1])
    (folder / "journal.db").write_bytes(b"rubbish" * 100)
    found = views.summary(folder)
    assert found["state"] == "damaged"
    assert "does not check out" in found["error"]
    with pytest.raises(StoreError, match="no such folder"):
        views.summary(tmp_path / "nowhere")


def test_a_name_that_is_no_text_any_more_is_damage_too(tmp_path):
    """SQLite quotes the table's name in its complaint, in bytes that cannot be decoded."""
    path = tmp_path / "run" / "journal.db"
    path.parent.mkdir()
    Journal.create(path, {"config": {}}).close()
    whole = path.read_bytes()
    at = whole.index(b"tablesegment") + len("table")
    path.write_bytes(whole[:at] + bytes([whole[at] | 0x80]) + whole[at + 1 :])
    assert views.summary(path.parent)["state"] == "damaged"


def test_curves_since_a_round(made):
    folder = made("a", [0.1, None, 0.3, 0.4], clock=[5, 9, 14, 20])
    whole = views.curves(folder)
    assert whole["round"] == [0, 1, 2, 3]
    assert whole["accuracy"] == [0.1, None, 0.3, 0.4]
    assert whole["clock"] == [5.0, 9.0, 14.0, 20.0]
    assert whole["next"] == 4
    rest = views.curves(folder, since=3)
    assert (rest["round"], rest["accuracy"], rest["next"]) == ([3], [0.4], 4)
    assert views.curves(folder, since=4)["next"] == 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=300), st.integers(4, 60))
def test_thinning_keeps_ends_peaks_and_the_limit(values, limit):
    x = np.array(values)
    keep = views.thin(x, limit)
    assert keep.size <= max(limit, 2) + 2
    assert (np.diff(keep) > 0).all()
    if x.size <= limit:
        assert keep.size == x.size
    elif np.isfinite(x).any():
        assert {0, x.size - 1} <= set(keep.tolist())
        assert np.nanmax(x[keep]) == np.nanmax(x)
        assert np.nanmin(x[keep]) == np.nanmin(x)


def test_cohort_map_by_hand(made):
    """Client 5 is asked three times, 2 twice, 0 once; the ask's order is not the tell's: outcomes follow clients."""
    folder = made(
        "a", [0.1, 0.2], cohorts=[[5, 2], [0, 5]], outcomes=[[2, 0], [0, 1]], open_round=[5, 2], finished=False
    )
    found = views.cohort_map(folder)
    assert (found["population"], found["rounds"], found["first"], found["next"]) == (6, 3, 0, 3)
    asked = [{(found["clients"][row], code) for row, code in zip(*pair, strict=True)} for pair in _pairs(found)]
    assert asked == [{(5, "2"), (2, "0")}, {(0, "0"), (5, "1")}, {(5, "5"), (2, "5")}]
    assert found["legend"][5] == "not back yet"
    assert found["traits"]["asked"] == [1, 0, 2, 0, 0, 3]
    assert found["orders"]["asked"] == [5, 2, 0, 1, 3, 4]
    assert found["orders"]["slot"] == [0, 1, 2, 3, 4, 5]
    later = views.cohort_map(folder, since=1)
    assert (later["first"], later["rounds"], later["asked"]) == (1, 2, found["asked"][1:])


def _pairs(found):
    return list(zip(found["asked"], found["outcomes"], strict=True))


def test_orders_of_clients_are_those_of_the_world(made):
    """Skew, noise and speed by loops over every sample of the world built anew."""
    found = views.cohort_map(made("a", [0.1], cohorts=[[3, 1]]))
    spec = make_task_spec("digits-mlp")
    world = build_world(make_world_spec(CONFIG["world"]), spec.labels(), seed=0, classes=10)
    part = world.train
    rows = [list(zip(part.label[part.of(i)], part.clean[part.of(i)], strict=True)) for i in range(6)]
    everybody = [sum(c == k for row in rows for _, c in row) / sum(map(len, rows)) for k in range(10)]
    skew = [_divergence([sum(c == k for _, c in row) / len(row) for k in range(10)], everybody) for row in rows]
    noise = [sum(label != clean for label, clean in row) / len(row) for row in rows]
    for name, values in (("skew", skew), ("noise", noise)):
        assert found["orders"][name] == sorted(range(6), key=lambda i: (values[i], i))
        assert found["traits"][name] == pytest.approx(values, rel=1e-4)
    speed = found["traits"]["speed"]
    assert found["orders"]["speed"] == sorted(range(6), key=lambda i: (speed[i], i))
    assert speed == pytest.approx(world.profiles()["expected_seconds"].tolist(), rel=1e-4)
    assert found["traits"]["samples"] == [len(row) for row in rows]


def _divergence(p, q):
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    side = [sum(a * math.log2(a / m) for a, m in zip(x, middle, strict=True) if a > 0) for x in (p, q)]
    return sum(side) / 2


def test_traits_are_left_out_where_the_world_cannot_be_built():
    assert traits_of({**CONFIG, "world": "no-such-world"}, 6)[0] == {}
    assert "cannot be built" in traits_of({**CONFIG, "world": "no-such-world"}, 6)[1]
    assert "another number" in traits_of(CONFIG, 7)[1]
    assert "simulated" in traits_of({}, 6)[1]
    assert order([2.0, math.nan, 1.0, 2.0]).tolist() == [2, 0, 3, 1]


def test_of_many_clients_those_asked_most_are_shown(made):
    folder = made("a", [0.1, 0.2, 0.3], cohorts=[[5, 2], [5, 4], [5, 2]])
    found = views.cohort_map(folder, rows=2)
    assert found["clients"] == [2, 5]
    assert [[found["clients"][r] for r in rows] for rows in found["asked"]] == [[2, 5], [5], [2, 5]]


def test_why_a_client_was_chosen_by_hand(made):
    """Client 3 with 0.5 beside 1.5: the cohort's mean is 1.0, one of two has more. A part that is no number is None."""
    folder = made(
        "a", [0.1, 0.2], cohorts=[[3, 1], [3, 0]], outcomes=[[2, 0], [0, 0]],
        why={"score": [[0.5, 1.5], [2.0, math.nan]]}, reasons={0: {3: "dropped-out"}},
    )  # fmt: skip
    found = views.client(folder, 3)
    assert (found["asked"], found["available"], found["parts"]) == (2, 2, ["score"])
    first, second = found["visits"]
    assert (first["round"], first["outcome"], first["reason"]) == (0, "FAILED", "dropped-out")
    assert first["why"]["score"] == {"value": 0.5, "mean": 1.0, "above": 1, "of": 2}
    assert second["why"]["score"] == {"value": 2.0, "mean": 2.0, "above": 0, "of": 2}
    assert views.client(folder, 0)["visits"][0]["why"]["score"]["value"] is None
    assert views.client(folder, 4)["visits"] == []
    assert len(views.client(folder, 3, limit=1)["visits"]) == 1
    with pytest.raises(BadParameter, match="there are 6 clients"):
        views.client(folder, 6)
    json.dumps(found, allow_nan=False)


def test_views_of_a_folded_journal_are_the_same(made):
    folder = made("a", [0.1, 0.2, 0.3], cohorts=[[3, 1], [2, 0], [3, 5]])
    before = [views.summary(folder), views.curves(folder), views.cohort_map(folder), views.client(folder, 3)]
    journal = Journal.open(folder / "journal.db")
    journal.compact()
    journal.close()
    assert before == [views.summary(folder), views.curves(folder), views.cohort_map(folder), views.client(folder, 3)]


def test_views_while_the_run_goes_on(made, tmp_path):
    journal = made("a", [0.1, 0.2], finished=False, keep_open=True)
    folder = tmp_path / "runs" / "a"
    try:
        assert views.summary(folder)["state"] == "running"
        assert views.curves(folder)["next"] == 2
        assert views.cohort_map(folder)["rounds"] == 2
        journal.append("ask", 2, {"clients": np.array([4]), "everybody": np.array(True)}, {"population": 6})
        assert views.cohort_map(folder)["outcomes"][-1] == "5"
    finally:
        journal.close()
