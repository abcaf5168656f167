"""One look per selector everywhere: fixed, told apart within a picture, and the same in the pages' style sheet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedcohort.looks import COLOURS, DARK_COLOURS, DASHES, MARKERS, OUTCOMES, look, looks, time_text, time_unit
from fedcohort.registry.lookup import names

WEB = Path(__file__).parents[1] / "src" / "fedcohort" / "report" / "web"


def test_the_look_of_a_name_is_fixed_and_arguments_keep_its_colour():
    assert look("uniform").colour == look("fedavg").colour == "#4a4a4a"
    assert look("oort").colour == "#0072b2"
    assert look("oort()") == look("oort")
    other = look("oort(explore=0.8)")
    assert other.colour == look("oort").colour
    assert (other.dash, other.marker) != (look("oort").dash, look("oort").marker)
    assert look("my_module:Mine") == look("my_module:Mine")


@pytest.mark.parametrize("kind", ["selector", "method"])
def test_everything_of_the_catalogue_can_be_told_apart_in_one_picture(kind):
    found = looks(names(kind))
    assert len(set(found.values())) == len(found)
    assert all(found[n].colour == look(n).colour for n in ("uniform", "oort", "fedacs") if n in found)


def test_a_crowd_of_one_name_differs_in_its_dashes_first():
    found = looks(["oort", *(f"oort(explore=0.{k})" for k in range(1, 4))])
    assert {one.colour for one in found.values()} == {look("oort").colour}
    assert len({one.dash for one in found.values()}) == 4
    crowd = looks(["oort", "ledger", *(f"oort(explore={k / 100})" for k in range(1, 13))])  # a sweep: markers, too
    assert {one.colour for name, one in crowd.items() if name != "ledger"} == {look("oort").colour}
    assert len({(one.colour, one.dash, one.marker) for one in crowd.values()}) == 14
    many = looks(f"oort(explore={k / 100})" for k in range(60))  # more than there are looks: still an answer for each
    assert len(many) == 60
    assert len(set(many.values())) == 32


def test_pages_have_the_same_colours_steps_and_markers():
    style, script = (WEB / "style.css").read_text(), (WEB / "charts.js").read_text()
    light = style[: style.index(":root[data-theme")]
    for name, values in (("series", COLOURS), ("outcome", OUTCOMES)):
        assert re.findall(rf"--{name}-\d: (#\w+)", light) == list(values)
    dark = style[style.index("prefers-color-scheme: dark") :].partition("\n}")[0]
    assert re.findall(r"--series-\d: (#\w+)", dark) == list(DARK_COLOURS)
    assert f"o {' '.join(MARKERS[1:])}" in script
    assert "steps = [1, 2, 5, 10]" in script
    grouping = (WEB.parents[1] / "dashboard" / "web" / "grouping.js").read_text()
    assert f"DASHES = {[list(dash) for dash in DASHES]};" in grouping


def test_times_are_told_in_units_that_people_use():
    assert [time_unit(s)[1] for s in (0, 90, 300, 7199, 7200, 86400, 172_800)] == [
        "s",
        "s",
        "min",
        "min",
        "h",
        "h",
        "days",
    ]
    assert [time_text(s) for s in (0.0, 59, 60, 5400, 3e6, -90, None, float("nan"))] == [
        "0 s", "59 s", "1 min", "1.5 h", "34.7 days", "-1.5 min", "-", "-",
    ]  # fmt: skip
    assert time_text(5400, 3600, 9000) == "1.5 [1, 2.5] h"
