"""The FedCM studies: published numbers against each other, the set-up of its Table 1, Table 5 end to end in part."""

from dataclasses import replace

import numpy as np
import pytest

from fedcohort import papers
from fedcohort.experiment.metrics import run_metrics as metrics
from fedcohort.experiment.metrics.stored_metrics import RunRecord, record
from fedcohort.experiment.store import Store
from fedcohort.papers import reproduce
from fedcohort.papers.fedcm import fedcm_fig5, fedcm_table2, fedcm_table4, fedcm_table5
from fedcohort.papers.fedcm import fedcm_setting as fedcm
from fedcohort.registry.lookup import make_method, make_world_spec
from fedcohort.rounds.history import History
from fedcohort.testing import example_round
from fedcohort.types import Model

IDS = ["table2", "table3", "table4", "table5", "fig5", "fig6", "training"]


def test_every_study_is_there():
    assert [s.id for s in papers.chosen("fedcm")] == [f"fedcm:{name}" for name in IDS]


def test_speed_ups_that_table_5_prints():
    """100 / rounds, printed beside the rounds."""
    printed = {
        (fedcm.CLIENT, fedcm.PROX): (None, None, 1.19),
        (fedcm.CLIENT, fedcm.PDP): (1.92, 1.75, 2.04),
        (fedcm.CLIENT, fedcm.UCB): (None, 2.86, 1.87),
        (fedcm.CLIENT, fedcm.TS): (None, 3.23, 1.96),
        (fedcm.CLASS, fedcm.PROX): (1.41, 1.92, 1.69),
        (fedcm.CLASS, fedcm.PDP): (2.17, 2.86, 2.94),
        (fedcm.CLASS, fedcm.UCB): (None, 3.70, 3.03),
        (fedcm.CLASS, fedcm.TS): (None, 4.17, 4.00),
    }
    for (world, algorithm), speeds in printed.items():
        for rounds, speed in zip(fedcm_table5.PUBLISHED[world][algorithm].values(), speeds, strict=True):
            assert (rounds is None) == (speed is None)
            assert rounds is None or 100 / rounds == pytest.approx(speed, abs=0.02)


def test_the_headline_gains():
    """16.75 % and 37.25 % of the abstract are relative to the new accuracy."""
    two, four = fedcm_table2.PUBLISHED[fedcm_table2.NON_IID], fedcm_table4.PUBLISHED[fedcm.CLASS]
    new, old = two["Dirac delta"]["0.6"], two["without CA"]["0.6"]
    assert round(100 * (new - old) / new, 2) == 16.75
    new, old = four[fedcm.TS]["classification loss"], four[fedcm.AVG]["without CA"]
    assert round(100 * (new - old) / new, 2) == 37.25


def test_table_1_of_the_paper():
    keys = {who: fedcm.run("paper", fedcm.WORLDS[fedcm.CLASS], who) for who in (fedcm.AVG, fedcm.PROX, fedcm.PDP)}
    assert {who: k["selector"] for who, k in keys.items()} == {
        fedcm.AVG: "uniform",
        fedcm.PROX: "proportional(replacement=True)",
        fedcm.PDP: "uniform",
    }
    methods = {who: make_method(k["method"]) for who, k in keys.items()}
    assert (methods[fedcm.AVG].form, methods[fedcm.PROX].form, methods[fedcm.PROX].mu) == ("original", "uniform", 0.1)
    bandit = make_method(fedcm.run("paper", fedcm.WORLDS[fedcm.CLASS], fedcm.TS, "accuracy")["method"])
    assert (bandit.name, bandit.inner.name, bandit.score) == ("fedca", "fedpdp", "accuracy")
    for world in (*fedcm.WORLDS.values(), *fedcm_table2.MIXES.values()):
        assert make_world_spec(world).clients == 20
    assert {int(float(ratio) * 20): size for ratio, size in fedcm_table2.SIZES.items()} == {4: 4, 8: 8, 12: 12}


def test_equal_weights_are_the_equations_of_table_1():
    """N = 20, p_k = 1/20, whatever clients own: eq. 3 is 12/20 w + 1/20 of each of 8 models, FedPdp their mean."""
    rng = np.random.default_rng(0)
    models, w = rng.normal(size=(8, 5)), rng.normal(size=5).astype(np.float32)
    _, updates, context = example_round(models - w, weight=[4, 10, 100, 1, 50, 30, 20, 5])
    model, context = Model(w), replace(context, population=20, samples=np.full(20, 10))
    made = {}
    for who in (fedcm.AVG, fedcm.PDP):
        for equal in (False, True):
            text = fedcm.run("desk", fedcm.WORLDS[fedcm.CLIENT], who, equal=equal)["method"]
            made[who, equal] = make_method(text).aggregate(model, updates, context).model.params
    np.testing.assert_allclose(made[fedcm.AVG, True], 0.6 * w + models.sum(axis=0) / 20, rtol=1e-5)
    np.testing.assert_allclose(made[fedcm.PDP, True], models.mean(axis=0), rtol=1e-5)
    assert np.abs(made[fedcm.PDP, True] - made[fedcm.PDP, False]).max() > 0.1


def test_tables_3_4_and_5_share_their_runs():
    runs = {n: {c.digest() for c in reproduce.plan(papers.studies()[f"fedcm:{n}"], "laptop", 1).runs()} for n in IDS}
    assert runs["table3"] < runs["table5"] < runs["table4"]
    assert len(runs["table4"] - runs["table5"]) == 4  # equal weights, our own rows
    assert len(runs["table2"] & runs["table3"]) == 3  # ratio 0.4, alpha 0.1: three methods


def test_rounds_to_the_accuracy_of_fedavg(tmp_path):
    """The class world, without CA and one bandit: the target is FedAvg's own terminal accuracy, counted by hand."""
    rows = (fedcm.row(fedcm.CLASS, None), fedcm.row(fedcm.CLASS, "accuracy"))
    kept = {(rows[0], fedcm.AVG), (rows[0], fedcm.PROX), (rows[1], fedcm.TS)}
    whole = papers.studies()["fedcm:table5"]
    small = replace(
        whole,
        cells=lambda scale: [c for c in whole.cells(scale) if c.place in kept],
        claims=lambda scale: [c for c in whole.claims(scale) if {*c.left, *c.right} <= kept],
    )
    work, store = reproduce.plan(small, "smoke"), Store(tmp_path)
    found = reproduce.perform(work, store, workers=1)
    assert not found["failed"]
    assert len(found["claims"]) == 2
    history = {place: record(store.folder(work.configs[place, 0])).history.accuracy for place in kept}
    goal = metrics.terminal(history[rows[0], fedcm.AVG], 1)  # a fifth of four rounds is one
    for cell in found["cells"]:
        late = [i + 1 for i, a in enumerate(history[cell["row"], cell["column"]]) if a >= goal]
        assert cell["values"]["0"] == (late[0] if late else None)
        assert cell["missing"] == "not reached"


def test_deviation_over_clients_by_hand():
    """0.2, 0.6 and a client without samples: a deviation of 0.2."""
    record = RunRecord(None, History(3, []), clients=np.array([0.2, 0.6, np.nan]))
    assert fedcm_fig5._spread(record, None) == pytest.approx(0.2)
    assert "epochs=1" in fedcm_fig5.keys_of("laptop", fedcm.CLASS, 5.0, epochs=1)["task"]
    assert make_world_spec(fedcm_fig5.keys_of("laptop", fedcm.CLIENT, 5.0)["world"]).partition.alpha == 5.0
