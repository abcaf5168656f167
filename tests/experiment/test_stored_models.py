"""Models that are read back from a run folder: every tensor that their torch module asks for."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fedcohort import TorchTask, simulate  # noqa: E402
from fedcohort.errors import StoreError  # noqa: E402
from fedcohort.experiment import runs  # noqa: E402
from fedcohort.experiment.runs import read_model  # noqa: E402

X = np.random.default_rng(0).standard_normal((120, 4)).astype(np.float32)


class Odd(nn.Module):
    """Frozen weights, tied ones, complex buffers, and a buffer that torch does not save."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head.weight = self.first.weight
        self.middle.weight.requires_grad_(False)
        self.register_buffer("turns", torch.polar(torch.ones(2), torch.arange(2) * 0.7))
        self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)

    def forward(self, x):
        z = torch.view_as_complex(self.middle(self.first(x)).reshape(-1, 2, 2)) * self.turns
        return self.head(torch.view_as_real(z).flatten(1)) * self.scale


@pytest.fixture
def kept(tmp_path):
    """A run of it in a folder."""
    task = TorchTask(Odd, (X, X.argmax(axis=1)))
    where = {"world": "iid-v1(clients=4)", "engine": "torch_reference", "out": tmp_path / "run"}
    return simulate(task=task, rounds=2, cohort_size=2, **where)


def test_a_stored_model_loads_into_its_module(kept, tmp_path):
    """With strict=True, from memory and from a file, and it answers as the model of the run does."""
    stored = read_model(tmp_path / "run")
    assert stored.made_from is None
    for found in (stored.state_dict(), torch.load(stored.save(tmp_path / "model.pt"))):
        module = Odd()
        module.load_state_dict(found, strict=True)
        with torch.no_grad():
            answers, expected = (m(torch.from_numpy(X)).numpy() for m in (module.eval(), kept.model.to_torch()))
        np.testing.assert_array_equal(answers, expected)
    assert set(stored.tensors()) == set(kept.model.tensors())


class Named(nn.Module):
    """A frozen tensor whose name is an argument of numpy.savez."""

    def __init__(self):
        super().__init__()
        self.head, self.file = nn.Linear(4, 4), nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x):
        return self.head(x * self.file)


def test_constants_may_have_any_name_and_a_resumed_run_writes_them_too(tmp_path, monkeypatch):
    """A run that ends before they are written has them after it was resumed."""
    task = TorchTask(Named, (X, X.argmax(axis=1)))
    keys = {"world": "iid-v1(clients=4)", "engine": "torch_reference", "out": tmp_path / "run", "task": task}
    with monkeypatch.context() as patch:
        patch.setattr(runs, "_keep_constants", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            simulate(rounds=2, cohort_size=2, **keys)
    runs.resume(tmp_path / "run", own=runs.Objects(task=task))
    Named().load_state_dict(read_model(tmp_path / "run").state_dict(), strict=True)


def test_a_damaged_file_of_constants_is_said(kept, tmp_path):
    file = tmp_path / "run" / "constants.npz"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(StoreError, match=r"constants.npz: it is damaged"):
        read_model(tmp_path / "run")
