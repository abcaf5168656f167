"""The session: every contract check on both sides, turns, and what the selector may see."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from fedcohort.errors import (
    BadParameter,
    CohortError,
    ContractError,
    FedcohortError,
    MissingSignal,
    OutOfTurn,
    RunWarning,
    StateMismatch,
    UndeclaredSignal,
)
from fedcohort.registry import make_selector
from fedcohort.rounds.history import read_history
from fedcohort.rounds.replay import Known, replay
from fedcohort.rounds.session import Session
from fedcohort.selectors.oort import Oort
from fedcohort.selectors.uniform import Uniform
from fedcohort.storage.journal import Journal
from fedcohort.types import Cohort, Outcome, Probed, RoundResult, Signals


class Fixed:
    """Chooses what it is told to choose; remembers what it saw."""

    def __init__(self, clients, needs=(), **columns):
        self.clients, self.columns = clients, columns
        self.needs = frozenset(needs)
        self.seen, self.rounds = [], []

    def select(self, rnd, rng):
        self.rounds.append(rnd)
        return Cohort(np.asarray(self.clients), **self.columns)

    def observe(self, result):
        self.seen.append(result)

    def state_dict(self):
        return {}

    def load_state_dict(self, arrays):
        pass


def result(index, clients, outcome=None, duration=None, **signals):
    clients = np.asarray(clients, np.int64)
    outcome = np.zeros(clients.size, np.int8) if outcome is None else np.asarray(outcome, np.int8)
    duration = np.ones(clients.size) if duration is None else np.asarray(duration, float)
    return RoundResult(index, clients, outcome, duration, Signals({k: np.asarray(v) for k, v in signals.items()}))


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"cohort_size": 0}, "size = 0"),
        ({"cohort_size": -3}, "size = -3"),
        ({"seed": -1}, "seed = -1"),
        ({"max_privacy": "P9"}, "P9"),
    ],
)
def test_bad_settings_are_named(keys, word):
    with pytest.raises(BadParameter, match=word):
        Session(Uniform(), **{"cohort_size": 3, "seed": 0, **keys})


@pytest.mark.parametrize(
    ("chosen", "rule"),
    [
        ([1, 1], "at most once"),
        ([1, 7], "only available"),
        ([-1], "only available"),
        ([0, 1, 2, 3], "at most 3 were asked for"),
        ([0.5, 1.0], "list of slots"),
        ([[0], [1]], "list of slots"),
    ],
)
def test_wrong_cohorts_are_refused(chosen, rule):
    session = Session(Fixed(chosen), cohort_size=3, seed=0)
    with pytest.raises(CohortError, match=rule):
        session.ask(np.arange(5))


def test_columns_must_fit_the_cohort():
    for columns in ({"why": {"a": np.ones(3)}}, {"inclusion": np.ones(1)}, {"directives": {"work": np.ones(5)}}):
        with pytest.raises(CohortError, match="one entry per chosen client"):
            Session(Fixed([0, 1], **columns), cohort_size=3, seed=0).ask(np.arange(5))


def test_turns():
    session = Session(Fixed([2]), cohort_size=1, seed=0)
    with pytest.raises(OutOfTurn, match="ask for a cohort first"):
        session.tell(result(0, [2]))
    session.ask(np.arange(5))
    with pytest.raises(OutOfTurn, match="tell the result"):
        session.ask(np.arange(5))
    with pytest.raises(OutOfTurn):
        session.state_dict()
    session.tell(result(0, [2]))
    session.close()
    with pytest.raises(OutOfTurn, match="closed"):
        session.ask(np.arange(5))


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (result(1, [1, 2]), OutOfTurn),
        (result(0, [1]), ContractError),
        (result(0, [1, 3]), ContractError),
        (result(0, [1, 2], outcome=[0, 9]), BadParameter),
        (result(0, [1, 2], duration=[1.0, np.inf]), BadParameter),
        (result(0, [1, 2], duration=[1.0, -1.0]), BadParameter),
        (result(0, [1, 2], train_loss=[1.0]), ContractError),
    ],
)
def test_wrong_results_are_refused_and_nothing_is_learned(bad, error):
    selector = Fixed([1, 2])
    session = Session(selector, cohort_size=2, seed=0)
    session.ask(np.arange(5))
    with pytest.raises(error):
        session.tell(bad)
    assert selector.seen == []
    session.tell(result(0, [1, 2]))  # the round is still open for a good one
    assert len(selector.seen) == 1


def test_rows_arrive_sorted_blanked_and_restricted():
    selector = Fixed([3, 1, 2], needs={"train_loss"})
    session = Session(selector, cohort_size=3, seed=0)
    session.ask(np.arange(5))
    outcome = [Outcome.LATE, Outcome.OK, Outcome.FILTERED]
    session.tell(result(0, [3, 1, 2], outcome, [5, 6, 7], train_loss=[9.0, 1.0, 2.0], val_loss=[1.0, 1.0, 1.0]))
    seen = selector.seen[0]
    assert seen.clients.tolist() == [1, 2, 3]
    assert seen.duration.tolist() == [6, 7, 5]
    np.testing.assert_array_equal(seen.signals["train_loss"], [1.0, 2.0, np.nan])
    assert seen.ok.tolist() == [True, False, False]
    assert seen.replied.tolist() == [True, True, False]
    with pytest.raises(UndeclaredSignal, match="val_loss"):
        seen.signals["val_loss"]


def test_undeclared_profiles_cannot_be_read():
    selector = Fixed([0])
    Session(selector, cohort_size=1, seed=0).ask(np.arange(3), profiles={"samples": np.ones(3)})
    with pytest.raises(UndeclaredSignal, match="'samples'"):
        selector.rounds[0].profiles["samples"]


def test_needs_are_checked_before_the_first_round():
    with pytest.raises(MissingSignal, match="'utility'"):
        Session(Oort(), cohort_size=1, seed=0, provides=frozenset({"samples"}))
    with pytest.raises(MissingSignal, match=r"label_histogram.*P3"):
        Session(Fixed([0], needs={"label_histogram"}), cohort_size=1, seed=0)
    with pytest.raises(MissingSignal, match="nobody provides"):
        Session(Oort(), cohort_size=1, seed=0, provides=frozenset())
    Session(Fixed([0], needs={"label_histogram"}), cohort_size=1, seed=0, max_privacy="P3")


@pytest.mark.parametrize(
    ("selector", "level", "remedy"),
    [
        ("flash", "P1", "use preset='robust', or allow it with"),
        ("cool-down(inner='flash')", "P1", "use preset='robust' of the inner Flash, or allow it with"),
        ("flash(refresh='none')", "P1", "use reward='improvement', refresh='selected', or allow it with"),
        ("restless-bandit(reward='model')", "P1", "use reward='improvement', or allow it with"),
        ("flash", "P0", "is allowed here; allow it with"),  # what that preset reads is not allowed either
        ("fedacs", "P1", "is allowed here; allow it with"),
    ],
)
def test_a_refused_selector_names_the_arguments_with_which_it_would_do(selector, level, remedy):
    with pytest.raises(MissingSignal) as refusal:
        Session(make_selector(selector), cohort_size=1, seed=0, max_privacy=level)
    assert remedy in str(refusal.value)
    if remedy.startswith("use "):
        name = selector.partition("(")[0] if "inner" not in selector else "flash"
        arguments = remedy.removeprefix("use ").partition(", or")[0].removesuffix(" of the inner Flash")
        Session(make_selector(f"{name}({arguments})"), cohort_size=1, seed=0, max_privacy=level)


def test_probes_are_asked_answered_and_checked():
    selector = Fixed([0], needs={"probe_loss"})
    selector.probe = lambda rnd, rng: np.array([2, 1])
    session = Session(selector, cohort_size=1, seed=0)
    asked = []

    def answer(clients, names):
        asked.append((clients.tolist(), names))
        return Probed(clients, Signals({"probe_loss": clients * 1.0}))

    session.ask(np.arange(3), probe=answer)
    session.tell(result(0, [0]))
    assert asked == [([1, 2], frozenset({"probe_loss"}))]
    assert selector.rounds[0].probed.signals["probe_loss"].tolist() == [1.0, 2.0]
    assert selector.seen[0].probed.clients.tolist() == [1, 2]
    with pytest.raises(MissingSignal, match="nobody answers"):
        session.ask(np.arange(3))
    selector.probe = lambda rnd, rng: np.array([7])
    with pytest.raises(CohortError, match="only available"):
        session.ask(np.arange(3), probe=answer)


def test_same_seed_same_cohorts_other_seed_other_cohorts():
    def cohorts(seed):
        session, out = Session(Uniform(), cohort_size=4, seed=seed), []
        for index in range(6):
            clients = session.ask(np.arange(30)).clients
            out.append(clients.tolist())
            session.tell(result(index, clients))
        return out

    assert cohorts(1) == cohorts(1)
    assert cohorts(1) != cohorts(2)


def test_state_goes_on_in_another_session():
    def play(session, rounds):
        out = []
        for _ in range(rounds):
            cohort = session.ask(np.arange(20), profiles={"samples": np.ones(20)}).clients
            out.append(cohort.tolist())
            session.tell(result(session.index, cohort, utility=cohort + 1.0))
        return out

    whole = play(Session(Oort(), cohort_size=4, seed=5), 12)
    first = Session(Oort(), cohort_size=4, seed=5)
    assert play(first, 5) == whole[:5]
    second = Session(Oort(), cohort_size=4, seed=5)
    second.load_state_dict(first.state_dict())
    assert play(second, 7) == whole[5:]


def test_foreign_state_is_refused():
    session = Session(Oort(), cohort_size=4, seed=5)
    with pytest.raises(StateMismatch):
        session.load_state_dict({"something": np.ones(3)})
    with pytest.raises(StateMismatch, match="Oort"):
        session.load_state_dict({"index": np.array(3), "selector.other": np.ones(3)})


def test_nobody_available_and_population_growth():
    session = Session(Uniform(), cohort_size=4, seed=0)
    assert session.ask(np.empty(0, np.int64), population=5).clients.size == 0
    session.tell(result(0, []))
    cohort = session.ask(np.arange(9), population=9)
    assert cohort.clients.size == 4
    session.tell(result(1, cohort.clients))
    with pytest.raises(BadParameter, match="population"):
        session.ask(np.array([3, 12]), population=9)


def test_questions_that_make_no_sense_are_refused_in_one_sentence():
    def session(**given):
        return Session(Oort(), **{"cohort_size": 3, "seed": 1, **given})

    for given, words in (({"cohort_size": 1.5}, "size"), ({"seed": "a"}, "seed"), ({"seed": True}, "seed")):
        with pytest.raises(BadParameter, match=f"{words} = .*it must be a whole number"):
            session(**given)
    for slots in ([0.5, 1.0], ["a"], [[1, 2]], 3):
        with pytest.raises(BadParameter, match="it must be a list of slots"):
            session().ask(slots)
    with pytest.raises(BadParameter, match="whole number of clients"):
        session().ask(np.arange(5), size=-1)
    for rows in (np.ones(2), np.float32(1.0)):
        with pytest.raises(BadParameter, match=r"'samples' of shape .* one row per slot"):
            session().ask(np.arange(5), profiles={"samples": rows})
    assert session().ask(np.arange(5), profiles={"samples": np.ones(5)}).clients.size == 3


@pytest.mark.parametrize("population", [50, 5000])
def test_availability_of_many_clients_is_short_in_the_journal_and_replayed(population, tmp_path):
    rng = np.random.default_rng(0)
    journal = Journal.create(tmp_path / "journal.db", {})
    session = Session(Uniform(), cohort_size=3, seed=4, journal=journal)
    for index in range(3):
        here = np.flatnonzero(rng.random(population) < (0.9 if index else 0.001))
        session.tell(result(index, session.ask(here, population=population).clients))
    journal.close()
    reader = Journal.read(tmp_path / "journal.db")
    assert max(len(r.body) for r in reader.records("ask")) < 1300
    again = replay(Session(Uniform(), cohort_size=3, seed=4), reader.records(), Known())
    asked = [r.unpack()[0]["clients"].tolist() for r in reader.records("ask")]
    assert [cohort.tolist() for cohort in again] == asked


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ("oort", r"write make_selector\('oort'\)"),
        (Uniform, "this is a class; give an object of it, e.g. Uniform"),
        (object(), "it lacks needs, select, observe"),
        (None, "it lacks needs"),
    ],
)
def test_what_is_no_selector_is_refused(selector, words):
    with pytest.raises(BadParameter, match=words):
        Session(selector, cohort_size=2, seed=0)


def test_needs_are_a_set():
    selector = Fixed([0])
    selector.needs = ["train_loss"]
    with pytest.raises(BadParameter, match="it must be a frozenset"):
        Session(selector, cohort_size=1, seed=0)


def test_lists_and_mappings_do_as_well_as_arrays():
    session = Session(Oort(), cohort_size=2, seed=0)
    cohort = session.ask([0, 1, 2], profiles={"samples": [5, 6, 7]})
    told = RoundResult(0, cohort.clients.tolist(), [Outcome.OK, Outcome.LATE], [1.0, 2.0], {"utility": [0.5, 0.7]})
    session.tell(told)
    assert session.index == 1
    session.ask([0, 1, 2])
    with pytest.raises(ContractError, match="it must be a RoundResult"):
        session.tell(None)


@pytest.mark.parametrize(
    ("profiles", "words"),
    [
        ({"sample": np.ones(5)}, "did you mean samples"),
        ({"train_loss": np.ones(5)}, "this is a signal of side client"),
        ({"samples": np.array(["a"] * 5)}, "it must be numbers"),
        ({"samples": np.array([1, 2, np.nan, 4, 5])}, "'samples' of slot 2: it must be a finite number"),
    ],
)
def test_profiles_that_would_be_ignored_or_mislead(profiles, words):
    session = Session(Oort(), cohort_size=2, seed=0)
    with pytest.raises(FedcohortError, match=words):
        session.ask(np.arange(5), profiles=profiles)
    assert session.ask(np.arange(2), population=5, profiles={"samples": np.array([1, 2, np.nan, 4, 5])}).clients.size


def test_what_the_selector_refuses_is_in_no_journal_and_can_be_told_again(tmp_path):
    journal = Journal.create(tmp_path / "journal.db", {})
    session = Session(Oort(), cohort_size=2, seed=0, journal=journal)
    clients = session.ask(np.arange(4)).clients
    with pytest.raises(MissingSignal, match="result of round 0 without 'utility': selector Oort reads it"):
        session.tell(result(0, clients))
    session.tell(result(0, clients, utility=[1.0, 2.0]))
    assert [(r.kind, r.round) for r in journal.records()][1:] == [("ask", 0), ("tell", 0)]


def test_a_journal_that_fails_once_does_not_tell_the_selector_twice(tmp_path, monkeypatch):
    journal = Journal.create(tmp_path / "journal.db", {})
    chooser = Fixed([0])
    session = Session(chooser, cohort_size=1, seed=0, journal=journal)
    session.ask(np.arange(2))
    with monkeypatch.context() as patched:
        patched.setattr(journal, "append", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space"):
            session.tell(result(0, [0]))
    session.tell(result(0, [0]))
    assert (len(chooser.seen), session.index) == (1, 1)
    assert [r.kind for r in journal.records()][1:] == ["ask", "tell"]


def test_a_selector_that_learns_from_scores_is_told_once_that_there_are_none(recwarn):
    def told(selector, *scores):
        recwarn.clear()
        session = Session(selector, cohort_size=1, seed=0)
        for i, score in enumerate(scores):
            session.ask(np.arange(2))
            session.tell(replace(result(i, [0]), score=score))
        return [str(w.message) for w in recwarn if issubclass(w.category, RunWarning)]

    learns, nan = Fixed([0]), float("nan")
    learns.reads_score = True
    (words,) = told(learns, 0.5, nan, nan)
    assert words.startswith("round 1 has no score, and Fixed learns from it")
    assert told(learns, 0.5, 0.6) == told(Fixed([0]), nan) == []
    assert make_selector("explore(inner='flash-rl')").reads_score
    assert not make_selector("hetero-select").reads_score
    assert make_selector("hetero-select(adaptive=True)").reads_score
    assert not make_selector("favor(mode='pretrained')").reads_score


def test_a_selector_says_once_that_there_is_none_of_a_signal_that_it_learns_from(recwarn):
    warnings.simplefilter("always")

    def told(*gains, outcome=Outcome.OK):
        recwarn.clear()
        selector = Fixed([0], ["model_gain"])
        selector.learns_from = {"model_gain": "learns from nothing else: measure it"}
        session = Session(selector, cohort_size=1, seed=0)
        for i, gain in enumerate(gains):
            session.ask(np.arange(2))
            signals = Signals({} if gain is None else {"model_gain": np.array([gain])})
            session.tell(replace(result(i, [0]), outcome=np.array([outcome], np.int8), signals=signals))
        return [str(w.message) for w in recwarn if issubclass(w.category, RunWarning)]

    nan = float("nan")
    said = "round 0 brings no 'model_gain', and Fixed learns from nothing else: measure it."
    assert told(nan, nan) == told(None, None) == [said]
    assert told(0.1, nan) == told(nan, nan, outcome=Outcome.FAILED) == []


@pytest.mark.parametrize("first", [float("nan"), 0.1])
def test_what_was_missing_is_in_the_journal_and_known_to_a_session_that_goes_on(tmp_path, recwarn, first):
    """Both sessions end with the same notes; the second is loaded behind round 0, which settled what is to be said."""
    notes = []
    journal = Journal.create(tmp_path / "journal.db", {})
    for start in (0, 1):
        selector = Fixed([0], ["model_gain"])
        selector.reads_score, selector.learns_from = True, {"model_gain": "learns from nothing else: measure it"}
        session = Session(selector, cohort_size=1, seed=0, journal=journal)
        session.load_state_dict({"index": np.array(start)})
        recwarn.clear()
        for i in range(start, 3):
            session.ask(np.arange(2))
            gain = first if i == 0 else np.nan
            session.tell(replace(result(i, [0], model_gain=[gain]), score=gain))
        notes.append(session.notes)
        if start == 1 and np.isnan(first):
            assert not [w for w in recwarn if issubclass(w.category, RunWarning)]
    session.close({"ended": "by hand", "notes": ["something else"]})
    assert notes[0] == notes[1]
    said = ["round 0 has no score", "round 0 brings no 'model_gain'"] if np.isnan(first) else ["round 1 has no score"]
    assert [text.partition(",")[0] for text in notes[0]] == said
    assert read_history(journal).notes == [*notes[0], "something else"]
