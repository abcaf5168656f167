"""How do I train my own PyTorch model, with my own loss, on clients that differ?

A network with dropout predicts a temperature (a real number) from eight readings of 20 stations. The data are made
here, so that the script runs anywhere; put your own arrays and your own module in their place. Needs the extra `torch`.

    python examples/own_torch_model.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import fedcohort as fc

STATIONS, READINGS = 20, 60


class Net(nn.Module):
    """Any module will do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number per row."""
        return self.body(x)


def stations() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(readings, temperature, which station): each station has a bias of its own."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(STATIONS), READINGS)
    x = rng.normal(size=(owner.size, 8)).astype(np.float32)
    bias = rng.normal(scale=0.4, size=STATIONS)
    y = 2 * np.tanh(x[:, 0] + x[:, 1]) - x[:, 2] + bias[owner] + rng.normal(scale=0.1, size=owner.size)
    return x, y.astype(np.float32)[:, None], owner


def main() -> None:
    """One line from a module to a run, and back to a module."""
    x, y, owner = stations()
    error = {"error": lambda out, y: (out - y).abs().mean()}
    task = fc.TorchTask(Net, (x, y), client=owner, loss=nn.HuberLoss(), metrics=error, lr=0.05, epochs=2, batch_size=16)
    for selector in ("uniform", "oort"):
        history = fc.simulate(selector, task=task, world="owners-v1", rounds=15, cohort_size=5, seed=1)
        first, last = history.rows[0], history.rows[-1]
        print(f"{selector}: mean absolute error {first['error']:.3f} after one round, {last['error']:.3f} at the end")
    assert history.model is not None
    trained = history.model.to_torch()
    trained.eval()
    with torch.no_grad():
        print("first three stations:", [round(float(v), 2) for v in trained(torch.tensor(x[:3]))])


if __name__ == "__main__":
    main()
