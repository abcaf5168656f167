"""Does the agent learn? FLASH-RL and FAVOR on a stationary problem with a known answer, and in FLASH-RL's device world.

    python benchmarks/flash_rl_planted.py                       # the known answer
    python benchmarks/flash_rl_planted.py --device              # simulated training, seconds saved compared with uniform

Planted: 100 clients, 10 a round. Client i has a divergence d_i = 1.5 (1 - u_i) and takes 1 + 9 (1 - v_i) seconds
(10 % noise), with u and v uniform on [0, 1] and independent. Its true worth is exp(-d_i) - l~_i, the mean of FLASH-RL's
reward while the model improves. The score rises every round ("rising"), or is the mean of u over the cohort plus noise
of 0.02 ("level": then the score falls in half of the rounds, and eq. 6 rewards the opposite). Printed: worth of the
cohort, 0 = random, 1 = the ten best, in rounds 1-100, 101-200 and 201-300; for FAVOR, worth is u alone.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import fedcohort
from fedcohort.core.rng import generator
from fedcohort.registry import lookup as registry
from fedcohort.types import Outcome, Probed, Round, RoundResult, Signals

N, K, P = 100, 10, 40


class Planted:
    """A federation of which the worth of every client is known."""

    def __init__(self, seed: int, rising: bool) -> None:
        rng = generator(seed, "planted-rl")
        self.u, self.v, self.rising, self.seed = rng.random(N), rng.random(N), rising, seed
        self.way = rng.choice([-1.0, 1.0], (N, P))
        self.model = rng.choice([-1.0, 1.0], P)
        seconds = 1 + 9 * (1 - self.v)
        low, high = np.quantile(seconds, (0.05, 0.95))
        self.worth = np.exp(-self.divergence) - np.clip((seconds - low) / (high - low), 0, 1)

    @property
    def divergence(self) -> np.ndarray:
        return 1.5 * (1 - self.u)

    def weights(self, clients: np.ndarray) -> np.ndarray:
        """Around the model, at relative distance d_i."""
        return (self.model + self.divergence[clients, None] * self.way[clients]).astype(np.float32)

    def result(self, index: int, clients: np.ndarray, needs: frozenset[str], probed: Probed | None) -> RoundResult:
        rng = generator(self.seed, "planted-luck", index)
        seconds = (1 + 9 * (1 - self.v)) * np.exp(0.1 * rng.standard_normal(N))
        score = index / 1000 if self.rising else float(self.u[clients].mean() + 0.02 * rng.standard_normal())
        told = Signals({"weights": self.weights(clients)}, needs)
        ok = np.full(clients.size, Outcome.OK, np.int8)
        return RoundResult(index, clients, ok, seconds[clients], told, score, probed, self.model.astype(np.float32))

    def play(self, text: str, rounds: int = 300) -> np.ndarray:
        """Worth of every cohort, 0 = random, 1 = the best one."""
        selector, everybody, found = registry.make_selector(text), np.arange(N), []
        worth = self.u if text.startswith("favor") else self.worth
        profiles = {"samples": np.full(N, 100), "cores": np.ones(N), "frequency": np.ones(N), "bandwidth": np.ones(N)}
        for index in range(rounds):
            rnd = Round(index, K, everybody, N, 0.0, Signals(profiles, selector.needs))
            asked = selector.probe(rnd, generator(self.seed, "probe", index)) if hasattr(selector, "probe") else []
            answer = Signals({"probe_weights": self.weights(np.asarray(asked, np.int64))}, selector.needs)
            probed = Probed(asked, answer) if len(asked) else None
            rnd = Round(index, K, everybody, N, 0.0, rnd.profiles, probed)
            chosen = np.sort(selector.select(rnd, generator(self.seed, "select", index)).clients)
            selector.observe(self.result(index, chosen, selector.needs, probed))
            found.append(worth[chosen].mean())
        return (np.array(found) - worth.mean()) / (np.sort(worth)[-K:].mean() - worth.mean())


def planted(names: list[str], seeds: int) -> None:
    print(f"{'selector':<34}{'score':<8}{'1-100':>8}{'101-200':>9}{'201-300':>9}   worth, {seeds} seeds; ms a round")
    for name in names:
        for rising in (True, False):
            start = time.perf_counter()
            curves = np.array([Planted(seed, rising).play(name) for seed in range(seeds)])
            ms = 1e3 * (time.perf_counter() - start) / curves.size
            parts = curves.reshape(seeds, 3, -1).mean(axis=(0, 2))
            print(
                f"{name:<34}{'rising' if rising else 'level':<8}" + "".join(f"{x:>8.2f} " for x in parts) + f"{ms:8.1f}"
            )


def device(names: list[str], seeds: int, rounds: int, task: str, world: str) -> None:
    """Sum over rounds of the slowest client, as in the paper's Table I; the warm-up is paid for in `with warm-up`."""
    print(f"{task} in {world}, 10 of 100 clients, {rounds} rounds, seeds 0-{seeds - 1}, against uniform")
    base = None
    for name in names:
        runs = [
            fedcohort.simulate(name, world=world, task=task, rounds=rounds, cohort_size=K, seed=s) for s in range(seeds)
        ]
        total = np.array([[sum(r["seconds"] for r in h.rows), sum(r["seconds"] for r in h.rows[1:])] for h in runs])
        score = np.array([np.mean([r["accuracy"] for r in h.rows[-5:]]) for h in runs])
        base = (total, score) if base is None else base
        saved = 100 * (1 - total / base[0])
        print(
            f"{name:<34} seconds {total[:, 0].mean():8.2f}  saved {saved[:, 0].mean():5.1f} %"
            f"  without round 0 {saved[:, 1].mean():5.1f} %  accuracy {100 * score.mean():5.1f}"
            f" ({100 * (score - base[1]).mean():+.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--task", default="digits-mlp")
    parser.add_argument("--world", default="flashrl-dirichlet0.5-v1")
    args = parser.parse_args()
    if args.device:
        names = ["uniform", *(args.names or ["flash-rl", "flash-rl(latency=0.3)", "flash-rl(preset='paper')", "favor"])]
        device(names, args.seeds, args.rounds, args.task, args.world)
    else:
        default = ["uniform", "flash-rl", "flash-rl(network='shared')", "flash-rl(preset='paper')", "favor"]
        planted(args.names or default, args.seeds)


if __name__ == "__main__":
    main()
