"""The contract of a selector as tests. Subclass, override `make`, and let pytest collect it::

    from fedcohort.testing import SelectorContract

    class TestMine(SelectorContract):
        def make(self):
            return Mine()

What does not apply is named in `exempt`, with the reason: ``exempt = {"learns": "draws uniformly at random"}``. A
selector may have an attribute of the same name (a wrapper has its inner selector's); the two are joined. A reason is
required, and is printed with the skipped test.
"""

from __future__ import annotations

import io
import random
import unittest
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import TableError
from fedcohort.errors import FedcohortError
from fedcohort.protocols import Exempting, Selector
from fedcohort.signals import get
from fedcohort.testing.synthetic_federation import SyntheticFederation
from fedcohort.types import Arrays, Cohort, Outcome, Round

Step = tuple[Round, Cohort]

CLAUSES = frozenset(
    {
        "exact_size",  # chooses min(K, available) clients
        "seeds",  # other seeds, other cohorts
        "learns",  # prefers the better half of a two-class world
        "uniform_ties",  # identical clients are chosen uniformly
        "relabelling",  # slots carry no meaning
        "growth",  # new clients may register between rounds
    }
)


class SelectorContract:
    """What every selector promises, one test per clause. Sizes are class attributes: lower them for a slow selector.

    >>> from fedcohort.selectors.uniform import Uniform
    >>> class TestUniform(SelectorContract):
    ...     def make(self):
    ...         return Uniform()
    >>> TestUniform().test_small_populations()
    """

    exempt: ClassVar[Mapping[str, str]] = {}  # clause -> why it does not apply
    flipped: ClassVar[frozenset[str]] = frozenset()  # signals of which this selector rightly wants *low* values
    may_be_nan: ClassVar[Mapping[str, str]] = {}  # state column -> why NaN is its legal "unknown"
    min_population: ClassVar[int] = 1
    population: ClassVar[int] = 24
    size: ClassVar[int] = 6
    rounds: ClassVar[int] = 8  # of an ordinary run
    runs: ClassVar[int] = 120  # independent runs behind a statistical clause
    depth: ClassVar[int] = 3  # rounds before the one that a statistical clause looks at
    horizon: ClassVar[int] = 60  # rounds given to learn
    preference: ClassVar[float] = 0.6  # share of good clients required in the last third of the horizon

    def make(self) -> Selector:
        """A fresh selector."""
        raise NotImplementedError("override make() to return a fresh selector")

    # membership and sizes

    def test_needs_are_in_the_catalogue(self) -> None:
        """`needs` is a frozenset of known signals, and the exemptions are known clauses with reasons."""
        needs = self.make().needs
        assert isinstance(needs, frozenset), f"needs is a {type(needs).__name__}, not a frozenset"
        for name in needs:
            get(name)
        for clause, reason in self._exemptions().items():
            assert clause in CLAUSES, f"there is no clause {clause!r}; exempt may name {sorted(CLAUSES)}"
            assert reason.strip(), f"the exemption from {clause!r} needs a reason"

    def test_cohorts_are_unique_available_and_of_the_right_size(self) -> None:
        """The federation checks membership itself; sizes and side columns are checked here."""
        steps = self._federation(availability=0.7).play(self.make(), self.rounds, self.size)
        for rnd, cohort in steps:
            if "exact_size" not in self._exemptions():
                want = min(rnd.size, rnd.available.size)
                assert cohort.clients.size == want, f"round {rnd.index}: {cohort.clients.size} chosen, not {want}"
            _check_side_columns(cohort)

    def test_chooses_somebody(self) -> None:
        """A selector without an exact size must still choose somebody."""
        for rnd, cohort in self._federation().play(self.make(), self.rounds, self.size):
            assert cohort.clients.size > 0, f"round {rnd.index}: nobody chosen of {rnd.available.size}"

    def test_odd_sizes(self) -> None:
        """K = 0, K > N, nobody available: defined behaviour, and the run continues."""
        selector, fed = self.make(), self._federation()
        assert fed.play(selector, [0], 0)[0][1].clients.size == 0, "K = 0 must choose nobody"
        fed.play(selector, [1, 2], self.population + 10)
        fed.availability = 0.0
        assert fed.play(selector, [3], self.size)[0][1].clients.size == 0, "nobody is available, yet somebody is chosen"
        fed.availability = 1.0
        assert fed.play(selector, [4], self.size)[0][1].clients.size > 0

    def test_small_populations(self) -> None:
        """One client (or `min_population`) is a federation too."""
        for population in {self.min_population, self.min_population + 1}:
            self._federation(population=population).play(self.make(), self.rounds, self.size)

    # repeatability and randomness

    def test_select_is_repeatable_and_changes_nothing(self) -> None:
        """Equal generators: equal cohorts, and state that differs by nothing but room for new clients."""
        selector, fed = self.make(), self._federation()
        for index in range(self.rounds):
            before = selector.state_dict()
            rnd, first = fed.ask(selector, index, self.size)
            between = selector.state_dict()
            again, second = fed.ask(selector, index, self.size)
            _same_cohort(first, second, f"round {index}: select with an equal generator")
            _same_state(selector.state_dict(), between, f"round {index}: select changed the state")
            _same_rows(before, between, f"round {index}: select changed the state")
            if rnd.probed is not None and again.probed is not None:
                same = np.array_equal(rnd.probed.clients, again.probed.clients)
                assert same, f"round {index}: probe with an equal generator names other clients"
            selector.observe(fed.result(rnd, first, selector.needs))

    def test_two_objects_make_the_same_run(self) -> None:
        """Nothing but state, round and generator matters: not the process, not other instances."""
        one = self._federation().play(self.make(), self.rounds, self.size)
        two = self._federation().play(self.make(), self.rounds, self.size)
        _same_future(one, two, "a second fresh selector")

    def test_other_seeds_choose_differently(self) -> None:
        """The generator is really used."""
        self._skip_if_exempt("seeds")
        one, two = (self._federation().play(self.make(), self.rounds, self.size, seed) for seed in (1, 2))
        differ = [
            not np.array_equal(np.sort(a.clients), np.sort(b.clients)) for (_, a), (_, b) in zip(one, two, strict=True)
        ]
        assert any(differ), f"the same {self.rounds} cohorts under two seeds"

    def test_global_generators_are_untouched(self) -> None:
        """Neither `random` nor NumPy's legacy generator is used or seeded."""
        plain, legacy = random.getstate(), _legacy_state()
        self._federation().play(self.make(), self.rounds, self.size)
        assert random.getstate() == plain, "the global generator of `random` was touched"
        assert _legacy_state() == legacy, "NumPy's global generator was touched"

    # state

    def test_state_is_plain_arrays(self) -> None:
        """Booleans, integers and floats only, so that it can be saved without pickle; a copy, not a view."""
        selector, fed = self.make(), self._federation()
        fed.play(selector, self.rounds, self.size)
        state = selector.state_dict()
        for name, value in state.items():
            assert isinstance(value, np.ndarray), f"{name} is a {type(value).__name__}, not an array"
            assert value.dtype.kind in "biuf", f"{name} has dtype {value.dtype}"
        frozen = {name: value.copy() for name, value in state.items()}
        fed.play(selector, range(self.rounds, self.rounds + 3), self.size)
        _same_state(state, frozen, "saved state changed while the selector continued: state_dict must copy")

    def test_save_and_load_give_the_same_future(self) -> None:
        """Interrupt a run anywhere: the loaded selector continues as the first one does."""
        for cut in (0, 1, self.rounds):
            selector, fed = self.make(), self._federation(availability=0.8)
            fed.play(selector, cut, self.size)
            other = self.make()
            other.load_state_dict(_through_a_file(selector.state_dict()))
            rest = range(cut, cut + self.rounds)
            future = fed.play(selector, rest, self.size)
            _same_future(future, fed.play(other, rest, self.size), f"after loading at round {cut}")
            _same_state(selector.state_dict(), other.state_dict(), f"after loading at round {cut}")

    def test_load_refuses_what_does_not_fit(self) -> None:
        """Missing or unknown keys and other shapes are refused, and a refusal changes nothing."""
        selector = self.make()
        self._federation().play(selector, 3, self.size)
        state = selector.state_dict()
        wrong: dict[str, Arrays] = {"an unknown key": {**state, "no_such_column": np.zeros(3)}}
        for name, value in state.items():
            wrong[f"without {name}"] = {key: kept for key, kept in state.items() if key != name}
            wrong[f"{name} with another axis"] = {**state, name: value[None]}
        for what, arrays in wrong.items():
            try:
                selector.load_state_dict(arrays)
            except (FedcohortError, TableError):
                _same_state(selector.state_dict(), state, f"a refused load ({what}) changed the state")
                continue
            raise AssertionError(f"load_state_dict accepted saved state {what}")

    # failures

    def test_everybody_fails_and_comes_back(self) -> None:
        """Rounds in which nobody is OK, at the start and later, leave a selector that still works."""
        for start in (0, 3):
            selector, fed = self.make(), self._federation()
            fed.play(selector, start, self.size)
            kinds = (Outcome.FAILED, Outcome.LATE, Outcome.REJECTED, Outcome.FILTERED, Outcome.FAILED, Outcome.LATE)
            for step, outcome in enumerate(kinds):
                fed.forced = outcome
                fed.play(selector, [start + step], self.size)
            fed.forced = None
            rest = range(start + len(kinds), start + len(kinds) + self.rounds)
            for rnd, cohort in fed.play(selector, rest, self.size):
                assert cohort.clients.size > 0, f"round {rnd.index}: nobody chosen after everybody had failed"
            self._check_finite(selector)

    def test_nan_and_infinity_never_enter_state(self) -> None:
        """Reports of NaN or infinity, in updates, probes and the score, are dropped."""
        for poison in (np.nan, np.inf, -np.inf):
            for start in (0, 3):
                selector, fed = self.make(), self._federation()
                fed.play(selector, start, self.size)
                fed.poison = poison
                fed.play(selector, range(start, start + 3), self.size)
                self._check_finite(selector)
                fed.poison = None
                fed.play(selector, range(start + 3, start + 6), self.size)
                self._check_finite(selector)

    def test_population_may_grow(self) -> None:
        """New clients may register between rounds, and get their turn."""
        self._skip_if_exempt("growth")
        selector, fed = self.make(), self._federation(population=max(8, self.min_population))
        fed.play(selector, 4, 4)
        old = fed.population
        fed.grow(old * 3)
        seen = [c.clients for _, c in fed.play(selector, range(4, 4 + self.horizon // 2), 4)]
        assert (np.concatenate(seen) >= old).any(), f"{old * 2} new clients were never chosen"

    # honesty

    def test_only_declared_signals_are_used(self) -> None:
        """Reading anything else raises, and its presence changes nothing."""
        lean = self._federation().play(self.make(), self.rounds, self.size)
        full = self._federation(full=True).play(self.make(), self.rounds, self.size)
        _same_future(lean, full, "with undeclared signals within reach")

    # statistics

    def test_identical_clients_are_chosen_uniformly(self) -> None:
        """All numbers tie: chi-square over clients, and no drift along the slots, in the first and in a later round."""
        self._skip_if_exempt("uniform_ties")
        n, k = max(12, self.min_population), 4
        looks = (0, self.depth)
        hits, sizes = np.zeros((len(looks), n)), np.zeros((len(looks), self.runs))
        for run in range(self.runs):
            fed = SyntheticFederation(n, seed=run, contrast=0.0, noise=0.0, failure=0.0)
            steps = fed.play(self.make(), self.depth + 1, k, seed=run)
            for look, index in enumerate(looks):
                chosen = steps[index][1].clients
                hits[look, chosen] += 1
                sizes[look, run] = chosen.size
        for look, index in enumerate(looks):
            chi, trend = _uniformity(hits[look], sizes[look])
            counts = hits[look].astype(int).tolist()
            assert chi < 5.0, f"round {index}: identical clients chosen {counts} times (chi-square at {chi:.1f} sigma)"
            assert abs(trend) < 4.5, f"round {index}: choice drifts along the slots: {counts} ({trend:.1f} sigma)"

    def test_slots_carry_no_meaning(self) -> None:
        """Permute the slots: each client is chosen as often as before."""
        self._skip_if_exempt("relabelling")
        n, k = max(12, self.min_population), 4
        count = np.zeros((2, self.runs, n))
        orders = (np.arange(n), np.roll(np.arange(n)[::-1], 5))
        for side, order in enumerate(orders):
            for run in range(self.runs):
                fed = SyntheticFederation(n, seed=3, identity=order.astype(np.int64), flipped=self.flipped)
                for _, cohort in fed.play(self.make(), self.depth, k, seed=1000 * side + run):
                    count[side, run, order[cohort.clients]] += 1
        gap = count[0].mean(axis=0) - count[1].mean(axis=0)
        spread = np.sqrt((count[0].var(axis=0) + count[1].var(axis=0)) / self.runs + 4.0 / self.runs**2)
        worst = float(np.abs(gap / spread).max())
        often = np.round(count.mean(axis=1), 2).tolist()
        assert worst < 4.5, f"choices per client change with the slots, by {worst:.1f} sigma: {often[0]} and {often[1]}"

    def test_prefers_the_better_half(self) -> None:
        """In the last third of the horizon, good clients are clearly more than half of the cohort."""
        self._skip_if_exempt("learns")
        shares = []
        for seed in range(3):
            fed = SyntheticFederation(self.population, seed=seed, flipped=self.flipped)
            steps = fed.play(self.make(), self.horizon, self.size, seed)
            late = np.concatenate([cohort.clients for _, cohort in steps[-(self.horizon // 3) :]])
            shares.append(float(fed.good[late].mean()))
        mean = float(np.mean(shares))
        assert mean >= self.preference, f"share of good clients {mean:.2f} (per seed {np.round(shares, 2).tolist()})"

    # helpers

    def _federation(
        self, *, population: int | None = None, availability: float = 1.0, full: bool = False
    ) -> SyntheticFederation:
        return SyntheticFederation(
            self.population if population is None else population,
            availability=availability,
            full=full,
            flipped=self.flipped,
        )

    def _exemptions(self) -> dict[str, str]:
        made = self.make()
        return {**(made.exempt if isinstance(made, Exempting) else {}), **self.exempt}

    def _skip_if_exempt(self, clause: str) -> None:
        reason = self._exemptions().get(clause)
        if reason is not None:
            raise unittest.SkipTest(f"exempt from {clause}: {reason}")

    def _check_finite(self, selector: Selector) -> None:
        """No NaN anywhere; no infinity except in columns that start with one."""
        fresh = self.make()
        fed = self._federation()
        fed.ask(fresh, 0, self.size)
        start = fresh.state_dict()
        for name, value in selector.state_dict().items():
            if value.dtype.kind != "f" or name in self.may_be_nan:
                continue
            assert not np.isnan(value).any(), f"NaN entered state column {name!r}"
            if name not in start or not np.isinf(start[name]).any():
                assert not np.isinf(value).any(), f"infinity entered state column {name!r}"


def _check_side_columns(cohort: Cohort) -> None:
    """Directives, inclusion and why have one row per chosen client, of numbers in range."""
    m = cohort.clients.size
    for what, columns in (("directives", cohort.directives), ("why", cohort.why)):
        for name, value in columns.items():
            fits = isinstance(value, np.ndarray) and value.shape[:1] == (m,) and value.dtype.kind in "biuf"
            assert fits, f"{what}[{name!r}] must be an array of numbers with {m} rows"
    if cohort.inclusion is not None:
        p = cohort.inclusion
        assert p.shape == (m,), f"inclusion has shape {p.shape} for {m} chosen clients"
        assert ((p > 0) & (p <= 1 + 1e-9)).all(), "inclusion probabilities of chosen clients lie in (0, 1]"


def _same_cohort(a: Cohort, b: Cohort, what: str) -> None:
    assert np.array_equal(a.clients, b.clients), f"{what} gives another cohort: {a.clients} and {b.clients}"
    sides = [{} if c.inclusion is None else {"inclusion": c.inclusion} for c in (a, b)]
    for one, two in ((a.directives, b.directives), (a.why, b.why), (sides[0], sides[1])):
        assert one.keys() == two.keys(), f"{what} gives other columns"
        for name in one:
            assert np.array_equal(one[name], two[name], equal_nan=True), f"{what} gives another {name}"


def _same_future(a: list[Step], b: list[Step], what: str) -> None:
    for (rnd, one), (_, two) in zip(a, b, strict=True):
        _same_cohort(one, two, f"{what}, round {rnd.index}")


def _same_state(a: Arrays, b: Arrays, what: str) -> None:
    assert a.keys() == b.keys(), f"{what} (keys {sorted(a)} and {sorted(b)})"
    for name in a:
        assert _bitwise_equal(a[name], b[name]), f"{what} (column {name!r})"


def _same_rows(before: Arrays, after: Arrays, what: str) -> None:
    """As _same_state, but columns may have more rows."""
    assert before.keys() == after.keys(), f"{what} (keys)"
    for name, old in before.items():
        now = after[name] if old.ndim == 0 else after[name][: old.shape[0]]
        assert _bitwise_equal(old, now), f"{what} (column {name!r})"


def _bitwise_equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _through_a_file(state: Arrays) -> Arrays:
    """Written and read again, without pickle."""
    buffer = io.BytesIO()
    np.savez(buffer, **state)  # type: ignore[arg-type]
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as saved:
        return {name: saved[name] for name in saved.files}


def _legacy_state() -> tuple[bytes, int]:
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(state, dict)
    return state["state"]["key"].tobytes(), int(state["state"]["pos"])


def _uniformity(hits: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """(chi-square over the rows, trend along the rows), each in standard deviations.

    Exchangeable rows: given the sizes m_r, a row's count has mean sum m_r / n and the squared deviations sum to
    sum m_r / n (1 - m_r / n) n times a chi-square with n - 1 degrees of freedom over n - 1 (Wilson-Hilferty).
    """
    n = hits.size
    p = sizes / n
    unit = float((p * (1 - p)).sum()) * n / (n - 1)
    if unit <= 0:
        return 0.0, 0.0
    off = hits - p.sum()
    nu = n - 1
    chi = ((float(off @ off) / unit / nu) ** (1 / 3) - (1 - 2 / (9 * nu))) / np.sqrt(2 / (9 * nu))
    slope = np.arange(n) - (n - 1) / 2
    return float(chi), float(off @ slope / np.sqrt(unit * float(slope @ slope)))
