"""Does FedACS find the least skewed clients? Known (planted) skewness, no training.

    python benchmarks/fedacs_planted.py [--seeds 10] [--rounds 1000]

N = 200 clients with alpha ~ U[0, 1]; K = 10 a round, lambda = 0.4, eta = 0.2, H = 5. The insight of client i in round t
is a common direction plus a deviation of length s_t (0.5 + alpha_i) (1 + 0.15 z), z standard normal, in a random
direction; the scale s_t falls and wobbles, so that rewards of different rounds do not compare. Printed: the share of
the pool that belongs to the truly least skewed 40 % (a random pool: 0.40), mean over seeds and the worst seed;
then the same share of the cohorts of FedACS, Rexp3 and uniform selection.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.protocols import Selector
from fedcohort.registry.lookup import make_selector
from fedcohort.selectors.fedacs import FedACS
from fedcohort.types import Outcome, Round, RoundResult, Signals

N, K, WIDTH, NOISE = 200, 10, 64, 0.15
MARKS = (50, 100, 200, 500, 1000)
DRAWS = {
    "sequential (Alg. 2)": {"fast": False},
    "fast": {"fast": True},
    "sequential, stop at 200": {"fast": False, "stop": 200},
    "sequential, H = 0": {"fast": False, "history": 0},
    "sequential, forget 0.99": {"fast": False, "forget": 0.99},
}
SELECTORS = ("fedacs", "rexp3", "rexp3(restart=0)", "rexp3(preset='fedacs')", "uniform")


def insights(alpha: np.ndarray, index: int, rng: np.random.Generator) -> np.ndarray:
    scale = (0.3 + 0.7 * np.exp(-index / 100)) * (1 + 0.2 * np.sin(index / 7))
    length = scale * (0.5 + alpha) * (1 + NOISE * rng.standard_normal(alpha.size))
    way = rng.standard_normal((alpha.size, WIDTH))
    return scale + way * (length / np.linalg.norm(way, axis=1))[:, None]


def least_skewed(alpha: np.ndarray) -> np.ndarray:
    best = np.zeros(alpha.size, np.bool_)
    best[np.argsort(alpha)[: round(0.4 * alpha.size)]] = True
    return best


def play(selector: Selector, rounds: int, seed: int) -> Iterator[tuple[Round, np.ndarray, np.ndarray]]:
    """(the round, the cohort, who is truly least skewed), before the selector learns from it."""
    world = generator(seed, "planted")
    alpha = world.random(N)
    best = least_skewed(alpha)
    profiles = Signals({"samples": np.full(N, 2000)})
    for index in range(rounds):
        rnd = Round(index, K, np.arange(N), N, profiles=profiles)
        cohort = np.sort(selector.select(rnd, generator(seed, "select", index)).clients)
        yield rnd, cohort, best
        signals = Signals({"insight": insights(alpha[cohort], index, world)})
        selector.observe(RoundResult(index, cohort, np.full(K, Outcome.OK, np.int8), np.ones(K), signals))


def overlap(selector: FedACS, rounds: int = 200, seed: int = 0) -> dict[int, float]:
    """Share of the pool that is truly among the least skewed 40 %, after so many rounds (mean of ten pools)."""
    found = {}
    for rnd, _, best in play(selector, rounds + 1, seed):
        if rnd.index in MARKS or rnd.index == rounds:
            pools = [selector.pool(rnd, generator(seed, "look", rnd.index, i)) for i in range(10)]
            found[rnd.index] = float(np.mean([best[pool].mean() for pool in pools]))
    return found


def cohort_shares(selector: Selector, rounds: int, seed: int) -> dict[int, float]:
    """Share of the cohorts of the last 50 rounds that is truly among the least skewed 40 %, after so many rounds."""
    shares = np.array([best[cohort].mean() for _, cohort, best in play(selector, rounds, seed)])
    return {m: float(shares[m - 50 : m].mean()) for m in MARKS if m <= rounds}


def show(label: str, runs: list[dict[int, float]], marks: list[int]) -> None:
    cells = [f"{np.mean([r[m] for r in runs]):.3f} (worst {min(r[m] for r in runs):.3f})" for m in marks]
    print(f"{label:<28}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1000)
    args = parser.parse_args()
    marks = [m for m in MARKS if m <= args.rounds]
    print(f"{'pool of FedACS':<28}" + "".join(f"{f'{m} rounds':>20}" for m in marks))
    for label, options in DRAWS.items():
        show(label, [overlap(FedACS(**options), args.rounds, seed) for seed in range(args.seeds)], marks)
    print(f"\n{'cohorts of the last 50':<28}" + "".join(f"{f'{m} rounds':>20}" for m in marks))
    for name in SELECTORS:
        show(name, [cohort_shares(make_selector(name), args.rounds, seed) for seed in range(args.seeds)], marks)


if __name__ == "__main__":
    main()
