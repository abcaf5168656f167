"""HeteRo-Select's studies: published numbers against each other, scales, and one ablation end to end."""

import pytest

from fedcohort import papers
from fedcohort.experiment.store import Store
from fedcohort.papers import reproduce
from fedcohort.papers.hetero_select import hetero_select_setting as heteroselect
from fedcohort.papers.hetero_select import hetero_select_table as heteroselect_table
from fedcohort.papers.study import PERFECT_ROW, SCALES
from fedcohort.registry.lookup import make_selector

IDS = ["table", "mu", "participation", "weights", "grid", "availability", "misalignment"]


def test_every_study_is_there():
    assert [s.id for s in papers.chosen("hetero-select")] == [f"hetero-select:{name}" for name in IDS]


def test_cohorts_that_come_round_are_seen_in_every_round():
    """Two halves in turn, evaluated every second round, would show one of them only; others do not come round."""
    for scale in ("laptop", "desk"):
        cells = papers.studies()["hetero-select:table"].cells(scale)
        every = {cell.row: cell.run["evaluate_every"] for cell in cells}
        assert {row for row, rounds in every.items() if rounds == 1} == {PERFECT_ROW}


def test_drop_is_peak_minus_final_where_all_three_are_printed():
    for row in (heteroselect_table.ADDITIVE, heteroselect_table.OORT):
        peak, final, _, drop = heteroselect_table.PUBLISHED[row].values()
        assert peak - final == pytest.approx(drop, abs=1e-6)


def test_the_gain_of_a_strong_pull_that_the_summary_prints():
    weak, strong = heteroselect_table.PEAKS[heteroselect_table.EXPLORATIVE].values()
    assert strong - weak == pytest.approx(5.23, abs=1e-6)


def test_the_temperature_halves_over_a_run_at_every_scale():
    """tau = tau0 (1 - 0.5 min(t / horizon, 1))."""
    for scale in SCALES:
        assert make_selector(heteroselect.hetero(scale)).horizon == heteroselect.rounds(scale)


def test_strength_of_the_pull_end_to_end(tmp_path):
    work = reproduce.plan(papers.studies()["hetero-select:mu"], "smoke")
    found = reproduce.perform(work, Store(tmp_path), workers=1)
    assert not found["failed"]
    assert all(10 < c["mean"] <= 100 for c in found["cells"])
    assert len({d for c in found["cells"] for d in c["digests"].values()}) == 6


def test_grid_and_weights_change_one_thing_at_a_time():
    cells = {c.place: c.run for c in papers.studies()["hetero-select:weights"].cells("laptop")}
    made = make_selector(cells["norm", "weight 0.1"]["selector"])
    assert made.weights.tolist() == pytest.approx([1, 1, 1, 1, 1, 0.1])
    grid = {c.place: c.run for c in papers.studies()["hetero-select:grid"].cells("laptop")}
    run = grid["mu 0.5, gamma 0.3", "9 of 12"]
    assert (run["cohort_size"], make_selector(run["selector"]).gamma) == (9, 0.3)
    assert "mu=0.5" in run["method"]
