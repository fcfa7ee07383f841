"""Embedding networks: defaults by the shape of an observation, checks, and the level of domain randomisation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def is_vector(shape: tuple[int, ...], series_from: int = 40) -> bool:
    """Whether an observation of `shape` is a vector; a flat one of `series_from` numbers or more is a series in time order."""
    return len(shape) == 1 and shape[0] < series_from


def embedding_for(shape: tuple[int, ...], out_features: int) -> nn.Sequential:
    """The default embedding of an observation of `shape`: a perceptron, or 1-d or 2-d convolutions.

    ``(d,)`` is a vector, or a series (`is_vector`); ``(channels, length)`` is a series;
    ``(channels, height, width)`` or ``(height, width, channels)`` is an image.
    """
    if is_vector(shape):
        return nn.Sequential(nn.Linear(shape[0], 64), nn.SiLU(), nn.Linear(64, out_features))
    conv: type[nn.Conv1d] | type[nn.Conv2d]
    pool: nn.Module
    layers: list[nn.Module]
    if len(shape) <= 2:
        conv, pool, pooled = nn.Conv1d, nn.AdaptiveAvgPool1d(8), 8
        channels, layers = (1, [nn.Unflatten(1, (1, shape[0]))]) if len(shape) == 1 else (shape[0], [])
    elif len(shape) == 3:
        conv, pool, pooled = nn.Conv2d, nn.AdaptiveAvgPool2d(4), 16
        channels, layers = (shape[2], [ChannelsFirst()]) if shape[0] > 4 and shape[2] <= 4 else (shape[0], [])
    else:
        raise ValueError(
            "Expected vectors (d,), series (channels, length) or images (channels, height, width), got observations of "
            f"shape {shape}. Pass embedding_net=, a torch module of your own."
        )
    for width in (16, 32, 32):
        layers += [conv(channels, width, kernel_size=5, stride=2, padding=2), nn.SiLU()]
        channels = width
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(pooled * channels, out_features))


def automatic(choice: str, shape: tuple[int, ...], out_features: int = 16) -> nn.Sequential | None:
    """The network of ``embedding_net="auto"``: `embedding_for` the shape, none for short vectors."""
    if choice != "auto":
        raise ValueError(f'Expected embedding_net="auto", a network or None, got {choice!r}. Try embedding_net="auto".')
    return None if is_vector(shape) else embedding_for(shape, out_features)


class ChannelsFirst(nn.Module):
    """(B, height, width, channels) -> (B, channels, height, width)."""

    def forward(self, image: Tensor) -> Tensor:
        return image.movedim(-1, -3)


def has_weights(net: nn.Module, recurse: bool = True) -> bool:
    """Whether a network has parameters; without `recurse`, outside its submodules."""
    return next(net.parameters(recurse), None) is not None


class WithoutWeights(nn.Identity):
    """A network without weights, such as `nn.Flatten()`: sbi asks all but `nn.Identity` for the device of a weight."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def embedding_width(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of features of an embedding (B, *shape) -> (B, features); an error for any other output."""
    probe = copy.deepcopy(net).eval()  # the statistics of normalisation layers must not change
    with torch.no_grad():
        try:
            out = probe(torch.zeros(2, *shape))
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                f"Expected an embedding_net from (B, {', '.join(map(str, shape))}) to (B, features), got an error for "
                f"a batch of shape {(2, *shape)}: {error}. Add the layers that reshape its input."
            ) from error
    if not isinstance(out, Tensor) or out.ndim != 2 or out.shape[0] != 2:
        found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"Expected embedding_net to return (2, features) for a batch of 2, got {found}. End it with nn.Flatten()."
        )
    return out.shape[1]


class LevelAware(nn.Module):
    """An embedding with one more feature: the level of domain randomisation of its input, 0 by default."""

    level: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("level", torch.zeros(1, 1))
        self._levels: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        features, level = self.net(x), self.level if self._levels is None else self._levels
        return torch.cat([features, level.expand(features.shape[0], 1)], dim=1)


def made_aware(net: nn.Module | None) -> nn.Module | None:
    """A level-aware copy of an embedding that has weights; any other one unchanged."""
    return net if net is None or not has_weights(net) else LevelAware(copy.deepcopy(net))


def level_aware_part(module: nn.Module) -> LevelAware | None:
    """The level-aware embedding inside a network, if any."""
    return next((m for m in module.modules() if isinstance(m, LevelAware)), None)


@contextmanager
def at_levels(module: nn.Module, levels: Tensor) -> Iterator[None]:
    """A context in which the level-aware part of a network, if any, uses these levels, (B, 1)."""
    aware = level_aware_part(module)
    if aware is None:
        yield
        return
    aware._levels = levels
    try:
        yield
    finally:
        aware._levels = None
