"""The page: its numbers, that it needs nothing else, that no name can become a program, and that a browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess

import pytest

from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.metrics.comparison import compare
from fedcohort.experiment.metrics.stored_metrics import measure, record
from fedcohort.experiment.store import Store
from fedcohort.looks import look
from fedcohort.report.build import ReportOptions, make_report
from fedcohort.report.collected import gather
from fedcohort.report.page import safe_json
from fedcohort.report.run_detail import reasons
from fedcohort.report.tables import compared
from fedcohort.report.views import cohort_map

EVIL = "<script>alert(1)</script>"
IMAGE = "x\"'><img src=x onerror=alert(1)>&amp;</script>"


def page_of(path, tmp_path, **wanted):
    out = tmp_path / "report.html"
    make_report([path], out, ReportOptions(**wanted))
    text = out.read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL).group(1)
    return text, json.loads(data)


def test_numbers_of_the_page(few, tmp_path):
    """Means by hand: uniform 0.1, 0.3, 0.5, 0.61; oort 0.1 more. terminal of 4 rounds is the last one."""
    text, data = page_of(few, tmp_path)
    (setting,) = data["settings"]
    oort, uniform = setting["rounds"]
    assert (oort["name"], uniform["name"], uniform["seeds"]) == ("oort", "uniform", 3)
    assert uniform["x"] == [0, 1, 2, 3]
    assert {k: uniform[k] for k in ("index", "dash", "marker")} == look("uniform").data()
    assert "range over seeds (fewer than 5" in setting["band"]
    assert uniform["y"] == pytest.approx([0.1, 0.3, 0.5, 0.61])
    assert oort["y"] == pytest.approx([0.2, 0.4, 0.6, 0.71])
    assert uniform["low"][0] == uniform["high"][0] == pytest.approx(0.1)
    assert (uniform["low"][3], uniform["high"][3]) == pytest.approx((0.6, 0.62))
    row = {r.entry: r for r in compare([few]).settings[0].rows}["oort"]
    assert row.verdict in text.replace("&gt;", ">")
    assert "0.71 [0.7" in text
    assert "3:0" in text


def test_inside_of_the_runs(few, tmp_path):
    """Clients 0 and 1 are asked in every round, with the scores 1 and 3."""
    _, data = page_of(few, tmp_path)
    assert [(r["entry"], r["seed"]) for r in data["runs"]] == [(e, s) for e in ("oort", "uniform") for s in range(3)]
    oort = data["runs"][0]
    assert oort["why"]["parts"] == ["score"]
    assert oort["why"]["values"]["score"] == [[1.0, 3.0]] * 4
    assert oort["why"]["values"]["seconds"] == [[10.0, 10.0]] * 4
    assert {"skew", "noise", "speed", "asked", "slot"} <= set(oort["orders"])
    assert data["runs"][3]["why"]["parts"] == []


def test_score_parts_have_a_budget_and_keep_the_newest(made):
    """Two clients with one part and a duration: four numbers a round, so nine of them hold two rounds."""
    folder = made("a", [0.1] * 5, cohorts=[[4, 1]] * 5, why={"score": [[t, 10.0 + t] for t in range(5)]})
    found, used = reasons(folder, cohort_map(folder), 9)
    assert (found["first"], used) == (3, 8)
    assert found["values"]["score"] == [[13.0, 3.0], [14.0, 4.0]]  # by slot, as the picture has them


def test_names_cannot_become_programs(made, tmp_path):
    """A selector, a world, a folder, a reason and a score part with the worst of names."""
    made(
        "<img src=x onerror=alert(1)>", [0.1, 0.2], config={"selector": EVIL, "world": IMAGE},
        why={EVIL: [[1.0, 2.0]] * 2}, reasons={0: {0: IMAGE}},
    )  # fmt: skip
    text, data = page_of(tmp_path / "runs", tmp_path, title=IMAGE)
    assert data["runs"][0]["why"]["parts"] == [EVIL]
    assert data["runs"][0]["why"]["reasons"] == {"0/0": IMAGE}
    scripts = re.findall(r"<script[^>]*>", text)
    assert scripts == ['<script type="application/json" id="data">', "<script>"]
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert "&lt;script&gt;" in text


def test_json_cannot_leave_its_element():
    text = safe_json([EVIL, "\u2028", "a & b"])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == [EVIL, "\u2028", "a & b"]


def test_page_needs_nothing_else(few, tmp_path):
    """No address, no file, nothing to fetch; and the policy names exactly what is in the page."""
    text, _ = page_of(few, tmp_path)
    for outside in ("http://", "https://", " src=", "<link", "@import", "url(", "fetch(", "XMLHttp", "import("):
        assert outside not in text, outside
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    inline = [re.search(p, text, re.DOTALL).group(1) for p in ("<style>(.*?)</style>", "<script>(.*?)</script>")]
    for part in inline:
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy
    assert not re.search(r"<[^>]*\s(on\w+|style)=", text[: text.index('id="data"')])


def test_unfinished_runs_are_drawn_and_not_compared(made, tmp_path):
    made("a", [0.1, 0.2], finished=False, config={"selector": "oort", "rounds": 9})
    text, data = page_of(tmp_path / "runs", tmp_path)
    assert data["settings"][0]["rounds"][0]["name"] == "oort, seed 0, unfinished (2 of 9)"
    assert "No run is finished yet" in text
    assert "1 of 1 runs are not finished" in text


def test_a_run_without_a_round(made, tmp_path):
    made("a", [], finished=False, config={"rounds": 3})
    text, data = page_of(tmp_path / "runs", tmp_path)
    assert data["settings"][0]["rounds"] == []
    assert "0/3" in text


def test_damaged_runs_and_repeated_seeds_are_left_out_with_a_note(few, made, tmp_path):
    made("again", [0.9], config={"selector": "oort", "seed": 0, "rounds": 4})
    (made("bad", [0.1]) / "journal.db").write_bytes(b"no" * 200)
    text, data = page_of(few, tmp_path)
    assert "1 run is left out: a newer run has the same setting, selector and seed" in text
    assert "left out: journal" in text
    assert len(data["runs"]) == 6


def test_different_worlds_are_different_settings(few, made, tmp_path):
    made("other", [0.2, 0.3, 0.3, 0.4], config={"world": "iid-v1(clients=6)"})
    _, data = page_of(few, tmp_path)
    assert [s["name"] for s in data["settings"]] == ["iid-v1(clients=6), digits-mlp", "mixed-v1(clients=6), digits-mlp"]
    oort, uniform = data["settings"][1]["rounds"]
    assert data["settings"][0]["rounds"][0]["index"] == uniform["index"] != oort["index"]  # a name keeps its colour


def test_long_runs_stay_small(made, tmp_path):
    """5,000 rounds of 40 clients are 200,000 places: 150,000 / 40 = 3,750 rounds of them are shown.

    A place has two numbers, one score part and a duration: 120,000 / 80 = 1,500 rounds of those.
    """
    cohort = list(range(40))
    made("a", [0.5] * 5000, cohorts=[cohort] * 5000, population=50, why={"score": [[0.12345] * 40] * 5000})
    text, data = page_of(tmp_path / "runs", tmp_path)
    assert len(text) < 3_000_000
    assert len(data["settings"][0]["rounds"][0]["x"]) <= 402
    (run,) = data["runs"]
    assert run["first"] + run["rounds"] == 5000
    assert run["rounds"] == 3750
    assert run["why"]["first"] == 3500
    assert len(run["why"]["values"]["score"]) == 1500


@pytest.mark.skipif(not shutil.which("chromium"), reason="Debian's chromium is not installed")
@pytest.mark.slow
def test_a_real_browser_shows_it(few, made, tmp_path):
    """The scripts ran under the page's own policy: charts have legends, the client its rows, nothing evil came in."""
    made("evil", [0.1, 0.2], config={"selector": EVIL, "seed": 7, "rounds": 4}, reasons={0: {0: IMAGE}})
    page_of(few, tmp_path)
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = (
        f"--disable-component-update --disable-sync --virtual-time-budget=5000 --user-data-dir={tmp_path / 'profile'}"
    )
    command = ["chromium", *flags.split(), *more.split(), "--dump-dom", (tmp_path / "report.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    shown = dom[: dom.index('<script type="application/json"')]
    keys = re.findall(r'class="fc-key"[^>]*>.*?<span>(.*?)</span>', shown)
    assert "oort (3 seeds)" in keys
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in keys
    rows = re.search(r'<table id="why">.*?</table>', shown, re.DOTALL).group(0)
    assert rows.count("<tr>") >= 3
    assert "<img" not in shown
    assert "<script" not in shown


def test_clients_never_used_are_counted_in_reports_too(tmp_path):
    store, keys = Store(tmp_path), {"task": "quadratic", "rounds": 40, "cohort_size": 5, "over_select": 2.0}
    folder = store.folder(store.obtain(RunConfig(selector="uniform", world="mixed-v1", **keys)).finished.config)
    known = measure(record(folder), ("never_used",))["never_used"]
    assert known > 0
    assert compared(gather([tmp_path]), ["never_used"])[0].settings[0].rows[0].mean == known
