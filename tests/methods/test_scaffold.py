"""SCAFFOLD on quadratics (spec part D, item 4), against a textbook loop written here."""

import numpy as np
import pytest
from quadratic_clients import Clients, one_round, play

from fedcohort.errors import BadParameter, MissingSignal, StateMismatch
from fedcohort.methods.fedavg import FedAvg
from fedcohort.methods.scaffold import Scaffold
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Plan, Updates

CLIENTS = Clients.random(6, 3, seed=4)
N = 6
PLAN = Plan(lr=0.05)
EQUAL = np.full(N, 1 / N)
MODEL = Model(np.zeros(3, np.float32))


def some(t: int) -> np.ndarray:
    """Two or three clients, uniformly."""
    rng = np.random.default_rng([1, t])
    return rng.permutation(N)[: rng.integers(2, 4)]


def biased(t: int) -> np.ndarray:
    """Two clients, drawn with odds from 0.40 down to 0.02."""
    odds = np.array([0.4, 0.25, 0.17, 0.1, 0.06, 0.02])
    return np.random.default_rng([2, t]).choice(N, 2, replace=False, p=odds)


def textbook(rounds: int, choose, option: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The algorithm in double precision with dictionaries and loops; (w, c, c_k)."""
    w, c, ck = np.zeros(3), np.zeros(3), {k: np.zeros(3) for k in range(N)}
    for t in range(rounds):
        moves, shifts = [], []
        for k in sorted(choose(t)):
            y = w.copy()
            for _ in range(CLIENTS.tau[k]):
                y = y - 0.05 * (CLIENTS.a[k] * (y - CLIENTS.c[k]) - ck[k] + c)
            at_w = CLIENTS.a[k] * (w - CLIENTS.c[k])
            new = at_w if option == "I" else ck[k] - c + (w - y) / (CLIENTS.tau[k] * 0.05)
            moves.append(y - w)
            shifts.append(new - ck[k])
            ck[k] = new
        w = w + np.mean(moves, axis=0)
        c = c + len(moves) / N * np.mean(shifts, axis=0)
    return w, c, np.array([ck[k] for k in range(N)])


@pytest.mark.parametrize("option", ["I", "II"])
def test_follows_the_textbook(option: str):
    method = Scaffold(option=option)
    w = play(method, CLIENTS, 25, PLAN, some)
    want, c, ck = textbook(25, some, option)
    assert np.allclose(w, want, atol=2e-5)
    assert np.allclose(method.state.mean(3), c, atol=2e-5)
    assert np.allclose(method.state.read(np.arange(N), 3), ck, atol=2e-5)


def test_first_round_from_zeros_is_fedavg():
    one = one_round(Scaffold(), CLIENTS, MODEL, np.array([0, 2, 5]), PLAN).model.params
    two = one_round(FedAvg(form="uniform"), CLIENTS, MODEL, np.array([0, 2, 5]), PLAN).model.params
    assert np.array_equal(one, two)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("choose", [None, some, biased], ids=["all", "partial", "biased"])
def test_reaches_the_uniform_optimum(option: str, choose):
    """Unequal steps, whoever is selected how often. FedAvg on the same rounds does not."""
    true = CLIENTS.optimum(EQUAL)
    rounds = 120 if choose is None else 700
    assert np.allclose(play(Scaffold(option=option), CLIENTS, rounds, PLAN, choose), true, atol=1e-4)
    if option == "II":
        assert np.abs(play(FedAvg(form="uniform"), CLIENTS, 200, PLAN, choose) - true).max() > 0.03


@pytest.mark.parametrize("option", ["I", "II"])
def test_data_weighting_reaches_the_weighted_optimum(option: str):
    p = CLIENTS.n / CLIENTS.n.sum()
    got = play(Scaffold(option=option, weighting="data"), CLIENTS, 700, PLAN, some)
    assert np.allclose(got, CLIENTS.optimum(p), atol=1e-4)
    assert np.abs(CLIENTS.optimum(p) - CLIENTS.optimum(EQUAL)).max() > 0.05


def test_never_selected_clients_drop_out():
    """Without client 5, c holds the others only: the optimum is that of the other five."""
    got = play(Scaffold(), CLIENTS, 600, PLAN, lambda t: np.random.default_rng([3, t]).permutation(5)[:3])
    others = np.r_[np.ones(5), 0.0]
    assert np.allclose(got, CLIENTS.optimum(others), atol=1e-4)


def test_momentum_needs_the_true_divisor():
    """rho = 0.9, 40 steps: dividing by eta |a|_1 converges; the textbook's eta tau diverges (loop below)."""
    clients = Clients.random(5, 2, seed=6, steps=[40] * 5)
    got = play(Scaffold(), clients, 60, Plan(lr=0.01, momentum=0.9))
    assert np.allclose(got, clients.optimum(np.ones(5)), atol=1e-4)
    w, c, ck = np.zeros(2), np.zeros(2), np.zeros((5, 2))
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(60):
            ends = []
            for k in range(5):
                y, b = w.copy(), np.zeros(2)
                for _ in range(40):
                    b = 0.9 * b + clients.a[k] * (y - clients.c[k]) - ck[k] + c
                    y = y - 0.01 * b
                ends.append(y)
            ck = ck - c + (w - np.array(ends)) / (40 * 0.01)
            w, c = np.mean(ends, axis=0), ck.mean(axis=0)
    assert not np.abs(w).max() < 10


def lost(t: int, cohort: np.ndarray) -> np.ndarray:
    """Four in ten uploads never arrive."""
    return cohort[np.random.default_rng([9, t]).random(cohort.size) < 0.4]


def test_commits_only_what_arrived():
    """A lost upload changes neither c nor c_k: the optimum is reached and c stays the mean of the c_k."""
    method = Scaffold()
    got = play(method, CLIENTS, 900, PLAN, some, lost)
    assert np.allclose(got, CLIENTS.optimum(EQUAL), atol=1e-4)
    gap = method.state.mean(3) - method.state.read(np.arange(N), 3).mean(axis=0)
    assert np.abs(gap).max() < 1e-6


def test_committing_at_the_client_would_not_do():
    """The same losses with c_k changed before the upload: c and the c_k part for ever."""
    w, c, ck = np.zeros(3), np.zeros(3), np.zeros((N, 3))
    for t in range(900):
        cohort = np.sort(some(t))
        gone = lost(t, cohort)
        moves, shifts = [], []
        for k in cohort:
            y = w.copy()
            for _ in range(CLIENTS.tau[k]):
                y = y - 0.05 * (CLIENTS.a[k] * (y - CLIENTS.c[k]) - ck[k] + c)
            new = ck[k] - c + (w - y) / (CLIENTS.tau[k] * 0.05)
            shift, ck[k] = new - ck[k], new
            if k not in gone:
                moves.append(y - w)
                shifts.append(shift)
        if moves:
            w, c = w + np.mean(moves, axis=0), c + np.sum(shifts, axis=0) / N
    assert np.abs(c - ck.mean(axis=0)).max() > 0.01
    assert np.abs(w - CLIENTS.optimum(EQUAL)).max() > 0.01


@pytest.mark.parametrize("weighting", ["uniform", "data"])
def test_invariant_every_round_and_through_growth(weighting: str):
    """c = sum of weights * c_k after every round, while the population grows from four to six."""
    method, model = Scaffold(weighting=weighting), MODEL
    for t in range(12):
        size = 4 if t < 6 else 6
        cohort = np.random.default_rng([5, t]).permutation(size)[:2]
        model = one_round(method, CLIENTS, model, cohort, PLAN, population=size, index=t).model
        n = CLIENTS.n[:size].astype(float)
        weight = n / n.sum() if weighting == "data" else np.full(size, 1 / size)
        assert np.allclose(method.state.mean(3), weight @ method.state.read(np.arange(size), 3), atol=1e-6)


def test_correction_is_c_minus_c_k():
    method = Scaffold()
    play(method, CLIENTS, 5, PLAN, some)
    who = np.array([0, 1, 4, 77])  # 77 was never seen
    plan = method.prepare(PLAN, MODEL, who)
    ck = method.state.read(who, 3)
    assert not ck[3].any()
    assert ck[:3].any()
    assert np.allclose(plan.correction, method.state.mean(3) - ck, atol=1e-6)
    assert "full_gradient" not in plan.measure
    assert "full_gradient" in Scaffold(option="I").prepare(PLAN, MODEL, who).measure


def test_corrections_of_a_cohort_add_up_to_nothing_where_it_is_its_own_reference():
    """Eq. 6: -c_k + mean_S c_j, whoever is asked."""
    method = Scaffold(option="I", reference="cohort")
    method.state.write(np.array([0, 1, 4]), np.array([[3.0, 0.0, 1.0], [1.0, 2.0, 0.0], [0.0, 0.0, 6.0]]), np.ones(3))
    plan = method.prepare(PLAN, MODEL, np.array([0, 4, 77]))
    assert np.allclose(plan.correction[0], [-2.0, 0.0, 4 / 3], atol=1e-6)  # mean (1, 0, 7/3) less (3, 0, 1)
    assert np.allclose(plan.correction.sum(axis=0), 0.0, atol=1e-5)
    with pytest.raises(BadParameter, match="option II reads the mean of all"):
        Scaffold(reference="cohort")


def left_out(rounds: int, choose, option: str) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Eq. 7 in double precision: c is the mean of the c_k that exist, and who has none is not corrected; (w, c_k)."""
    w, ck = np.zeros(3), {}
    for t in range(rounds):
        c, ends, new = np.mean([*ck.values()], axis=0) if ck else np.zeros(3), [], {}
        for k in sorted(choose(t)):
            y, shift = w.copy(), c - ck[k] if k in ck else np.zeros(3)
            for _ in range(CLIENTS.tau[k]):
                y = y - 0.05 * (CLIENTS.a[k] * (y - CLIENTS.c[k]) + shift)
            at_w = CLIENTS.a[k] * (w - CLIENTS.c[k])
            new[k] = at_w if option == "I" else (w - y) / (CLIENTS.tau[k] * 0.05) - shift
            ends.append(y)
        w = np.mean(ends, axis=0)
        ck |= new
    return w, ck


@pytest.mark.parametrize("option", ["I", "II"])
def test_clients_without_a_variate_can_be_left_out(option: str):
    """Against a loop; and with three of six clients never asked it is the paper's method among the other three."""

    def three(t: int) -> np.ndarray:
        return np.array([0, 3, 5]) if t % 3 == 0 else np.array([0, 3, 5])[[t % 2, 2]]

    for choose in (some, biased, three):
        method = Scaffold(option=option, unknown="left out")
        w = play(method, CLIENTS, 25, PLAN, choose)
        want, ck = left_out(25, choose, option)
        assert np.allclose(w, want, atol=2e-5)
        assert np.allclose(method.state.mean_written(3), np.mean([*ck.values()], axis=0), atol=2e-5)
    part = Clients(*(getattr(CLIENTS, name)[[0, 3, 5]] for name in ("a", "c", "n", "tau")))
    alone = play(Scaffold(option=option), part, 5, PLAN, lambda t: np.searchsorted([0, 3, 5], three(t)))
    assert np.allclose(play(Scaffold(option=option, unknown="left out"), CLIENTS, 5, PLAN, three), alone, atol=2e-5)
    assert np.abs(play(Scaffold(option=option), CLIENTS, 5, PLAN, three) - alone).max() > 0.03


def test_left_out_changes_nothing_once_everybody_was_asked():
    one, two = Scaffold(option="I"), Scaffold(option="I", unknown="left out")
    for method in (one, two):
        play(method, CLIENTS, 3, PLAN)
    who = np.array([0, 2, 5])
    assert np.array_equal(one.prepare(PLAN, MODEL, who).correction, two.prepare(PLAN, MODEL, who).correction)
    with pytest.raises(BadParameter, match="use one of the two"):
        Scaffold(option="I", reference="cohort", unknown="left out")


def test_own_correction_comes_on_top():
    plan = Scaffold().prepare(Plan(correction=np.full(3, 0.5, np.float32)), MODEL, np.array([0, 1]))
    assert np.allclose(plan.correction, 0.5)
    assert plan.correction.shape == (2, 3)


def test_state_is_compact_and_spills_to_disk(tmp_path):
    memory, disk = Scaffold(), Scaffold(memory_limit=0, spill_folder=str(tmp_path))
    a = play(memory, CLIENTS, 8, PLAN, lambda t: np.array([1, 4]))
    b = play(disk, CLIENTS, 8, PLAN, lambda t: np.array([1, 4]))
    assert np.array_equal(a, b)
    assert disk.state.spilled
    assert not memory.state.spilled
    saved = disk.state_dict()
    assert saved["scaffold-uniform.slots"].tolist() == [1, 4]
    assert saved["scaffold-uniform.rows"].shape == (2, 3)
    for key, value in memory.state_dict().items():
        assert np.array_equal(value, saved[key])
    assert list(tmp_path.iterdir()) == []  # the file has no name, so nothing is left behind


def test_spills_when_the_limit_is_passed():
    """16 rows of 3 floats are 192 bytes; the seventeenth client doubles them to 384."""
    method = Scaffold(memory_limit=200)
    for k in range(17):
        updates = Updates(np.array([k]), np.full((1, 3), k + 1, np.float32), np.ones(1), np.ones(1, np.int64))
        assert not method.state.spilled
        method.aggregate(MODEL, updates, Aggregation(k, Plan(lr=1.0), 20, np.ones(20, int), np.array([k])))
    assert method.state.spilled
    rows = method.state.read(np.arange(18), 3)
    assert rows[16].any()
    assert rows[0].any()
    assert not rows[17].any()


def test_option_one_needs_a_finite_gradient():
    method = Scaffold(option="I")
    updates = Updates(np.arange(3), np.ones((3, 3), np.float32), np.ones(3), np.ones(3, np.int64))
    context = Aggregation(0, PLAN, 3, np.ones(3, int), np.arange(3))
    with pytest.raises(MissingSignal, match="full_gradient"):
        method.aggregate(MODEL, updates, context)
    gradient = np.ones((3, 3), np.float32)
    gradient[1, 0] = np.nan
    made = method.aggregate(MODEL, Updates(**{**fields(updates), "extras": {"full_gradient": gradient}}), context)
    assert made.accepted.tolist() == [True, False, True]
    assert method.state_dict()["scaffold-uniform.slots"].tolist() == [0, 2]
    assert np.array_equal(made.model.params, np.ones(3))


def fields(updates: Updates) -> dict:
    return {name: getattr(updates, name) for name in ("clients", "delta", "weight", "steps")}


def test_no_step_no_variate():
    """Option II has nothing to divide by: left out of w, c and c_k alike."""
    method = Scaffold()
    updates = Updates(np.arange(2), np.ones((2, 3), np.float32), np.ones(2), np.array([0, 3]))
    made = method.aggregate(MODEL, updates, Aggregation(0, PLAN, 2, np.ones(2, int), np.arange(2)))
    assert made.accepted.tolist() == [False, True]
    assert method.state_dict()["scaffold-uniform.slots"].tolist() == [1]


def test_adam():
    plan = Plan(optimiser="adam")
    with pytest.raises(BadParameter, match=r'optimiser="sgd".*option="I"'):
        Scaffold().prepare(plan, MODEL, np.arange(2))
    assert Scaffold(option="I").prepare(plan, MODEL, np.arange(2)).optimiser == "adam"


def test_refuses_other_models_and_weightings():
    method = Scaffold()
    play(method, CLIENTS, 2, PLAN)
    with pytest.raises(StateMismatch):
        method.prepare(PLAN, Model(np.zeros(5, np.float32)), np.arange(2))
    with pytest.raises(StateMismatch):
        Scaffold(weighting="data").load_state_dict(method.state_dict())
    twice = method.state_dict()
    twice["scaffold-uniform.slots"] = np.zeros(N, np.int64)
    with pytest.raises(StateMismatch):
        Scaffold().load_state_dict(twice)
