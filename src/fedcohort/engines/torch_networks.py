"""Models of the catalogue that need torch: VGG-11 and ResNet-18 for 32 x 32 images, a GRU for sensor windows.

Group normalisation is the default: batch statistics of skewed clients do not average well. `norm="batch"` is there
for papers that used it; "none" leaves normalisation out (VGG only).
"""

from __future__ import annotations

from collections.abc import Callable

from fedcohort.core.constraints import Count
from fedcohort.errors import MissingExtra, UnknownName, checked

try:
    import torch
    from torch import Tensor, nn
except ImportError:
    raise MissingExtra.of("this model", "torch") from None

NORMS = ("group", "batch", "none")
_VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)  # 0 is a 2 x 2 max-pool


def norm_layer(kind: str, channels: int) -> nn.Module:
    """Normalisation of this kind: 32 groups of channels, batch statistics, or nothing."""
    if kind == "group":
        return nn.GroupNorm(min(32, channels), channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "none":
        return nn.Identity()
    raise UnknownName.among("norm", kind, NORMS)


def vgg11(channels: int = 3, classes: int = 10, norm: str = "group") -> nn.Module:
    """VGG-11 for 32 x 32 images: eight convolutions, five poolings, one linear layer."""
    layers: list[nn.Module] = []
    width = channels
    for out in _VGG11:
        if out == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(width, out, 3, padding=1), norm_layer(norm, out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, classes))


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    def __init__(self, width: int, out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, out, 3, stride, padding=1, bias=False),
            norm_layer(norm, out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            norm_layer(norm, out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), norm_layer(norm, out))

    def forward(self, x: Tensor) -> Tensor:
        """relu(body(x) + shortcut(x))."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18(channels: int = 3, classes: int = 10, norm: str = "group") -> nn.Module:
    """ResNet-18 for small images: a 3 x 3 stem without pooling, four stages of two blocks."""
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), norm_layer(norm, 64), nn.ReLU()]
    width = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(width, out, stride, norm), ResidualBlock(out, out, 1, norm)]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class WindowGRU(nn.Module):
    """A GRU over (time, channel) windows; the last state is classified."""

    def __init__(self, channels: int, classes: int, hidden: int, layers: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.gru = nn.GRU(channels, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of windows (n, time, channel)."""
        states, _ = self.gru(x[:, :: self.stride])
        out: Tensor = self.head(states[:, -1])
        return out


@checked
def gru(channels: Count = 6, classes: Count = 6, hidden: Count = 32, layers: Count = 2, stride: Count = 1) -> nn.Module:
    """A two-layer GRU; FLASH-RL's has 256 units. With a stride it reads every so many steps only, and is faster."""
    return WindowGRU(channels, classes, hidden, layers, stride)


class CharacterGRU(nn.Module):
    """A GRU over the numbers of characters that predicts, at every place, the next one."""

    def __init__(self, characters: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.gru = nn.GRU(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, length, characters) of windows (n, length)."""
        out: Tensor = self.head(self.gru(self.embedding(x))[0])
        return out


@checked
def character_gru(characters: Count, width: Count = 16, hidden: Count = 64) -> nn.Module:
    """A small model of text, character by character."""
    return CharacterGRU(characters, width, hidden)


MODELS: dict[str, Callable[..., nn.Module]] = {"vgg11": vgg11, "resnet18": resnet18, "gru": gru}
