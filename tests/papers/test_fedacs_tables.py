"""The FedACS studies: published numbers against each other, what is read off a run, one figure end to end."""

from typing import ClassVar

import numpy as np
import pytest

import real_data
from fedcohort import papers
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.metrics.stored_metrics import RunRecord, record
from fedcohort.experiment.runs import build, build_world_for
from fedcohort.experiment.store import Store
from fedcohort.papers import reproduce, results_page
from fedcohort.papers.fedacs import fedacs_fig2, fedacs_fig4, fedacs_fig8, fedacs_fig9, fedacs_fig10, fedacs_poisoners
from fedcohort.papers.fedacs import fedacs_setting as fedacs
from fedcohort.papers.fedacs import fedacs_table2 as table2
from fedcohort.papers.fedacs import fedacs_table3 as table3
from fedcohort.papers.study import SCALES, Cell, Claim, Study, beats, quantity
from fedcohort.registry.lookup import make_selector, make_task_spec, make_world_spec
from fedcohort.rounds.history import History

from .tiny_study import RUN

IDS = ["table2", "table3", "fig2", "fig5", "fig4", "fig6d", "fig7", "fig8", "fig9", "fig10", "poisoners", "insight"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Fig. 8 at smoke scale: two runs, one of which asks uniformly."""
    store = Store(tmp_path_factory.mktemp("fedacs"))
    work = reproduce.plan(papers.studies()["fedacs:fig8"], "smoke")
    return work, store, reproduce.perform(work, store, workers=1)


def run_of(done, row):
    work, store, _ = done
    config = next(c for (place, _), c in work.configs.items() if place[0] == row)
    return record(store.folder(config))


def test_every_study_is_there_in_the_order_of_the_list():
    assert [s.id for s in papers.chosen("fedacs")] == [f"fedacs:{name}" for name in IDS]


def test_improvements_follow_from_the_accuracies_up_to_their_rounding():
    """(acc - base) / (iid - base), where each accuracy is known to 0.05 only."""
    for world, printed in table2.IMPROVEMENT.items():
        base, iid = table2.ACCURACY[world][fedacs.BASE], table2.ACCURACY[world][fedacs.IID]
        for who, percent in ((who, p) for who, p in printed.items() if p is not None):
            gain, gap = table2.ACCURACY[world][who] - base, iid - base
            ends = [100 * (gain + a) / (gap + b) for a in (-0.1, 0.1) for b in (-0.1, 0.1)]
            assert min(ends) <= percent <= max(ends), (world, who)


def test_rounds_follow_from_the_printed_speed_ups():
    """Table III prints baseline / rounds to one digit (1.3 for 490 / 400 = 1.225 is the paper's own)."""
    printed = {
        fedacs.UNIFORM: {fedacs.ACS: 2.0, fedacs.REXP3: 1.3, fedacs.CMFL: 0.6, fedacs.OORT: 1.8},
        fedacs.PARETO: {fedacs.ACS: 2.1, fedacs.REXP3: 1.4, fedacs.CMFL: 0.6, fedacs.OORT: 2.5},
        fedacs.DIRICHLET: {fedacs.ACS: 2.1, fedacs.OORT: 2.2},
    }
    for world, speeds in printed.items():
        for who, speed in speeds.items():
            assert table3.PUBLISHED[world][fedacs.BASE] / table3.PUBLISHED[world][who] == pytest.approx(speed, abs=0.08)


def test_the_published_overhead_is_the_last_layer_over_two_models():
    network = make_task_spec("cifar10-cnn").model
    last = network.last_layer.stop - network.last_layer.start
    cells = {c.place: c.published for c in fedacs_fig10.cells("paper")}
    always = cells[fedacs_fig10.ALWAYS, fedacs_fig10.TRAFFIC]
    assert round(100 * last / (2 * network.n_params), 2) == always == 0.69
    assert cells[fedacs_fig10.EARLY, fedacs_fig10.TRAFFIC] == pytest.approx(always * 200 / 1000, abs=0.005)


def test_figures_8_and_9_are_read_off_runs_that_tables_have():
    def digests(name, scale="laptop"):
        return {c.digest() for c in reproduce.plan(papers.studies()[f"fedacs:{name}"], scale, 2).runs()}

    assert digests("table3") < digests("table2")
    assert len(digests("fig8") & digests("table2")) == 4  # FedACS and a perfect choice, two seeds
    assert digests("fig9") <= digests("table2") | digests("fig7")
    assert digests("fig4") <= digests("fig8")


def test_the_even_twin_has_the_sizes_of_the_skewed_world_and_no_skew():
    def world(who):
        config = from_mapping({**fedacs.run("smoke", fedacs.UNIFORM, who), "seed": 0})
        return build(config).world

    even, skewed = world(fedacs.IID), world(fedacs.BASE)
    assert even.train.sizes.tolist() == skewed.train.sizes.tolist() == [30] * 40
    assert not even.skew.any()
    assert skewed.skew.std() > 0.2


def test_rewards_from_the_journal_are_what_the_selector_learned(done):
    """The latest R_i of each client: journal against the state of the selector in a run without a journal."""
    seen = run_of(done, fedacs_fig8.row(fedacs_fig8.ALPHA, fedacs.ACS))
    who, reward = fedacs.rewards(seen, 0, seen.config.rounds)
    latest = dict(zip(who.tolist(), reward.tolist(), strict=True))
    simulation = build(seen.config)
    simulation.run()
    state = simulation.session.selector.state
    assert sorted(latest) == np.flatnonzero(state.told >= 0).tolist()
    assert [latest[c] for c in sorted(latest)] == pytest.approx(state.reward[sorted(latest)].tolist(), rel=1e-5)


def test_pieces_of_a_run_add_up(done):
    seen = run_of(done, fedacs_fig8.row(fedacs_fig8.ALPHA, fedacs.BASE))
    pieces = list(fedacs.windows("smoke").values())
    assert pieces[0][0] == 0
    assert pieces[-1][1] == seen.config.rounds
    each = [fedacs.rewards(seen, a, b)[0] for a, b in pieces]
    assert np.concatenate(each).tolist() == np.concatenate(seen.history.cohorts).tolist()
    everybody = [fedacs_fig9.asked(g)(seen) * 8 for g in range(5)]  # 40 clients in fifths
    assert sum(everybody) == pytest.approx(10 * seen.config.rounds)


def test_groups_are_by_true_skewness(done):
    """By hand: the median over the asked of a group in a piece of the run."""
    seen = run_of(done, fedacs_fig8.row(fedacs_fig8.ALPHA, fedacs.BASE))
    alpha, found = fedacs.alphas(seen), []
    who, reward = fedacs.rewards(seen, 2, 7)
    for client, value in zip(who, reward, strict=True):
        if 0.3 <= alpha[client] <= 0.5:
            found.append(value)
    assert fedacs_fig4.median(2, 2, 7)(seen) == pytest.approx(float(np.median(found)))
    mean = np.mean([alpha[c] for cohort in seen.history.cohorts[2:7] for c in cohort])
    assert fedacs_fig8.mean_alpha(2, 7)(seen) == pytest.approx(float(mean))


def gained(tmp_path, **accuracy):
    """A study of three accuracies by seed, all known without a run, and the improvement that is derived from them."""
    places = [(row, "x") for row in ("own", "base", "iid")]
    chosen = dict(zip(accuracy, ("uniform", "oort", "afl"), strict=True))

    def cells(scale):
        del scale
        found = [Cell(who, "x", {**RUN, "selector": chosen[who]}, quantity("terminal")) for who in accuracy]
        return [*found, Cell("own", "gain", {}, fedacs.improvement(*places))]

    claims = [beats("it beats the other", *places[:2]), Claim("it is a half", (("own", "gain"),))]
    work = reproduce.plan(Study("t:t", "T", cells, lambda _: claims, dict.fromkeys(SCALES, 3)), "smoke")
    for who, values in accuracy.items():
        known = {(work.digests[(who, "x"), s], "terminal", None): v for s, v in values.items()}
        work.known.update(known)
    found = reproduce.result(work, Store(tmp_path))
    return found, found["cells"][-1], [c.selector for c in reproduce.missing(work, Store(tmp_path))]


def test_improvement_is_a_ratio_of_means_by_hand(tmp_path):
    """Gains of 3, 1 and 1 points, gaps of 4, 4 and none: (42.33 - 40.67) / (43.33 - 40.67) = 5/8."""
    own, base, iid = {0: 43.0, 1: 41.0, 2: 43.0}, {0: 40.0, 1: 40.0, 2: 42.0}, {0: 44.0, 1: 44.0, 2: 42.0}
    found, cell, missing = gained(tmp_path, own=own, base=base, iid=iid)
    assert cell["values"] == pytest.approx({"0": 112.5, "1": 37.5, "2": 37.5})
    assert (cell["mean"], cell["low"], cell["high"]) == pytest.approx((62.5, 37.5, 112.5))
    assert (cell["config"], cell["digests"]) == ({}, {})
    assert cell["against"] == [("base", "x"), ("iid", "x"), ("own", "x")]
    assert (found["done"], found["wanted"], missing) == (9, 9, [])


def test_improvement_is_over_the_seeds_that_all_three_have(tmp_path):
    """Without IID's third seed: gains of 3 and 1 points, a gap of 4. One run is missing, and it is IID's."""
    own, base = {0: 43.0, 1: 41.0, 2: 43.0}, {0: 40.0, 1: 40.0, 2: 42.0}
    found, cell, missing = gained(tmp_path, own=own, base=base, iid={0: 44.0, 1: 44.0})
    assert cell["values"] == pytest.approx({"0": 75.0, "1": 25.0})
    assert (cell["mean"], cell["low"], cell["high"]) == pytest.approx((50.0, 25.0, 75.0))
    assert (found["done"], found["wanted"], missing) == (8, 9, ["afl"])
    assert [claim["seeds"] for claim in found["claims"]] == [3, 2]


def test_where_skew_costs_nothing_there_is_no_improvement(tmp_path):
    """Neither without a gap nor with one that is below zero; an accuracy that is none is none of the mean."""
    own, base = {0: 43.0, 1: 41.0, 2: 43.0}, {0: 40.0, 1: 40.0, 2: 42.0}
    for iid in (base, {0: 39.0, 1: 40.0, 2: 42.0}, dict.fromkeys(range(3))):
        _, cell, _ = gained(tmp_path, own=own, base=base, iid=iid)
        assert cell["values"] == dict.fromkeys("012")
        assert results_page.cell_text(cell) == "no gap"
    _, cell, _ = gained(tmp_path, own={**own, 2: None}, base=base, iid={0: 44.0, 1: 44.0, 2: 42.0})
    assert cell["values"] == {"0": pytest.approx(75.0), "1": pytest.approx(25.0), "2": None}


def test_figure_8_end_to_end(done):
    _, _, found = done
    assert not found["failed"]
    values = {(c["row"], c["column"]): c["mean"] for c in found["cells"]}
    assert all(v is not None for v in values.values())
    assert all(0 <= v <= 1 for (row, _), v in values.items() if row.startswith(fedacs_fig8.ALPHA))
    assert all(v < 0 for (row, _), v in values.items() if row.startswith(fedacs_fig8.REWARD))


def test_early_stop_saves_the_traffic_of_the_rounds_after_it(tmp_path):
    """5 of 10 rounds with insights: half the overhead, exactly, whatever the network."""
    work = reproduce.plan(papers.studies()["fedacs:fig10"], "smoke")
    found = reproduce.perform(work, Store(tmp_path), workers=1)
    share = {c["row"]: c["mean"] for c in found["cells"] if c["column"] == fedacs_fig10.TRAFFIC}
    assert share[fedacs_fig10.EARLY] == pytest.approx(share[fedacs_fig10.ALWAYS] / 2, rel=0.02)


def test_a_share_of_the_clients_has_that_share_of_the_samples():
    """Fig. 5: 50 to 200 clients, none of whose samples is dealt twice."""
    for share in fedacs_fig2.SHARES:
        spec = make_world_spec(fedacs_fig2.dealt_once("laptop", share=share)["world"])
        assert (spec.clients, spec.allocation, spec.partition.alpha) == (round(200 * share), "strict", 0.0)


def test_poisoners_are_met_by_hand():
    """Clients 1 and 3 of four lie; of those asked in the second half (1, 2, 3, 3) three do."""

    class Truth:
        fixed: ClassVar = {"lie": np.array([-1, 5, -1, 5])}

    history = History(4, [{}] * 4, [np.array(c) for c in ([0, 2], [0, 1], [1, 2], [3, 3])], [{}] * 4)
    record = RunRecord(None, history)
    record.__dict__["world"] = Truth()
    assert fedacs_poisoners.met(record) == 0.75
    world = make_world_spec(fedacs_poisoners.poisoned("laptop", "Oort")["world"])
    assert world.faults.label_flipped == 0.2
    text = fedacs_poisoners.poisoned("laptop", fedacs_poisoners.UNBANNED)["selector"]
    assert make_selector(text).blacklist == 0


@pytest.mark.parametrize("environment", [fedacs_fig2.IID, *fedacs_fig2.ENVIRONMENTS])
@pytest.mark.parametrize("scale", ["laptop", "desk"])
def test_there_are_images_enough_to_deal_each_of_them_once(scale, environment, monkeypatch):
    """Section III of the paper: nobody has an image that another one has, however skewed clients are."""
    monkeypatch.setenv("FEDCOHORT_DATA", str(real_data.need("cifar10")))
    keys = fedacs_fig2.dealt_once(scale, environment)
    world = build_world_for(make_world_spec(keys["world"]), make_task_spec(keys["task"]), seed=0)
    dealt = world.train.index
    assert world.population == 200
    assert np.unique(dealt).size == dealt.size == 200 * {"laptop": 100, "desk": 220}[scale]


def test_the_batches_of_section_three():
    """Figs. 2 and 5: batches of 50 at the paper's scale, where Tables II and III have 400."""
    assert "batch_size=50," in fedacs_fig2.dealt_once("paper")["task"]
