"""The kit's server evaluator: its gradient against finite differences."""

import numpy as np

from fedcohort.testing.linear_evaluator import LinearEvaluator


def test_gradient_by_finite_differences():
    evaluator, rng = LinearEvaluator(), np.random.default_rng(0)
    params = rng.normal(size=12)
    rows = np.array([0, 3, 4, 9])
    target = rng.dirichlet(np.ones(3), 4)
    loss, gradient = evaluator.gradient(params, "unlabelled", rows, target)
    logits = evaluator.logits(params[None], "unlabelled")[0][rows]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.isclose(loss, -(target * np.log(p)).sum(axis=1).mean())
    for j in range(12):
        step = np.zeros(12)
        step[j] = 1e-5
        up, down = (evaluator.gradient(params + s, "unlabelled", rows, target)[0] for s in (step, -step))
        assert np.isclose(gradient[j], (up - down) / 2e-5, atol=1e-5)


def test_sizes():
    evaluator = LinearEvaluator(classes=4, features=5, count=7)
    assert evaluator.logits(np.zeros((2, 24)), "validation").shape == (2, 7, 4)
    assert evaluator.size("validation") == 7
    assert evaluator.size("test") == 0
    assert set(evaluator.labels("validation")) <= set(range(4))
