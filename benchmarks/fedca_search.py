"""How long FedCA's search takes: n models, 5,000 validation samples, 10 classes.

Run: python benchmarks/fedca_search.py
"""

from __future__ import annotations

import time

import numpy as np

from fedcohort.methods._parts.subset_search import SCORES, best_subset


def models(n, samples=5000, classes=10, seed=0):
    """Random logits with models of unequal quality."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, samples)
    logits = rng.normal(0, 2, (n, samples, classes)).astype(np.float32)
    logits[:, np.arange(samples), labels] += rng.uniform(0, 2, n)[:, None].astype(np.float32)
    return logits, labels


def main():
    print(f"{'n':>3} {'score':<15} {'subsets':>8} {'size':>5} {'seconds':>8}  how")
    for n in (4, 8, 10, 12, 20, 50):
        logits, labels = models(n)
        for score in SCORES:
            took = []
            for _ in range(3):
                start = time.perf_counter()
                found = best_subset(logits, labels, score=score)
                took.append(time.perf_counter() - start)
            how = "exhaustive" if found.exhaustive else "greedy"
            print(f"{n:>3} {score:<15} {found.evaluated:>8} {found.members.sum():>5} {min(took):>8.3f}  {how}")


if __name__ == "__main__":
    main()
