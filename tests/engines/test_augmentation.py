"""Augmentations: images moved and mirrored by draws of (seed, round, client, batch), the same in every engine."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fedcohort import TorchTask, simulate  # noqa: E402
from fedcohort.engines.factory import choose  # noqa: E402
from fedcohort.engines.image_moves import PAD  # noqa: E402
from fedcohort.engines.networks import Conv, Flatten, GroupNorm, Linear, Network, ReLU, lenet, mlp  # noqa: E402
from fedcohort.engines.recipe import Recipe  # noqa: E402
from fedcohort.engines.torch_augment import AUGMENTATIONS, crop_flip, flip  # noqa: E402
from fedcohort.errors import FedcohortError  # noqa: E402
from fedcohort.types import Model, Objective, Plan  # noqa: E402

from . import oracle  # noqa: E402

STAGES = lenet((2, 9, 11), (4, 7), 3, (12,), 5, padding=1)
GRAPH = Network((2, 9, 11), (Conv(4, 3), GroupNorm(2), ReLU(), Flatten(), Linear(5)))
NETWORKS = {"stages": STAGES, "graph": GRAPH}
PLANS = {
    "plain": Plan(epochs=3, batch_size=8, lr=0.05, momentum=0.9, seed=4, round=2),
    "adam, epochs of each": Plan(epochs=np.array([2, 0, 3, 1]), batch_size=16, lr=0.01, optimiser="adam", seed=1),
    "predictions of the broadcast model": Plan(
        epochs=2, batch_size=7, lr=0.05, objective=Objective(ce=0.5, pseudo=0.5)
    ),
}


def by_hand(x, down, right, mirrored):
    """One image (channels, height, width) through a moved window, pixel by pixel."""
    out = np.zeros_like(x)
    _, high, wide = x.shape
    for y in range(high):
        for u in range(wide):
            v, at = y + down, (wide - 1 - u if mirrored else u) + right
            if 0 <= v < high and 0 <= at < wide:
                out[:, y, u] = x[:, v, at]
    return out


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_window_moves_as_drawn(name):
    x = np.random.default_rng(1).standard_normal((30, 2, 9, 11)).astype(np.float32)
    found = AUGMENTATIONS[name](torch.from_numpy(x), np.random.default_rng(5)).numpy()
    rng = np.random.default_rng(5)
    moved = rng.integers(0, 2 * PAD + 1, (2, 30)) - PAD if name == "crop-flip" else np.zeros((2, 30), np.int64)
    mirrored = rng.random(30) < 0.5
    for i in range(30):
        np.testing.assert_array_equal(found[i], by_hand(x[i], *moved[:, i], mirrored[i]))


def test_a_moved_image_is_the_old_one_elsewhere():
    """A single bright pixel stays one bright pixel, at most four places away, mirrored or not."""
    x = torch.zeros(40, 1, 16, 16)
    x[:, 0, 8, 5] = 1.0
    moved = crop_flip(x, np.random.default_rng(0))
    assert torch.equal(moved.sum(dim=(1, 2, 3)), torch.ones(40))
    _, _, row, column = moved.nonzero(as_tuple=True)
    assert int((row - 8).abs().max()) == 4
    near = ((column - 5).abs() <= 4) | ((column - 10).abs() <= 4)
    assert bool(near.all())
    assert len(set(column.tolist())) > 8


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("changed", [crop_flip, flip])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_fused_engine_moves_images_as_torch_does(name, changed, plan):
    network = NETWORKS[name]
    data, model = oracle.body(network, [1, 20, 37, 9]), Model(network.initial(np.random.default_rng(3)))
    asked, plan = np.array([2, 0, 3, 1]), PLANS[plan]
    recipe = Recipe(network, augmentation=changed)
    fused, reference, bare = (
        choose(model_, data, kind, 2).train(model, asked, plan)
        for model_, kind in ((recipe, "fused"), (recipe, "torch_reference"), (network, "fused"))
    )
    largest = np.abs(reference.updates.delta).max()
    np.testing.assert_allclose(fused.updates.delta, reference.updates.delta, rtol=0, atol=2e-4 * largest)
    assert np.abs(fused.updates.delta - bare.updates.delta).max() > 0.02 * largest
    np.testing.assert_array_equal(fused.updates.steps, reference.updates.steps)


def test_auto_takes_the_fused_engine_for_a_ready_made_augmentation():
    data = oracle.body(STAGES, [4, 5])
    module = Recipe(lambda: nn.Sequential(nn.Flatten(), nn.Linear(198, 5)), augmentation=flip)
    assert choose(Recipe(STAGES, augmentation=crop_flip), data).name == "fused"
    assert choose(module, data).name == "fused"
    with pytest.raises(FedcohortError, match="cannot augment images"):
        choose(Recipe(mlp(198, classes=5), augmentation=flip), data, "numpy")
    flat = oracle.body(mlp(7, classes=3), [4, 5])
    with pytest.raises(FedcohortError, match=r"inputs of shape \(15, 7\): crop-flip and flip are for images"):
        choose(Recipe(mlp(7, classes=3), augmentation=flip), flat)


def test_evaluation_is_never_augmented():
    data, model = oracle.body(STAGES, [9, 20]), Model(STAGES.initial(np.random.default_rng(3)))
    one, bare = (choose(m, data, "fused") for m in (Recipe(STAGES, augmentation=crop_flip), STAGES))
    for part in ("train", "validation"):
        mine, theirs = (e.losses(model, np.arange(2), part, Objective()) for e in (one, bare))
        np.testing.assert_array_equal(mine.loss, theirs.loss)
    np.testing.assert_array_equal(one.gradients(model, np.arange(2)), bare.gradients(model, np.arange(2)))


def test_all_engines_run_the_same_task():
    rng = np.random.default_rng(0)
    images, y = rng.standard_normal((60, 3, 8, 8)).astype(np.float32), rng.integers(0, 2, 60)

    def net():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    losses = {}
    for augmentation, engine in (
        *(("crop-flip", e) for e in ("torch_reference", "torch_vmap", "fused")),
        (None, "fused"),
    ):
        task = TorchTask(net, (images, y), augmentation=augmentation, batch_size=7)
        history = simulate("uniform", task=task, world="iid-v1(clients=6)", engine=engine, rounds=2, cohort_size=4)
        losses[augmentation, engine] = history.column("loss")
    first, *others, without = losses.values()
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-4)
    assert not np.allclose(first, without, rtol=1e-4)
