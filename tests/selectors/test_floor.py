"""The starvation floor: a promise that is kept to the round, and interferes no more than it must."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.errors import BadParameter
from fedcohort.rounds.session import Session
from fedcohort.selectors.wrappers.floor import Floor
from fedcohort.types import Cohort, RoundResult


class Favourites:
    """Always chooses the lowest slots: starves everybody else."""

    needs = frozenset()

    def select(self, rnd, rng):
        return Cohort(rnd.available[: rnd.size])

    def observe(self, result):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, arrays):
        pass


def play(every, population, size, rounds, available=None):
    """Who was asked in which round."""
    session, asked = Session(Floor(inner=Favourites(), every=every), cohort_size=size, seed=1), []
    for index in range(rounds):
        there = np.arange(population) if available is None else available(index)
        cohort = np.sort(session.ask(there, population=population).clients)
        session.tell(RoundResult(index, cohort, np.zeros(cohort.size, np.int8), np.ones(cohort.size)))
        asked.append(cohort)
    return asked


def longest_wait(asked, population):
    worst, last = 0, np.full(population, -1)
    for index, cohort in enumerate(asked):
        last[cohort] = index
        worst = max(worst, int((index - last).max()))
    return worst


@pytest.mark.parametrize(
    ("every", "population", "size"), [(10, 30, 3), (10, 29, 3), (7, 20, 5), (50, 20, 2), (1, 4, 4)]
)
def test_nobody_waits_longer_than_promised(every, population, size):
    """N <= K R, the first case with equality: a client not asked in rounds t+1 .. t+R would break the promise."""
    asked = play(every, population, size, 5 * every)
    assert longest_wait(asked, population) <= every


def test_no_place_is_taken_before_it_must_be():
    """20 clients, 2 places, 50 rounds: the 18 others need 9 rounds, so favourites keep both places for 41 rounds."""
    asked = play(50, 20, 2, 50)
    assert [c.tolist() for c in asked[:41]] == [[0, 1]] * 41
    assert sorted(np.concatenate(asked[41:])) == list(range(2, 20))


def test_an_impossible_promise_becomes_round_robin():
    asked = play(3, 40, 2, 40)
    assert np.bincount(np.concatenate(asked), minlength=40).min() == 2


def test_who_comes_back_overdue_is_first():
    asked = play(5, 12, 3, 30, lambda t: np.arange(11) if t < 20 else np.arange(12))
    assert longest_wait([c[c < 11] for c in asked[:20]], 12) >= 0
    assert any(11 in c for c in asked[20:25])


def test_parameters_are_checked():
    with pytest.raises(BadParameter, match="every = 0"):
        Floor(every=0)
