"""Model, data and training: nothing here knows about fedcohort."""

from functools import lru_cache

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    """A small convolutional network for 8 x 8 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc = nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = torch.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc(x.flatten(1))


@lru_cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16.0, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)


def load_data(partition: int, partitions: int):
    """Training and validation samples of one client."""
    x, y = _digits()
    mine = torch.arange(partition, 1500, partitions)
    cut = len(mine) * 4 // 5
    return (x[mine[:cut]], y[mine[:cut]]), (x[mine[cut:]], y[mine[cut:]])


def load_test():
    """Samples that no client has."""
    x, y = _digits()
    return x[1500:], y[1500:]


def train(net: nn.Module, data, epochs: int, lr: float) -> float:
    """SGD; returns the mean loss of the first epoch."""
    x, y = data
    optimiser, first = torch.optim.SGD(net.parameters(), lr=lr), []
    for epoch in range(epochs):
        order = torch.randperm(len(y))
        for rows in order.split(16):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
            first += [loss.item()] if epoch == 0 else []
    return sum(first) / len(first)


def accuracy(net: nn.Module, data) -> float:
    """Share of samples that are classified correctly."""
    with torch.no_grad():
        return (net(data[0]).argmax(1) == data[1]).float().mean().item()
