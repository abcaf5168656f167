"""Who is asked and who is used: counted, reported, and corrected by the policy; on both backends."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from tests.flower.grid import FakeClient, FakeGrid, start, timing
from tests.stress.federation import World, simulated

from fedcohort.flower import CohortStrategy
from fedcohort.registry.lookup import make_selector
from fedcohort.rounds.history import read_history
from fedcohort.rounds.policy import RoundPolicy
from fedcohort.rounds.usage import Usage
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.types import Updates

CLIENTS, ROUNDS = 30, 20
SECONDS = np.sort(np.exp(np.random.default_rng(1).normal(0.0, 1.0, CLIENTS)))


class Slow(World):
    def seconds(self, index, clients, work):
        return SECONDS[clients]


def in_simulation(**policy):
    made = simulated(make_selector("uniform"), Slow(CLIENTS), rounds=ROUNDS, deadline=100.0, cohort_size=6, **policy)
    with np.errstate(all="ignore"):
        for _ in made.steps():
            pass
    return made.engine.usage


def on_flower(state_dir=None, rounds=ROUNDS, **policy):
    grid = FakeGrid([FakeClient(f"{i:02}", seconds=float(SECONDS[i])) for i in range(CLIENTS)])
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0),
        selector="uniform",
        cohort_size=6,
        deadline=100.0,
        state_dir=state_dir,
        **timing(grid),
        **policy,
    )
    start(strategy, grid, rounds=rounds)
    return strategy.usage


def by_third(counts):
    return counts.reshape(3, -1).sum(axis=1)


@pytest.mark.parametrize("run", [in_simulation, on_flower])
def test_what_the_selector_chose_is_used_unless_rounds_close_early(run):
    """The default uses everybody that was asked; over-selection starves the slow third, and each remedy helps."""
    plain = run()
    assert plain.asked.sum() == plain.used.sum() == 6 * ROUNDS
    starved = run(over_select=1.5)
    fast, _, slow = by_third(starved.used) / by_third(starved.asked)
    assert fast == 1.0
    assert slow < 0.35
    waited = run(over_select=1.5, wait_for_slow=0.5)
    assert (by_third(waited.used) / by_third(waited.asked))[2] > 1.8 * slow
    everybody = run(over_select=1.5, wait_for_slow=1.0)
    assert everybody.asked.sum() == everybody.used.sum() == 9 * ROUNDS
    floored = run(over_select=1.5, use_floor=0.5)
    assert (floored.used >= 0.5 * floored.asked).all()  # the floor holds for every single client
    assert floored.used.sum() < floored.asked.sum()  # and rounds still close early


def test_the_end_of_a_flower_run_says_who_was_never_used(caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        usage = on_flower(over_select=2.0, close_after=3)
    said = f"{usage.never.size} of 30 clients that were asked were never used"
    assert [said in r.getMessage() for r in caplog.records].count(True) == 1
    caplog.clear()
    on_flower()
    assert "never used" not in caplog.text


def test_the_journal_says_the_same_and_a_resumed_run_goes_on_counting(tmp_path):
    on_flower(tmp_path, rounds=10, over_select=1.5, use_floor=0.5)
    part = read_history(JournalReader(tmp_path / "journal.db"), CLIENTS).usage()
    assert part.asked.sum() == 90
    resumed = on_flower(tmp_path, over_select=1.5, use_floor=0.5)
    found = read_history(JournalReader(tmp_path / "journal.db"), CLIENTS).usage()
    np.testing.assert_array_equal(found.used, resumed.used)
    np.testing.assert_array_equal(found.asked, resumed.asked)
    assert resumed.asked.sum() == 9 * ROUNDS
    assert (resumed.used >= 0.5 * resumed.asked).all()


def updates(weight):
    m = len(weight)
    return Updates(np.arange(m), np.zeros((m, 1), np.float32), np.array(weight, np.float64), np.ones(m, np.int64))


def test_weights_are_divided_by_the_probability_of_being_used():
    """By hand: 8 of 12 asks were used, r = 2/3. p = (4 + 4/3) / 6 = 8/9, (3 + 4/3) / 6 = 13/18, (1 + 4/3) / 6 = 7/18;
    1/p = 1.125, 1.385, 2.571, which makes 5.081 of three weights of 1: all are divided by 1.694."""
    usage = Usage.of(3, [[0, 1, 2]] * 4, [[0, 1, 2], [0, 1], [0, 1], [0]])
    inverse = np.array([9 / 8, 18 / 13, 18 / 7])
    found = usage.weighted(updates([1.0, 1.0, 1.0]), 1.0).weight
    np.testing.assert_allclose(found, 3 * inverse / inverse.sum())
    half = usage.weighted(updates([10.0, 20.0, 30.0]), 0.5).weight
    np.testing.assert_allclose(half.sum(), 60.0)
    np.testing.assert_allclose(half / half[0], np.array([10, 20, 30]) * np.sqrt(inverse) / (10 * np.sqrt(inverse[0])))


def test_without_strength_or_replies_nothing_changes():
    usage = Usage.of(3, [[0, 1, 2]], [[0]])
    some = updates([1.0, 2.0])
    assert usage.weighted(some, 0.0) is some
    assert len(usage.weighted(updates([]), 1.0)) == 0


def test_a_wrapped_strategy_gets_the_weights_of_the_round():
    """Three clients set the model to 0, 0.1 and 1; the last one is slow, and used in rounds 1 and 8."""

    class Sets(FakeClient):
        def train(self, message):
            self.step = float(self.name) - message.content["arrays"]["w"].numpy()
            return super().train(message)

    def model(**policy):
        grid = FakeGrid([Sets("0"), Sets("0.1"), Sets("1", seconds=3.0)])
        keys = {"selector": "uniform", "cohort_size": 3, "deadline": 100.0, "close_after": 2, "use_floor": 0.3}
        strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), **keys, **policy, **timing(grid))
        result = start(strategy, grid, {"w": np.zeros(1, np.float32)}, rounds=8)
        assert strategy.history[-1]["ok"] == 3.0
        return float(result.arrays.to_numpy_ndarrays()[0][0]), strategy.usage.used - 1, strategy.usage.asked - 1

    assert model()[0] == pytest.approx(1.1 / 3)
    found, used, asked = model(weight_by_use=1.0)
    assert used[1] < asked[1]  # slots go by length of the ids: 0, 1, 0.1
    inverse = (asked + 2.0) / (used + 2.0 * used.sum() / asked.sum())
    assert found == pytest.approx((0.1 * inverse[2] + inverse[1]) / inverse.sum(), rel=1e-5)


def test_policies_are_checked():
    with pytest.raises(ValueError, match="wait_for_slow"):
        RoundPolicy(wait_for_slow=1.5)
    with pytest.raises(ValueError, match="use_floor"):
        RoundPolicy(cohort_size=5, buffer_size=2, use_floor=0.5)
    assert RoundPolicy(cohort_size=10, over_select=2.0, wait_for_slow=0.25).waits_for(20) == 13
    assert not RoundPolicy(over_select=2.0, wait_for_slow=1.0).closes_early
    assert RoundPolicy(over_select="adaptive").closes_early


def test_a_deployment_that_grew_is_read_with_all_its_clients(tmp_path):
    for count, rounds in ((3, 2), (8, 12)):
        grid = FakeGrid([FakeClient(str(i)) for i in range(count)])
        settings = {"cohort_size": 3, "deadline": 9.0, "state_dir": tmp_path, **timing(grid)}
        start(CohortStrategy(FedAvg(fraction_evaluate=0.0), selector="uniform", **settings), grid, rounds=rounds)
    history = read_history(JournalReader(tmp_path / "journal.db"))
    assert (history.population, history.participation().size, history.participation().sum()) == (8, 8, 36)
