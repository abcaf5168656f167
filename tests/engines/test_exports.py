"""What a trained model exports: the tensors that its torch module asks for, under torch's names."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.engines.networks import resnet
from fedcohort.engines.trained_model import TrainedModel, layout_of
from fedcohort.types import Model, Plan

torch = pytest.importorskip("torch")
from fedcohort.engines.torch_layers import sequential  # noqa: E402
from fedcohort.engines.torch_reference import ReferenceEngine  # noqa: E402


def test_a_network_exports_the_statistics_of_its_batch_normalisations(make_data, tmp_path):
    """In residuals too, by .pt file and in memory: loaded with strict=True the module answers as the engine does."""
    network, data = resnet((1, 4, 4), (4, 8), classes=4, norm="batch"), make_data([20, 33], shape=(1, 4, 4))
    engine, first = ReferenceEngine(network, data), network.fresh(np.random.default_rng(0))
    sent = engine.train(first, np.arange(2), Plan(epochs=2, batch_size=8, lr=0.05)).updates
    model = Model(first.params + sent.delta[0], sent.buffers[0], sent.counters[0])
    trained = TrainedModel(model, layout_of(network), network)
    expected = engine.logits(model.params[None], data.x, model.buffers[None])[0]
    for found in (trained.state_dict(), torch.load(trained.save(tmp_path / "model.pt"))):
        assert set(found) == set(sequential(network).state_dict())
        module = sequential(network)
        module.load_state_dict(found, strict=True)
        with torch.no_grad():
            np.testing.assert_allclose(module.eval()(torch.from_numpy(data.x)).numpy(), expected, atol=1e-5)
    seen = trained.tensors()["1.num_batches_tracked"]
    assert (seen.shape, seen.dtype, int(seen)) == ((), np.int64, 2 * 3)
