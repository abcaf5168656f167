"""FLASH on a synthetic semi-bandit with the scales of the paper: does it find the useful clients?

    python benchmarks/flash_semibandit.py            # 40 seeds for the presets, 10 for the rest: some minutes
    python benchmarks/flash_semibandit.py --seeds 5

50 clients, 10 picked, 300 rounds. Client i owns n_i samples (500 to 1,500) and is useful to a degree u_i in (0, 1).
A round takes it about T_i = n_i + Exp(mean 10 n_i) seconds, the paper's latency at lambda_T = 10, drawn once per client
(a slow device stays slow) with 20 % noise per round. When it is picked, its robust loss falls by s_t u_i L_i times a
log-normal factor, and by a third of that (the model improves for all) when it is not; s_t = 0.02 / (1 + t / 30) shrinks
as training converges. Its own validation loss follows with noise of its own. So rewards are 1e-5 to 1e-9 per second,
loss ratios about 1, durations 1e3 to 1e5: nothing has unit scale.

Preset "model" is paid by the server's loss V instead. It begins at 2.5, would fall by s_t u_i V times a log-normal
factor under the model of client i alone (here always a gain; in training most single models are worse than the common
one), and falls by the mean of the cohort's.

The efficiency of a cohort is 0 for uniform selection and 1 for the oracle, by the expected reward of its clients:
    (sum over the cohort - M mean over all) / (sum over the best M - M mean over all),
averaged over the last 100 rounds. Everything goes through probe, select and observe, as in a real run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import generator
from fedcohort.protocols import Selector
from fedcohort.selectors.flash import PRESETS, Flash
from fedcohort.selectors.neural_bandit import NeuralBandit
from fedcohort.selectors.restless_bandit import RestlessBandit
from fedcohort.types import Outcome, Probed, Round, RoundResult, Signals

CLIENTS, PICKED, ROUNDS, LATE = 50, 10, 300, 100


Run = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def play(selector: Selector, seed: int, rounds: int = ROUNDS, liar: int | None = None) -> Run:
    """(efficiency of every cohort, how often each client was picked, its expected reward at the end).

    A liar multiplies every loss that it reports by 1,000.
    """
    rng = generator(seed, "semibandit")
    n = rng.uniform(500, 1500, CLIENTS)
    pace = n + rng.exponential(10 * n)
    useful = rng.uniform(0, 1, CLIENTS)
    robust, val = rng.uniform(4, 6, CLIENTS), rng.uniform(2, 3, CLIENTS)
    server, apart = 2.5, generator(seed, "semibandit-server")
    everyone = np.arange(CLIENTS)
    out, picks, shout = np.empty(rounds), np.zeros(CLIENTS), np.ones(CLIENTS)
    if liar is not None:
        shout[liar] = 1000.0
    for t in range(rounds):
        s = 0.02 / (1 + t / 30)
        size = CLIENTS if t == 0 else PICKED  # S_0 is everybody
        rnd = Round(t, size, everyone, CLIENTS)
        asked = selector.probe(rnd, generator(seed, "probe", t))  # type: ignore[attr-defined]
        columns = {"probe_robust_loss": (shout * robust)[asked], "probe_val_loss": (shout * val)[asked]}
        probed = Probed(asked, Signals(columns))
        rnd = Round(t, size, everyone, CLIENTS, probed=probed)
        chosen = selector.select(rnd, generator(seed, "select", t)).clients
        worth = useful * robust / pace  # expected reward up to a factor common to all
        best = np.sort(worth)[-chosen.size :].sum()
        base = chosen.size * worth.mean()
        out[t] = (worth[chosen].sum() - base) / (best - base) if t else 0.0
        picks[chosen] += 1
        seconds = pace * rng.lognormal(-0.02, 0.2, CLIENTS)
        gain = s * useful[chosen] * server * apart.lognormal(-0.125, 0.5, chosen.size)
        server -= gain.mean()
        columns = {"robust_loss": (shout * robust)[chosen], "val_loss": (shout * val)[chosen], "model_gain": gain}
        reports = Signals(columns)
        ok = np.full(chosen.size, Outcome.OK, np.int8)
        selector.observe(RoundResult(t, chosen, ok, seconds[chosen], reports, probed=probed))
        share = np.full(CLIENTS, 1 / 3)
        share[chosen] = 1.0
        robust = robust * np.exp(-s * useful * share * rng.lognormal(-0.125, 0.5, CLIENTS))
        val = val * np.exp(
            -s * useful * share * rng.lognormal(-0.125, 0.5, CLIENTS) + s * 0.1 * rng.standard_normal(CLIENTS)
        )
    return out, picks, useful * robust / pace


def table(makers: dict[str, Callable[[], Selector]], seeds: int) -> dict[str, tuple[float, float, float]]:
    """name -> (mean of the first 50 rounds, mean of the last 100, its standard error)."""
    rows = {}
    for name, make in makers.items():
        runs = np.array([play(make(), seed)[0] for seed in range(seeds)])
        late = runs[:, -LATE:].mean(axis=1)
        rows[name] = float(runs[:, 1:50].mean()), float(late.mean()), float(late.std() / np.sqrt(max(seeds - 1, 1)))
    return rows


def regret(seeds: int) -> None:
    """Print the regret so far, the sum over rounds of (1 - efficiency), at a few rounds; uniform choice has 1 a round."""
    at = (50, 100, 200, ROUNDS)
    print("| selector | " + " | ".join(f"round {t}" for t in at) + " |\n" + "|---" * (len(at) + 1) + "|")
    for name in PRESETS:
        runs = np.array([play(Flash(preset=name, refresh="all"), seed)[0] for seed in range(seeds)])
        curve = np.cumsum(1.0 - runs[:, 1:], axis=1).mean(axis=0)
        print(f"| {name} | " + " | ".join(f"{curve[t - 2]:.1f}" for t in at) + " |", flush=True)


def main() -> None:
    """Print the table of docs/selectors/flash.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--regret", action="store_true", help="print the regret curve of the presets instead")
    makers: dict[str, Callable[[], Selector]] = {
        "literal": lambda: Flash(preset="literal", refresh="all"),
        "paper_scaled": lambda: Flash(preset="paper_scaled", refresh="all"),
        "robust": lambda: Flash(preset="robust", refresh="all"),
        "model": lambda: Flash(preset="model", refresh="all"),
        "robust, refresh=selected": lambda: Flash(preset="robust"),
        "robust, method=ucb": lambda: Flash(preset="robust", method="ucb", refresh="all"),
        "robust, v=0 (greedy)": lambda: Flash(preset="robust", explore=0.0, refresh="all"),
        "robust, scope=global": lambda: Flash(preset="robust", scope="global", refresh="all"),
        "robust without loss": lambda: Flash(preset="robust", context="val,duration,reward", refresh="all"),
        "robust without val": lambda: Flash(preset="robust", context="loss,duration,reward", refresh="all"),
        "robust without duration": lambda: Flash(preset="robust", context="loss,val,reward", refresh="all"),
        "robust without reward": lambda: Flash(preset="robust", context="loss,val,duration", refresh="all"),
        "restless-bandit": lambda: RestlessBandit(refresh="all"),
        "restless-bandit, discounted": lambda: RestlessBandit(mode="discounted", refresh="all"),
        "neural-bandit": lambda: NeuralBandit(refresh="all"),
        "neural-bandit, thompson": lambda: NeuralBandit(mode="thompson", refresh="all"),
    }
    args = parser.parse_args()
    if args.regret:
        regret(args.seeds)
        return
    print("| selector | rounds 1-49 | last 100 | standard error | seeds |\n|---|---|---|---|---|")
    for name, make in makers.items():
        seeds = args.seeds if name in PRESETS else max(args.seeds // 4, 2)
        early, late, error = table({name: make}, seeds)[name]
        print(f"| {name} | {early:+.2f} | {late:+.2f} | {error:.2f} | {seeds} |", flush=True)


if __name__ == "__main__":
    main()
