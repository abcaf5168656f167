"""HeteRo-Select's studies: published numbers against each other, scales, and one ablation end to end."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import spearmanr

from fedcohort import papers
from fedcohort.experiment.store import Store
from fedcohort.papers import reproduce
from fedcohort.papers.hetero_select import hetero_select_setting as heteroselect
from fedcohort.papers.hetero_select import hetero_select_table as heteroselect_table
from fedcohort.papers.hetero_select.hetero_select_open import SCORE, misalignment
from fedcohort.papers.study import PERFECT_ROW, SCALES
from fedcohort.papers.verdicts import HOLDS, judge
from fedcohort.registry.lookup import make_selector
from fedcohort.storage.journal import Journal
from fedcohort.storage.run_folder import RunFolder

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


def test_score_and_misalignment_end_to_end(tmp_path):
    """Three correlations of one run, each between -1 and 1; shuffled scores have another one."""
    work = reproduce.plan(papers.studies()["hetero-select:misalignment"], "smoke")
    found = reproduce.perform(work, Store(tmp_path), workers=1)
    assert not found["failed"]
    means = [c["mean"] for c in found["cells"]]
    assert all(-1 <= value <= 1 for value in means)
    assert len(set(means)) == 3
    assert found["wanted"] == 1


def test_misalignment_pairs_a_score_with_the_angle_that_is_known_of_that_update(tmp_path):
    """By hand: client 0 is asked three times; the update of round 0 meets no moving mean and is left out."""
    asks = [  # score and angle of clients 0, 1, 2 in each round; an angle is that of the client's update before
        ([1.0, 2.0, 3.0], [np.nan, np.nan, np.nan]),
        ([0.1, 0.2, 0.3], [np.nan, np.nan, np.nan]),
        ([5.0, 4.0, 6.0], [1.7, 1.2, 0.4]),
        ([0.0, 0.0, 0.0], [0.3, 0.9, 1.9]),
    ]
    journal = Journal.create(RunFolder(tmp_path).journal, {})
    for i, (score, angle) in enumerate(asks):
        arrays = {"clients": np.arange(3), "why.score": np.array(score), "why.angle": np.array(angle)}
        journal.append("ask", i, arrays | {"why.diversity": np.zeros(3)})
    journal.close()
    record = SimpleNamespace(folder=tmp_path, config=SimpleNamespace(seed=0))
    true = spearmanr([0.1, 0.2, 0.3, 5.0, 4.0, 6.0], [1.7, 1.2, 0.4, 0.3, 0.9, 1.9]).statistic
    assert misalignment(SCORE, record, None) == pytest.approx(true)


def test_the_paper_assumes_that_a_high_score_goes_with_aligned_updates():
    """Anti-correlation: the claim holds where the correlation is below that of shuffled scores."""
    study = papers.studies()["hetero-select:misalignment"]
    cells = study.cells("smoke")
    falls = {c.place: dict.fromkeys(range(6), -0.5 if "shuffled" not in c.row else 0.0) for c in cells}
    better, printed = {c.place: c.quantity.better for c in cells}, {c.place: c.published for c in cells}
    assert judge(study.claims("smoke"), falls, better, printed)[0]["verdict"] == HOLDS


def test_grid_and_weights_change_one_thing_at_a_time():
    cells = {c.place: c.run for c in papers.studies()["hetero-select:weights"].cells("laptop")}
    made = make_selector(cells["norm", "weight 0.1"]["selector"])
    assert made.weights.tolist() == pytest.approx([1, 1, 1, 1, 1, 0.1])
    grid = {c.place: c.run for c in papers.studies()["hetero-select:grid"].cells("laptop")}
    run = grid["mu 0.5, gamma 0.3", "9 of 12"]
    assert (run["cohort_size"], make_selector(run["selector"]).gamma) == (9, 0.3)
    assert "mu=0.5" in run["method"]
