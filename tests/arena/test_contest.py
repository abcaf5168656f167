"""Running a selector in the arena: classes, objects, texts, modules; failures stay in their row; check and fill."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fedcohort import Cohort, StatefulSelector
from fedcohort.arena import board, practise, run
from fedcohort.arena.archive import Archive
from fedcohort.arena.cells import entry, play
from fedcohort.arena.contest import coverage
from fedcohort.arena.fill import archive_entries, check_cells, differs, fill, missing_cells, same_versions
from fedcohort.arena.oracle import Oracle
from fedcohort.arena.problem_set import problem, tier_problems
from fedcohort.errors import BadParameter, FedcohortError, UnknownName
from fedcohort.experiment.runs import build_world_for
from fedcohort.registry import lookup
from fedcohort.registry.lookup import make_task_spec, make_world_spec
from fedcohort.testing import SelectorContract
from fedcohort.types import Round


class Youngest(StatefulSelector):
    """The first that are available."""

    def select(self, rnd, rng):
        return Cohort(rnd.available[: rnd.size])

    def observe(self, result): ...


class Crashes(Youngest):
    def select(self, rnd, rng):
        if rnd.population == 50 and rnd.index == 3:
            raise RuntimeError("I give up")
        return super().select(rnd, rng)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """An archive of two problems and one seed."""
    archive = Archive(tmp_path_factory.mktemp("arena") / "small.jsonl.gz")
    on = [problem("digits-skew"), problem("digits-noise")]
    fill(archive, missing_cells(archive, ["uniform", "oort", "oracle"], on, [0]), workers=0)
    return archive


def test_a_class_of_ones_own_is_ranked(small, monkeypatch):
    heard = []
    monkeypatch.setattr("fedcohort.arena.contest.tier_problems", lambda tier: tier_problems(tier)[:2])
    made = run(Youngest, seeds=[0], archive=small.path, on_row=lambda row, done, total: heard.append((done, total)))
    assert heard == [(1, 2), (2, 2)]
    assert {s.entry for s in made.standings} == {"uniform", "oort", "oracle", "Youngest"}
    assert [s.entry for s in made.standings if s.mine] == ["Youngest"]
    assert made.results.problems == ("digits-skew", "digits-noise")


def test_a_selector_that_fails_has_a_row_that_says_so(small, monkeypatch):
    monkeypatch.setattr("fedcohort.arena.contest.tier_problems", lambda tier: tier_problems(tier)[:2])
    made = run(Crashes(), seeds=[0], archive=small.path)
    assert made.standings[-1].entry == "Crashes"
    assert any("Crashes failed in 2 runs" in n and "I give up" in n for n in made.notes)


def documented():
    """The names of the first example of the page."""
    text = (Path(__file__).parents[2] / "docs" / "arena.md").read_text()
    names: dict[str, object] = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    return names


class TestDocumented(SelectorContract):
    """The selector of the page is one that docs/testing.md accepts."""

    def make(self):
        return documented()["Fastest"]()


def test_the_example_of_the_documentation(small, monkeypatch):
    names = documented()
    monkeypatch.setattr("fedcohort.arena.contest.tier_problems", lambda tier: tier_problems(tier)[:2])
    made = names["fc"].arena.run(names["Fastest"], seeds=[0], archive=small.path)
    assert made.notes == ()
    assert "Fastest <- yours" in str(made)


def test_an_object_is_copied_for_every_run():
    given = Youngest()
    who = entry(given, "mine")
    first, second = who.make(None), who.make(None)
    assert first is not second
    assert first is not given
    assert who.name == "mine"


def test_the_same_cell_twice_is_the_same(small):
    row = small.rows[0]
    again = play(entry(row["selector"]), problem(row["problem"]), row["seed"])
    assert {k: v for k, v in again["scores"].items() if k != "own_ms"} == {
        k: v for k, v in row["scores"].items() if k != "own_ms"
    }
    assert again["curve"] == row["curve"]
    assert differs(row, again) == ""


def test_nothing_after_the_horizon_counts():
    row = play(entry("uniform"), problem("digits-speed"), 0)
    assert row["curve"][-1][0] <= problem("digits-speed").horizon
    assert row["scores"]["rounds"] < problem("digits-speed").rounds
    assert row["scores"]["own_ms"] > 0
    assert row["privacy"] == 0


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("ort", UnknownName, "oort"),
        ("oort(explor=1)", UnknownName, "explore"),
        ("oort(explore=2)", BadParameter, "between 0 and 1"),
        ("nowhere:Mine", FedcohortError, "there is no module nowhere"),
        ("mymodule:Mein", UnknownName, "Mine"),
        ("mymodule:Mine(size=1)", UnknownName, "no parameter of mymodule:Mine"),
        ("mymodule:Other", FedcohortError, "it lacks load_state_dict, needs, observe, select"),
        (dict, BadParameter, "this is not a selector"),
    ],
)
def test_mistakes_are_one_sentence(given, error, words, tmp_path, monkeypatch):
    code = "from fedcohort.selectors import Uniform\nclass Mine(Uniform): ...\nclass Other: ...\n"
    (tmp_path / "mymodule.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match=words):
        entry(given)


def test_a_module_in_the_current_folder(tmp_path, monkeypatch):
    code = "from fedcohort.selectors import Oort\nclass Mine(Oort): ...\n"
    (tmp_path / "other_module.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert entry("other_module:Mine(explore=0.25)").make(None).explore == 0.25


def test_seeds_of_the_archive_are_not_for_tuning():
    with pytest.raises(BadParameter, match="the archive has seeds 0 to 4"):
        run(Youngest, seeds=[7])
    with pytest.raises(BadParameter, match="nothing may be tuned"):
        practise(Youngest, seeds=[4, 100])


def test_practice_is_on_other_seeds(monkeypatch):
    monkeypatch.setattr("fedcohort.arena.contest.tier_problems", lambda tier: tier_problems(tier)[:1])
    made = practise(Youngest, seeds=[100])
    assert made.results.seeds == (100,)
    assert {s.entry for s in made.standings} == {"uniform", "Youngest"}


def test_the_oracle_knows_and_is_not_in_the_catalogue():
    assert "oracle" not in lookup.names("selector")
    on = problem("digits-noise")
    world = build_world_for(make_world_spec(on.world), make_task_spec(on.task), 100)
    chosen = Oracle(world).select(Round(0, 5, np.arange(50), 50), np.random.default_rng(0)).clients
    assert world.noise_rate[chosen].mean() < 0.1 < world.noise_rate.mean()
    assert np.unique(chosen).size == 5


def test_the_oracle_avoids_liars_and_takes_whom_it_must():
    on = problem("digits-liars")
    world = build_world_for(make_world_spec(on.world), make_task_spec(on.task), 100)
    liars = np.flatnonzero(world.fixed["lie"] != -1)
    oracle, rng = Oracle(world), np.random.default_rng(0)
    assert not np.isin(oracle.select(Round(0, 5, np.arange(50), 50), rng).clients, liars).any()
    assert oracle.select(Round(0, 5, liars, 50), rng).clients.size == 5
    assert oracle.select(Round(0, 5, liars[:0], 50), rng).clients.size == 0


def test_the_oracle_beats_uniform(small):
    scores = {(r["selector"], r["problem"]): r["scores"]["anytime"] for r in small.rows}
    for on in ("digits-skew", "digits-noise"):
        assert scores["oracle", on] > scores["uniform", on]


def test_everybody_is_in_the_archive():
    shipped = {n for n, e in lookup.entries("selector").items() if e.family not in ("wrapper", "third party")}
    assert shipped <= set(archive_entries())
    for name in archive_entries():
        assert entry(name).name == name


@pytest.mark.slow
def test_worker_processes_fill_and_a_dead_one_costs_one_row(tmp_path, monkeypatch):
    code = (
        "import os\nfrom fedcohort.selectors import Uniform\n"
        "class Dies(Uniform):\n    def select(self, rnd, rng):\n        os._exit(3)\n"
    )
    (tmp_path / "dying_module.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    archive = Archive(tmp_path / "a.gz")
    names = ["uniform", "dying_module:Dies", "round-robin"]
    fill(archive, missing_cells(archive, names, [problem("digits-skew")], [0]), workers=1)
    found = {r["selector"]: r.get("error", "") for r in Archive(archive.path).rows}
    assert found == {"uniform": "", "dying_module:Dies": "its process died", "round-robin": ""}


def test_check_repeats_cells_of_the_shipped_archive():
    """What is in the archive is what this code does.

    On another processor single bandits go another way (neural-bandit among liars: ten points), but not most cells.
    """
    pairs = check_cells(Archive(), 5, seed=None)
    assert len(pairs) == 5
    assert all("scores" in new for _, new in pairs)
    wrong = [(old["selector"], old["problem"], differs(old, new)) for old, new in pairs if differs(old, new)]
    elsewhere = not all(same_versions(old, new) for old, new in pairs)
    assert wrong == [] or (elsewhere and len(wrong) <= 2)


def test_check_sees_a_difference(small):
    row = small.rows[0]
    changed = {**row, "scores": {**row["scores"], "anytime": row["scores"]["anytime"] + 0.001}}
    assert "anytime was" in differs(changed, row)
    assert differs({**changed, "versions": {}}, row) == ""  # other versions may round differently
    assert differs({**changed, "versions": {**row["versions"], "cpu": "another"}}, row) == ""
    assert "it fails now: no" in differs(row, {"error": "no"})


def test_the_board_of_the_archive():
    made = board(tier="quick")
    assert made.standings[0].rank < next(s for s in made.standings if s.entry == "uniform").rank
    alone = board(group="noise", tier="quick")
    assert alone.results.problems == ("digits-noise",)
    with pytest.raises(BadParameter, match="no such group"):
        board(group="nois")


def test_coverage_counts_cells(small):
    found = coverage(small, ["uniform", "oort"])
    assert found["quick"] == (4, 2 * 8 * 5)
    assert found["full"][1] == 2 * 16 * 5


def test_missing_data_are_named_in_the_notes(small, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCOHORT_DATA", str(tmp_path))
    few = [problem("digits-skew"), problem("cifar-skew")]
    monkeypatch.setattr("fedcohort.arena.contest.tier_problems", lambda tier: few)
    made = run("round-robin", tier="full", seeds=[0], archive=small.path)
    assert made.results.problems == ("digits-skew",)
    assert any("cifar-skew" in n and "fedcohort data get" in n for n in made.notes)


def test_an_archive_without_uniform(tmp_path):
    with pytest.raises(FedcohortError, match="no run of uniform"):
        board(archive=tmp_path / "none.gz")
