"""Comparison: exact tests against scipy and by hand, pairing, ranks, and the words for what is inside the noise."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedcohort import __version__
from fedcohort.errors import BadParameter, StoreError, UnknownName
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.metrics import paired
from fedcohort.experiment.metrics.comparison import compare, compare_records
from fedcohort.experiment.metrics.stored_metrics import RunRecord, metric
from fedcohort.experiment.store import Store
from fedcohort.experiment.sweep import from_mapping, run_sweep
from fedcohort.report.build import ReportOptions, make_report
from fedcohort.rounds.history import History
from fedcohort.storage.journal import Journal

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import digits_table


@pytest.mark.parametrize(
    "d",
    [
        *(np.random.default_rng(n).normal(0.3, 1.0, n) for n in (3, 5, 6, 12)),
        np.array([1.0, -1.0, 2.0, 2.0, 3.0, 0.0, 3.0]),
        np.round(np.random.default_rng(13).normal(0.3, 1.0, 13), 1),
    ],
)
def test_wilcoxon_by_counting_signs(d):
    """All 2^n signs of the ranks of |d|: the share whose smaller sum is at most the one seen."""
    used = d[d != 0]
    ranks = stats.rankdata(np.abs(used))
    total = ranks.sum()
    seen = min(ranks[used > 0].sum(), total - ranks[used > 0].sum())
    plus = [sum(r for r, s in zip(ranks, signs, strict=True) if s) for signs in product((0, 1), repeat=used.size)]
    expected = np.mean([min(p, total - p) <= seen + 1e-9 for p in plus])
    assert paired.wilcoxon(d) == pytest.approx(expected)


@pytest.mark.parametrize("n", [6, 9, 14])
def test_the_interval_of_the_signed_rank_test_is_the_test_turned_round(n):
    """A shift is inside where the test of the shifted differences does not refuse it; coverage is at least 95 %."""
    rng = np.random.default_rng(n)
    inside = 0
    for _ in range(60):
        d = rng.normal(0.4, 1.0, n)
        low, high = paired.signed_rank_interval(d)
        assert (low <= 0 <= high) == (paired.wilcoxon(d) >= 0.05)
        assert paired.wilcoxon(d - (low - 1e-9)) < 0.05 <= paired.wilcoxon(d - (low + 1e-9))
        assert paired.wilcoxon(d - (high + 1e-9)) < 0.05 <= paired.wilcoxon(d - (high - 1e-9))
        inside += low <= 0.4 <= high
    assert inside >= 54
    assert paired.signed_rank_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == (-np.inf, np.inf)


def test_wilcoxon_at_its_edges():
    """Nothing, one pair, no difference at all; and more ties than are counted: near the exact value of the same."""
    assert [paired.wilcoxon(d) for d in ([], [0.7], [0.0, 0.0])] == [1.0, 1.0, 1.0]
    d = np.r_[np.arange(1.0, 16.0), -0.5]
    assert paired.wilcoxon(np.r_[d, 3.0]) == pytest.approx(paired.wilcoxon(np.r_[d, 3.001]), abs=1e-3)


def test_bootstrap_interval():
    """Between the extremes, around the mean, always the same; of one value only that value. Covers as often as it says:
    95 % of the mean of 30 normals; percentile intervals are a little short, 0.88 .. 0.99 of 100."""
    x = np.array([0.5, 0.7, 0.6, 0.9, 0.8])
    low, high = paired.interval(x)
    assert x.min() <= low < x.mean() < high <= x.max()
    assert paired.interval(x) == (low, high)
    assert paired.interval([0.3]) == (0.3, 0.3)
    assert np.isnan(paired.interval([])).all()
    rng = np.random.default_rng(2)
    ends = [paired.interval(rng.normal(size=30), draws=300) for _ in range(100)]
    assert 88 <= sum(lo <= 0.0 <= hi for lo, hi in ends) <= 99


def test_sign_test_and_least_p():
    assert paired.sign_test(6, 0) == pytest.approx(stats.binomtest(6, 6).pvalue)
    assert paired.sign_test(5, 2) == pytest.approx(stats.binomtest(5, 7).pvalue)
    assert paired.sign_test(0, 0) == 1.0
    assert [paired.least_p(n) for n in (1, 5, 6)] == [1.0, 0.0625, 0.03125]


def test_holm_by_hand():
    """Sorted .01 .02 .03 .04 times 4 3 2 1: .04 .06 .06 .04, made monotone: .04 .06 .06 .06."""
    assert paired.holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert paired.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert paired.holm([]).size == 0


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_difference(k, q):
    """Demsar's table of q_0.05."""
    assert paired.studentised_range(k) / math.sqrt(2) == pytest.approx(q, abs=1e-3)
    assert paired.critical_difference(k, 14) == pytest.approx(q * math.sqrt(k * (k + 1) / 84), abs=1e-3)


def test_ranks():
    """Rows 3 1 2 and 2 2 5: ranks 1 3 2 and 2.5 2.5 1; means 1.75 2.75 1.5."""
    assert paired.average_ranks([[3, 1, 2], [2, 2, 5]]).tolist() == [1.75, 2.75, 1.5]


def run_of(selector, seed, accuracy, world="mixed-v1", clock=1.0, **more):
    rows = [{"round": t, "clock": clock * (t + 1), "accuracy": a, "score": a} for t, a in enumerate(accuracy)]
    config = RunConfig(selector=selector, seed=seed, world=world, rounds=len(rows), **more)
    return RunRecord(config, History(4, rows, [np.array([0])] * len(rows)))


def ends(values, world="mixed-v1"):
    """Runs of one round that end at these values: selector -> values by seed."""
    return [run_of(s, k, [v], world) for s, row in values.items() for k, v in enumerate(row)]


def row(comparison, entry, setting=0):
    return next(r for r in comparison.settings[setting].rows if r.entry == entry)


def test_pairing_sees_what_means_hide():
    """Seeds differ by far more than selectors do; by seed oort is 0.01 ahead each time."""
    base = [0.1, 0.9, 0.3, 0.7, 0.5, 0.2, 0.8]
    found = compare_records(ends({"oort": [b + 0.01 for b in base], "uniform": base}), metric("final"))
    oort = row(found, "oort")
    assert found.baseline == "uniform"
    assert oort.difference == pytest.approx(0.01)
    assert (oort.wins, oort.losses, oort.pairs) == (7, 0, 7)
    assert oort.p == pytest.approx(2 / 2**7)
    assert oort.verdict == "better"
    assert oort.low < row(found, "uniform").mean < oort.high  # unpaired intervals overlap widely
    turned = compare_records(ends({"oort": [b + 0.01 for b in base], "uniform": base}), metric("drop"))
    assert row(turned, "oort").verdict == "no difference in any seed"


def test_words():
    base = [0.5] * 5
    few = compare_records(ends({"uniform": base, "oort": [0.6, 0.61, 0.62, 0.6, 0.7]}), metric("final"))
    assert row(few, "oort").verdict == "undecided: better in 5 of 5 seeds, and a verdict needs at least 6"
    six = compare_records(ends({"uniform": [0.5] * 6, "oort": [0.6, 0.61, 0.62, 0.6, 0.7, 0.65]}), metric("final"))
    assert row(six, "oort").verdict == "better"
    noisy = compare_records(
        ends({"uniform": [0.5] * 8, "oort": [0.6, 0.4, 0.55, 0.45, 0.5, 0.52, 0.47, 0.51]}), metric("final")
    )
    assert row(noisy, "oort").verdict == "inside the noise"
    worse = compare_records(ends({"uniform": [0.5] * 8, "oort": [0.4 + 0.001 * i for i in range(8)]}), metric("final"))
    assert row(worse, "oort").verdict == "worse"
    one = compare_records(ends({"uniform": [0.5], "oort": [0.9]}), metric("final"))
    assert row(one, "oort").verdict == "undecided: better in the only seed, and a verdict needs at least 6"
    apart = compare_records([run_of("uniform", 0, [0.5]), run_of("oort", 1, [0.9])], metric("final"))
    assert "no seed in common" in row(apart, "oort").verdict


def test_several_comparisons_are_corrected():
    """Six seeds all ahead give p = 1/32; beside two others that is 3/32 after Holm: so few can never decide.

    Eight with one small step back give p = 4/256: decided alone, and 16/256 as one of four."""
    base = [0.5] * 6
    up = [0.6 + 0.01 * i for i in range(6)]
    alone = compare_records(ends({"uniform": base, "oort": up}), metric("final"))
    assert row(alone, "oort").verdict == "better"
    values = {"uniform": base, "oort": up, "afl": [0.4, 0.6] * 3, "flash": [0.6, 0.4] * 3}
    three = compare_records(ends(values), metric("final"))
    assert row(three, "oort").adjusted == pytest.approx(3 / 32)
    said = "undecided: better in 6 of 6 seeds, and a verdict needs at least 7 for 3 comparisons"
    assert row(three, "oort").verdict == said
    values = {"uniform": [0.5] * 8, "oort": [0.499, *(0.6 + 0.01 * i for i in range(7))]}
    values |= {name: [0.4, 0.6] * 4 for name in ("afl", "flash", "tifl")}
    four = compare_records(ends(values), metric("final"))
    assert row(four, "oort").adjusted == pytest.approx(4 * 4 / 256)
    assert row(four, "oort").verdict.startswith("better taken alone, inside the noise after correction")


def test_few_seeds_decide_where_the_others_of_the_setting_have_more():
    """Holm: the smallest p is multiplied by two, the larger one, 1/32 of six seeds, by one."""
    values = {
        "uniform": [0.5] * 12,
        "afl": [0.6 + 0.01 * i for i in range(12)],
        "oort": [0.6 + 0.01 * i for i in range(6)],
    }
    found = compare_records(ends(values), metric("final"))
    assert (row(found, "oort").adjusted, row(found, "oort").verdict) == (pytest.approx(1 / 32), "better")


def test_never_is_worse_than_any_number_and_in_no_mean():
    """oort reaches 0.8 in round 2 of 3 for six seeds; uniform in round 3 for two of them, and never for four."""
    runs = [run_of("oort", k, [0.1, 0.8, 0.9], clock=5.0) for k in range(6)]
    runs += [run_of("uniform", k, [0.1, 0.2, 0.8 if k < 2 else 0.3], clock=5.0) for k in range(6)]
    found = compare_records(runs, metric("rounds_to_target"), target=0.8)
    uniform, oort = row(found, "uniform"), row(found, "oort")
    assert (uniform.mean, uniform.count, uniform.values[5]) == (3.0, 2, None)
    assert (oort.mean, oort.difference, oort.wins, oort.losses, oort.unreached) == (2.0, -1.0, 6, 0, 4)
    assert oort.p == pytest.approx(2 / 2**6)  # sign test
    assert oort.verdict == "better (not reached counts as worst)"
    nobody = compare_records(runs, metric("time_to_target"), target=0.99)
    assert (row(nobody, "oort").mean, row(nobody, "oort").verdict) == (None, "no values to compare")
    own = compare_records(runs, metric("time_to_target"))  # target: where the baseline ends, (2 * .8 + 4 * .3) / 6
    assert own.settings[0].target == pytest.approx(2.8 / 6)
    assert row(own, "oort").mean == 10.0


def test_ranks_over_worlds_and_the_gap_to_iid():
    """oort best, uniform second, afl last in each of eight worlds: ranks 1 2 3, CD = 2.343 sqrt(12 / 48) = 1.17."""
    runs = []
    for i in range(8):
        world = "iid-v1" if i == 0 else f"mixed-v1(clients={20 + i})"
        runs += ends({"uniform": [0.5] * 6, "oort": [0.6] * 6, "afl": [0.4] * 6}, world)
    found = compare_records(runs, metric("final"))
    assert found.ranks.entries == ("oort", "uniform", "afl")
    assert found.ranks.average == (1.0, 2.0, 3.0)
    assert found.ranks.critical == pytest.approx(1.1717, abs=1e-3)
    assert "oort ranks ahead of afl" in found.ranks.words
    assert "uniform" not in found.ranks.words
    few = compare_records(runs[:36], metric("final"))
    assert "inside the noise" in few.ranks.words
    one = compare_records(runs[:18], metric("final"))
    assert one.ranks is None
    assert "two worlds or tasks" in " ".join(one.notes)
    five = [run for run in runs if run.config.seed < 5]
    assert compare_records(five, metric("final")).ranks.words == (
        "undecided: of some entries there are 5 seeds, and a verdict needs at least 6"
    )

    longer = [replace(run, config=replace(run.config, rounds=n)) for n in range(3, 9) for run in runs[18:36]]
    alone = compare_records(longer, metric("final"))
    assert (len(alone.settings), alone.ranks) == (6, None)  # levels of one world are no independent blocks
    both = compare_records([*longer, *runs[:18]], metric("final"))
    assert (len(both.settings), both.ranks.settings) == (7, 2)

    gap = ends({"uniform": [0.9]}, "iid-v1") + ends({"uniform": [0.5], "oort": [0.7], "afl": [0.4]})
    found = compare_records(gap, metric("final"))
    assert row(found, "oort", 1).improvement == pytest.approx(0.5)
    assert row(found, "afl", 1).improvement == pytest.approx(-0.25)
    assert json.loads(json.dumps(found.data()))["settings"][1]["rows"][1]["entry"] == "oort"


def test_baseline_and_other_axes():
    runs = ends({"oort": [0.5] * 2, "oort(explore=0.5)": [0.6] * 2, "afl": [0.4] * 2})
    assert compare_records(runs, metric("final"), baseline="afl").baseline == "afl"
    assert compare_records(runs, metric("final"), baseline="oort").baseline == "oort"
    with pytest.raises(UnknownName, match="afl"):
        compare_records(runs, metric("final"), baseline="alf")
    with pytest.raises(BadParameter, match="several"):
        compare_records(runs[2:4] + ends({"oort(explore=0.1)": [0.1]}), metric("final"), baseline="oort")
    by = [
        run_of("uniform", k, [0.5 + i / 10], method=name)
        for i, name in enumerate(("fedavg", "fedprox"))
        for k in (0, 1)
    ]
    found = compare_records(by, metric("final"), by="method")
    assert (found.baseline, row(found, "fedprox").difference) == ("fedavg", pytest.approx(0.1))


def test_from_a_sweep_to_a_table(tmp_path):
    """The command line on a real sweep, by its file, by its folder and by its TOML; JSON says what the table says."""
    text = 'selectors = ["uniform", "oort"]\ntask = "digits-softmax"\nrounds = 4\ncohort_size = 5\nseeds = 2\n'
    (tmp_path / "s.toml").write_text(text)
    import tomllib

    sweep, store = from_mapping({**tomllib.loads(text), "name": "s"}), Store(tmp_path / "runs")
    for config in sweep.runs():
        store.obtain(config)
    outcome = run_sweep(sweep, store)  # all there: only writes its file
    made = [compare([p], store=store) for p in (outcome.file, store.root, tmp_path / "s.toml")]
    assert made[0] == made[1] == made[2]
    command = [
        sys.executable,
        "-m",
        "fedcohort.cli.main",
        "compare",
        "runs",
        "--metric",
        "jain",
        "--metric",
        "time_to_target",
    ]
    command += ["--target", "0.99", "--json", "c.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("uniform", "oort", "not reached", "baseline", "mixed-v1, digits-softmax", "target 0.9900"):
        assert word in done.stdout
    told = json.loads((tmp_path / "c.json").read_text())
    assert [c["metric"] for c in told] == ["jain", "time_to_target"]
    assert told[1]["settings"][0]["rows"][0]["mean"] is None

    next(store.root.glob("oort-*/metrics.jsonl")).unlink()
    assert "1 of 4 runs are not finished" in compare([store.root]).notes[0]
    with pytest.raises(StoreError, match="no such run"):
        compare([tmp_path / "nothing"])
    with pytest.raises(StoreError, match="holds no runs"):
        compare([tmp_path / "runs" / "sweeps"])


@pytest.mark.parametrize("target", [80, 0, -0.5, float("nan")])
def test_a_target_that_no_accuracy_reaches_is_refused(target, tmp_path):
    """Before anything is read: the folder need not even be there."""
    for way in (
        lambda: compare(tmp_path / "none", name="time_to_target", target=target),
        lambda: make_report([tmp_path / "none"], tmp_path / "r.html", ReportOptions(target=target)),
    ):
        with pytest.raises(BadParameter, match=f"target = {target:g}: an accuracy lies between 0 and 1; use e.g. 0.8"):
            way()


def test_a_deployment_is_said_to_be_one(tmp_path):
    (tmp_path / "runs" / "state").mkdir(parents=True)
    header = {"kind": "flower", "selector": "oort", "seed": 1, "version": __version__}
    Journal.create(tmp_path / "runs" / "state" / "journal.db", header).close()
    for path in (tmp_path / "runs", tmp_path / "runs" / "state"):
        with pytest.raises(StoreError, match="it belongs to a deployment and has no configuration of a run; leave it"):
            compare(path)
    store = Store(tmp_path / "runs")
    store.obtain(RunConfig(task="quadratic", rounds=2, cohort_size=2))
    (note, *_) = compare(tmp_path / "runs").notes
    assert "state: it belongs to a deployment" in note
    assert note.startswith("left out: ")
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "journal.db").write_bytes(b"no" * 200)
    assert "1 of 2 runs are not finished and left out" in compare(tmp_path / "runs").notes


def test_the_digits_table_decides_nothing_that_compare_would_not():
    """2 / 2^5 is not below 0.05 and 2 / 2^6 is; with a second comparison that takes 2 / 2^7."""
    up, mixed = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), np.array([-2.0, 1.0, -4.0, 3.0, 5.0, -6.0, 0.5])
    assert digits_table.words({"a": up[:5]}) == {"a": "undecided"}
    assert digits_table.words({"a": up[:6]}) == {"a": "better"}
    assert digits_table.words({"a": -up[:6]}) == {"a": "worse"}
    assert digits_table.words({"a": up[:6], "b": mixed[:6]}) == {"a": "undecided", "b": "undecided"}
    assert digits_table.words({"a": up, "b": mixed}) == {"a": "better", "b": "inside the noise"}


def test_pages_say_undecided_where_the_digits_table_has_too_few_seeds():
    stored = json.loads(digits_table.FILE.read_text())
    pages = [page.read_text().partition(digits_table.MARK)[2] for page in digits_table.PAGES.glob("*.md")]
    rows = [line for page in pages for line in page.splitlines() if line.startswith("| `") and " | - | " not in line]
    assert len(rows) > 20
    assert all("(undecided)" in row for row in rows) == (stored["seeds"] < paired.VERDICT_SEEDS)


def test_ties_are_ties_whatever_subtraction_leaves():
    """0.54 twice, as differences of accuracies in percent left it."""
    noisy = [0.5400000000000027, 0.5399999999999991, -1.0, 2.0, 3.0, -0.2]
    assert paired.wilcoxon(noisy) == paired.wilcoxon([0.54, 0.54, -1.0, 2.0, 3.0, -0.2])
