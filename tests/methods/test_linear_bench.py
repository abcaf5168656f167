"""The kit's server bench: its gradient against finite differences."""

import numpy as np

from fedcohort.testing.linear_bench import LinearBench


def test_gradient_by_finite_differences():
    bench, rng = LinearBench(), np.random.default_rng(0)
    params = rng.normal(size=12)
    rows = np.array([0, 3, 4, 9])
    target = rng.dirichlet(np.ones(3), 4)
    loss, gradient = bench.gradient(params, "unlabelled", rows, target)
    logits = bench.logits(params[None], "unlabelled")[0][rows]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.isclose(loss, -(target * np.log(p)).sum(axis=1).mean())
    for j in range(12):
        step = np.zeros(12)
        step[j] = 1e-5
        up, down = (bench.gradient(params + s, "unlabelled", rows, target)[0] for s in (step, -step))
        assert np.isclose(gradient[j], (up - down) / 2e-5, atol=1e-5)


def test_sizes():
    bench = LinearBench(classes=4, features=5, count=7)
    assert bench.logits(np.zeros((2, 24)), "validation").shape == (2, 7, 4)
    assert bench.size("validation") == 7
    assert bench.size("test") == 0
    assert set(bench.labels("validation")) <= set(range(4))
