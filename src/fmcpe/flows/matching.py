r"""Conditional flow matching with an arbitrary source.

With a source point z_0, a target z_1 and a condition y, the loss regresses the velocity of the straight path
z_t = (1-t) z_0 + t z_1 (equations 3 and 7 of the paper):

    L(u) = E |u(t, z_t, y) - (z_1 - z_0)|²,   t ~ U[0, 1].

Transport integrates dz/dt = u(t, z, y) from t=0 to t=1. Its log-determinant, the integral of div u, is that of the
discrete map (`fmcpe.flows.solvers`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from fmcpe._errors import FileError
from fmcpe.flows.solvers import Solver
from fmcpe.flows.velocity import DenseHead, EmbeddingHead, VelocityField, head_from_config
from fmcpe.nn.describe import build, describe
from fmcpe.nn.ensemble import Stacked, Weights

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""u(t, z, y): times (..., 1), points (..., D), conditions (..., *shape) -> velocities (..., D)."""


class Field(nn.Module):
    """A `VelocityField` as a function of (t, z, y), with the transport that it defines."""

    def __init__(
        self,
        dim: int,
        embedding: nn.Module,
        features: int,
        widths: tuple[int, ...],
        head: DenseHead | EmbeddingHead | None = None,
    ) -> None:
        super().__init__()
        self.u = VelocityField(dim, embedding, features, widths, head)

    def forward(self, t: Tensor, z: Tensor, y: Tensor) -> Tensor:
        return self.u(t, z, self.u.embed(y))

    def to_config(self) -> dict[str, Any]:
        """The architecture; the embedding is None if it cannot be described."""
        head = self.u.head
        return {
            "dim": self.u.last.out_features,
            "embedding": describe(self.u.embedding),
            "features": self.u.from_y.in_features,
            "widths": list(self.u.widths),
            "head": None if head is None else head.to_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], embedding: nn.Module | None = None) -> Field:
        """A field of that architecture; `embedding` replaces a network that could not be described."""
        net = build(config["embedding"]) if config["embedding"] is not None else embedding
        if net is None:
            raise FileError(
                "Expected the embedding_net that the posterior was fitted with, which a file cannot describe, got "
                "none. Call fmcpe.load(path, embedding_net=the_network); its weights come from the file."
            )
        head = None if config["head"] is None else head_from_config(config["head"])
        return cls(config["dim"], copy.deepcopy(net), config["features"], tuple(config["widths"]), head)

    def push(self, z: Tensor, y: Tensor, solver: Solver) -> Tensor:
        """Transport draws (B, n, D) from the source to the target, for conditions (B, ...)."""
        context = self.u.embed(y).repeat_interleave(z.shape[1], dim=0)
        return transport(self.u, z.flatten(0, 1), context, solver).unflatten(0, z.shape[:2])

    def pull(self, z: Tensor, y: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
        """The inverse of `push`, and the log-determinant of `push` there, (B, n)."""
        context = self.u.embed(y).repeat_interleave(z.shape[1], dim=0)
        z0, log_det = solver.invert_with_logdet(lambda t, v: self.u(t, v, context), z.flatten(0, 1))
        return z0.unflatten(0, z.shape[:2]), log_det.unflatten(0, z.shape[:2])


def matching_loss(u: Velocity, z0: Tensor, z1: Tensor, y: Tensor) -> Tensor:
    """Squared error of the velocity between source z0 and target z1, (..., B, D) -> (..., B), at uniform times."""
    t = torch.rand(*z0.shape[:-1], 1, device=z0.device)
    return (u(t, (1 - t) * z0 + t * z1, y) - (z1 - z0)).square().sum(-1)


def untrained_fields(dim: int, features: int, widths: tuple[int, ...], number: int, device: torch.device) -> Stacked:
    """An untrained ensemble of fields, conditioned on vectors; zero last layers make them start as the identity."""
    fresh = [Field(dim, nn.Identity(), features, widths).to(device) for _ in range(number)]
    for field in fresh:
        nn.init.zeros_(field.u.last.weight)
        nn.init.zeros_(field.u.last.bias)
    return Stacked(fresh, natively=True)


def unstacked(u: Stacked, weights: Weights) -> list[Field]:
    """The members as separate fields."""
    return [cast(Field, module) for module in u.members(weights)]


def at(u: Velocity, y: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The field for these conditions, as `Solver` takes it: t (), z (..., B, D) -> (..., B, D)."""
    return lambda t, z: u(t.expand(*z.shape[:-1], 1), z, y)


@torch.no_grad()
def carry(u: Velocity, y: Tensor, z0: Tensor, solver: Solver) -> Tensor:
    """Transport of source points, (..., B, D)."""
    return solver.solve(at(u, y), z0)


def transport(u: VelocityField, z0: Tensor, context: Tensor, solver: Solver) -> Tensor:
    """Transport of source points (B, D), for conditions embedded in `context`."""
    head = u.head
    if isinstance(head, DenseHead) and z0.shape[-1] > u.widths[-1]:
        return _transport_hidden(u, head, z0, context, solver)
    return solver.solve(lambda t, z: u(t, z, context), z0)


def _transport_hidden(u: VelocityField, head: DenseHead, z0: Tensor, context: Tensor, solver: Solver) -> Tensor:
    """The same map for a field with linear input and output layers, in the space of its last hidden layer.

    With u(t, z) = W g(t, V z) + b, every stage of an explicit Runge-Kutta method is z = z_0 + W s + (t - t_0) b. So it
    suffices to solve ds/dt = g(t, V z_0 + V W s + (t - t_0) V b), for an image with 128 numbers in place of 12 288.
    """
    weight, bias = u.last.weight, u.last.bias
    start, mixed, drift = head.from_z(z0), head.from_z(weight.mT), head.from_z(bias)

    def velocity(t: Tensor, s: Tensor) -> Tensor:
        projection = start + s @ mixed + (t - solver.start) * drift
        return u.trunk(t.reshape(1), head.of_projection(t.reshape(1), projection), context)

    s = solver.solve(velocity, z0.new_zeros(*z0.shape[:-1], weight.shape[1]))
    return z0 + s @ weight.mT + (solver.end - solver.start) * bias
