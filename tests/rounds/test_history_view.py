"""Histories to look at: curves on given axes, tables for pandas, notebooks, and the backend left alone."""

from __future__ import annotations

import importlib.util
import io
import math
import sys
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from fedcohort.errors import MissingExtra, UnknownName
from fedcohort.experiment.round_progress import RoundProgress, told_too
from fedcohort.looks import COLOURS, look
from fedcohort.rounds.history import History


def history(rounds=6):
    rows = [{"round": t, "clock": 7200.0 * (t + 1), "accuracy": 0.1 * t, "loss": 2.0 - 0.1 * t} for t in range(rounds)]
    rows[2].pop("accuracy", None)  # not measured in round 2
    return History(4, rows, [np.array([t % 4, (t + 1) % 4]) for t in range(rounds)])


def test_plot_draws_on_the_axes_it_is_given_and_returns_them():
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert history().plot(ax, label="oort") is ax
    assert history().plot(ax, label="uniform") is ax
    first, second = ax.get_lines()
    assert first.get_xdata().tolist() == [0, 1, 3, 4, 5]
    assert (first.get_color(), second.get_color()) == (look("oort").colour, look("uniform").colour)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["oort", "uniform"]


def test_plot_against_time_is_a_step_in_a_sensible_unit():
    ax = history().plot(against="time", column="loss")
    line = ax.get_lines()[0]
    assert line.get_drawstyle() == "steps-post"
    assert line.get_xdata().tolist() == pytest.approx([2, 4, 6, 8, 10, 12])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("virtual time (h)", "test loss")
    assert line.get_color() in COLOURS


def test_plot_leaves_the_backend_alone_and_needs_no_pyplot(monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    before = dict.__getitem__(matplotlib.rcParams, "backend")
    shown = io.BytesIO()
    history().plot().figure.savefig(shown, format="png")
    assert shown.getvalue().startswith(b"\x89PNG")
    assert dict.__getitem__(matplotlib.rcParams, "backend") is before
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize(("options", "words"), [({"column": "acuracy"}, "accuracy"), ({"against": "tim"}, "time")])
def test_plot_answers_mistakes(options, words):
    with pytest.raises(UnknownName, match=f"did you mean {words}"):
        history().plot(**options)


def test_to_pandas_has_one_row_per_round():
    pytest.importorskip("pandas")
    found = history().to_pandas()
    assert found.index.name == "round"
    assert list(found.columns) == ["clock", "accuracy", "loss", "cohort"]
    assert found.loc[5, "cohort"] == [1, 2]
    assert np.isnan(found.loc[2, "accuracy"])
    assert History(3).to_pandas().empty


def test_to_pandas_without_pandas_is_one_sentence(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pandas is not installed; pip install pandas"):
        history().to_pandas()


def test_a_notebook_shows_the_facts_and_a_curve():
    root = ElementTree.fromstring(history()._repr_html_())
    words = " ".join(root.itertext())
    for part in ("50.0%", "round 5", "12 h", "100%"):
        assert part in words
    assert len(root.find("svg/polyline").get("points").split()) == 5
    assert "svg" not in History(3)._repr_html_()
    assert math.isnan(History(3).fairness())  # nobody was asked: neither fair nor unfair


def test_progress_is_ten_lines_in_a_file_and_one_in_a_terminal(capsys):
    shown = io.StringIO()
    progress = RoundProgress(40, shown)
    for t in range(40):
        progress({"round": t, "accuracy": t / 40} if t % 2 else {"round": t})
    lines = shown.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[-1] == "round 40/40, accuracy 97.5 %, done"
    shown.isatty = lambda: True
    progress = RoundProgress(3, shown)
    start = len(shown.getvalue())
    for t in range(3):
        progress({"round": t})
    text = shown.getvalue()[start:]
    assert text.count("\n") == 1
    assert text.startswith("\rround 1/3")
    heard = []
    told_too(1, heard.append)({"round": 0})
    assert heard == [{"round": 0}]
    assert "round 1/1, done" in capsys.readouterr().err
