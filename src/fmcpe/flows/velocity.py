"""The velocity field: a residual network with gated conditioning, as in flow matching for SBI (Dax et al., 2023).

A gate multiplies every residual block; it depends on the time and on the embedding of the observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from fmcpe.nn.embeddings import embedding_for
from fmcpe.nn.ensemble import Linear


class TimeFeatures(nn.Module):
    """t, cos(kπt) and sin(kπt) for k up to `frequencies`: (..., 1) -> (..., 1 + 2 * frequencies)."""

    omega: Tensor

    def __init__(self, frequencies: int = 8) -> None:
        super().__init__()
        self.register_buffer("omega", math.pi * torch.arange(1, frequencies + 1), persistent=False)
        self.out_features = 1 + 2 * frequencies

    def forward(self, t: Tensor) -> Tensor:
        phase = t * self.omega
        return torch.cat([t, phase.cos(), phase.sin()], dim=-1)


class GatedBlock(nn.Module):
    """``h + r(h) * sigmoid(gate)`` with a two-layer perceptron r."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = Linear(width, width)
        self.second = Linear(width, width)

    def forward(self, h: Tensor, gate: Tensor) -> Tensor:
        return h + self.second(silu(self.first(silu(h)))) * gate.sigmoid()


class DenseHead(nn.Module):
    """An embedding of (z, t): a perceptron of z (..., dim) and time features, with `width` hidden units and outputs."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.dim, self.time, self.out_features = dim, TimeFeatures(), width
        self.from_z = nn.Linear(dim, width, bias=False)
        self.from_t = nn.Linear(self.time.out_features, width)
        self.second = nn.Linear(width, width)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.of_projection(t, self.from_z(z))

    def of_projection(self, t: Tensor, projection: Tensor) -> Tensor:
        """The embedding for a precomputed projection ``from_z(z)``."""
        return self.second(silu(projection + self.from_t(self.time(t))))

    def to_config(self) -> dict[str, Any]:
        return {"dim": self.dim, "width": self.out_features}


class EmbeddingHead(nn.Module):
    """An embedding of (z, t): `embedding_for` the shape of z before flattening, and time features."""

    def __init__(self, shape: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.shape, self.net, self.time = tuple(shape), embedding_for(tuple(shape), features), TimeFeatures()
        self.features = features
        self.out_features = features + self.time.out_features

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        features, time = self.net(z.unflatten(-1, self.shape)), self.time(t)
        return torch.cat([features, time.expand(*features.shape[:-1], -1)], dim=-1)

    def to_config(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "features": self.features}


def head_from_config(config: dict[str, Any]) -> DenseHead | EmbeddingHead:
    if "width" in config:
        return DenseHead(config["dim"], config["width"])
    return EmbeddingHead(tuple(config["shape"]), config["features"])


class VelocityField(nn.Module):
    """u(t, z, y) for z (..., dim). `embed` computes the contribution of y to all gates once per ODE, not once per step.

    Args:
        dim: Dimension of z.
        embedding: Network from observations (B, ...) to (B, embedding_dim).
        embedding_dim: Number of its features.
        widths: Widths of the residual blocks; a linear layer connects blocks of different widths.
        head: Embedding of (z, t); z itself if None.
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
        """The velocity at time `t` (() or (B, 1)) and point `z` (B, dim), given the `context` of the observations."""
        t = t.reshape(1) if t.ndim == 0 else t
        return self.last(self.trunk(t, z if self.head is None else self.head(t, z), context))

    def trunk(self, t: Tensor, entrance: Tensor, context: Tensor) -> Tensor:
        """Input of the last linear layer, (B, widths[-1])."""
        context = context + self.from_t(self.time(t))
        shift, *gates = context.split(self._parts, dim=-1)
        h = self.first(entrance) + shift
        for block, gate, resize in zip(self.blocks, gates, [*self.resize, nn.Identity()], strict=True):
            h = resize(block(h, gate))
        return silu(h)
