"""Velocity fields, time features, and embeddings of an observation by its shape.

The velocity field is the residual network with gated conditioning that continuous-flow SBI uses (Dax et al.,
2023): every residual block is multiplied by a gate that sees the time and the embedding of the observation.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

SERIES_FROM = 40
"""A flat observation of at least this many numbers is taken to be a series in time order."""


class TimeFeatures(nn.Module):
    """t, and cosines and sines of its first multiples: (..., 1) -> (..., 1 + 2 * frequencies)."""

    omega: Tensor

    def __init__(self, frequencies: int = 8) -> None:
        super().__init__()
        self.register_buffer("omega", math.pi * torch.arange(1, frequencies + 1), persistent=False)
        self.out_features = 1 + 2 * frequencies

    def forward(self, t: Tensor) -> Tensor:
        phase = t * self.omega
        return torch.cat([t, phase.cos(), phase.sin()], dim=-1)


class Linear(nn.Linear):
    """A linear layer whose weights may be those of several networks, (K, out, in), each for its own rows, (K, B, in)."""

    def forward(self, input: Tensor) -> Tensor:
        return self.linear(input, self.weight)

    def linear(self, input: Tensor, weight: Tensor) -> Tensor:
        """The layer with other weights than its own."""
        if weight.ndim == 2:
            return nn.functional.linear(input, weight, self.bias)
        return torch.baddbmm(self.bias[:, None], input, weight.mT)


class GatedBlock(nn.Module):
    """``h + r(h) * sigmoid(gate)``, with `r` a two-layer perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = Linear(width, width)
        self.second = Linear(width, width)

    def forward(self, h: Tensor, gate: Tensor) -> Tensor:
        return h + self.second(silu(self.first(silu(h)))) * gate.sigmoid()


class DenseHead(nn.Module):
    """An embedding of (z, t): a perceptron of z and the features of t.

    Args:
        dim: Dimension of z.
        width: Number of hidden units and of features it gives.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.time, self.out_features = TimeFeatures(), width
        self.from_z = nn.Linear(dim, width, bias=False)
        self.from_t = nn.Linear(self.time.out_features, width)
        self.second = nn.Linear(width, width)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.of_projection(t, self.from_z(z))

    def of_projection(self, t: Tensor, projection: Tensor) -> Tensor:
        """Features from a precomputed projection, ``from_z(z)``."""
        return self.second(silu(projection + self.from_t(self.time(t))))


class EmbeddingHead(nn.Module):
    """An embedding of (z, t): a network that suits data of the shape of z, and the features of t.

    Args:
        shape: Shape of the data that z is, flattened.
        features: Number of features of the network.
    """

    def __init__(self, shape: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.shape, self.net, self.time = tuple(shape), embedding_for(tuple(shape), features), TimeFeatures()
        self.out_features = features + self.time.out_features

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        features, time = self.net(z.unflatten(-1, self.shape)), self.time(t)
        return torch.cat([features, time.expand(*features.shape[:-1], -1)], dim=-1)


class VelocityField(nn.Module):
    """u(t, z, y) for flat z of `dim` numbers.

    What the network needs to know of y (its share of every gate) is computed once, by `embed`, and handed to each
    evaluation: an ODE solver pays for it once, not once a step.

    Args:
        dim: Dimension of z.
        embedding: Network from a batch of observations to (B, embedding_dim).
        embedding_dim: Its output size.
        widths: Widths of the residual blocks; a linear layer stands between two that differ.
        head: Embeds (z, t) before the residual network, with a signature of ``(t, z)``; z itself enters it if None.
    """

    def __init__(
        self,
        dim: int,
        embedding: nn.Module,
        embedding_dim: int,
        widths: Sequence[int],
        head: DenseHead | EmbeddingHead | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.time, self.head, self.widths = embedding, TimeFeatures(), head, tuple(widths)
        self._parts = [widths[0], *widths]
        self.from_y = Linear(embedding_dim, sum(self._parts))
        self.from_t = Linear(self.time.out_features, sum(self._parts))
        self.first = Linear(dim if head is None else head.out_features, widths[0])
        self.blocks = nn.ModuleList(GatedBlock(width) for width in widths)
        self.resize = nn.ModuleList(
            nn.Identity() if before == after else Linear(before, after) for before, after in pairwise(widths)
        )
        self.last = Linear(widths[-1], dim)

    def embed(self, y: Tensor) -> Tensor:
        """The context of each row of `y`, (B, widths[0] + sum(widths))."""
        return self.from_y(self.embedding(y))

    def forward(self, t: Tensor, z: Tensor, context: Tensor) -> Tensor:
        """The velocity at time `t` (() or (B, 1)) and point `z` (B, dim), for observations embedded in `context`."""
        t = t.reshape(1) if t.ndim == 0 else t
        return self.last(self.trunk(t, z if self.head is None else self.head(t, z), context))

    def trunk(self, t: Tensor, entrance: Tensor, context: Tensor) -> Tensor:
        """Input of the final linear layer, (B, widths[-1])."""
        context = context + self.from_t(self.time(t))
        shift, *gates = context.split(self._parts, dim=-1)
        h = self.first(entrance) + shift
        for block, gate, resize in zip(self.blocks, gates, [*self.resize, nn.Identity()], strict=True):
            h = resize(block(h, gate))
        return silu(h)


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
