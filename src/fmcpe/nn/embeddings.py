"""Embeddings of an observation by its shape."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

SERIES_FROM = 40
"""A flat observation of at least this many numbers is taken to be a series in time order."""


def embedding_for(shape: tuple[int, ...], out_features: int) -> nn.Sequential:
    """A sensible embedding of one observation of `shape`: a perceptron, or 1-d or 2-d convolutions.

    ``(d,)`` is a vector, or from `SERIES_FROM` numbers on a series; ``(channels, length)`` is a series;
    ``(channels, height, width)`` or ``(height, width, channels)`` is an image.
    """
    if len(shape) == 1 and shape[0] < SERIES_FROM:
        return nn.Sequential(nn.Linear(shape[0], 64), nn.SiLU(), nn.Linear(64, out_features))
    if len(shape) <= 2:
        return series_embedding(shape, out_features)
    if len(shape) == 3:
        return image_embedding(shape, out_features)
    raise ValueError(
        f"there is no default embedding for observations of shape {shape}; vectors (d,), series (channels, length) "
        "and images (channels, height, width) have one. Pass embedding_net=, a torch module of your own."
    )


def series_embedding(shape: tuple[int, ...], out_features: int) -> nn.Sequential:
    """Strided 1-d convolutions, pooled to eight places."""
    channels = shape[0] if len(shape) == 2 else 1
    layers: list[nn.Module] = [nn.Unflatten(1, (1, shape[0]))] if len(shape) == 1 else []
    for width in (16, 32, 32):
        layers += [nn.Conv1d(channels, width, kernel_size=5, stride=2, padding=2), nn.SiLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(8 * channels, out_features))


def image_embedding(shape: tuple[int, ...], out_features: int) -> nn.Sequential:
    """Strided 2-d convolutions, pooled to four by four places."""
    channels_last = shape[0] > 4 and shape[2] <= 4
    layers: list[nn.Module] = [ChannelsFirst()] if channels_last else []
    channels = shape[2] if channels_last else shape[0]
    for width in (16, 32, 32):
        layers += [nn.Conv2d(channels, width, kernel_size=5, stride=2, padding=2), nn.SiLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, out_features))


class ChannelsFirst(nn.Module):
    """(B, height, width, channels) -> (B, channels, height, width)."""

    def forward(self, image: Tensor) -> Tensor:
        return image.movedim(-1, -3)


def has_weights(net: nn.Module) -> bool:
    """Whether there is anything in a network to train."""
    return next(net.parameters(), None) is not None


class WithoutWeights(nn.Identity):
    """A network that has no weights, such as `nn.Flatten()`, for sbi: it asks every network that is not an `nn.Identity` for
    the device of its first weight.

    Args:
        net: The network.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def embedding_width(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of features an embedding gives for one observation of `shape`; refuses what is not (B, features)."""
    probe = copy.deepcopy(net).eval()  # a look must not touch the statistics of normalisation layers
    with torch.no_grad():
        try:
            out = probe(torch.zeros(2, *shape))
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                f"embedding_net failed on a batch of shape {(2, *shape)}: {error}. A network from (B, "
                f"{', '.join(map(str, shape))}) to (B, features) was expected; add the layers that reshape its input."
            ) from error
    if not isinstance(out, Tensor) or out.ndim != 2 or out.shape[0] != 2:
        came = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"embedding_net gave {came} for a batch of 2; (2, features) was expected. End it with nn.Flatten()."
        )
    return out.shape[1]


class LevelAware(nn.Module):
    """An embedding with one more feature: the level of domain randomisation of its input.

    Args:
        net: The embedding, (B, ...) -> (B, features).
    """

    level: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("level", torch.zeros(1, 1))
        self._levels: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        features, level = self.net(x), self.level if self._levels is None else self._levels
        return torch.cat([features, level.expand(features.shape[0], 1)], dim=1)

    @contextmanager
    def at(self, levels: Tensor) -> Iterator[None]:
        """Within this context the rows have these levels, (B, 1), in place of the one that is set."""
        self._levels = levels
        try:
            yield
        finally:
            self._levels = None


def made_aware(net: nn.Module | None) -> nn.Module | None:
    """A copy of an embedding that is told the level of its input; without weights it could learn nothing of it, and stays."""
    if net is None or not has_weights(net):
        return net
    return LevelAware(copy.deepcopy(net))


def level_aware_part(module: nn.Module) -> LevelAware | None:
    """The part of a network that is told the level of domain randomisation, if it has one."""
    return next((m for m in module.modules() if isinstance(m, LevelAware)), None)
