r"""Conditional flow matching with an arbitrary source.

For a source point \( z_0 \), a target \( z_1 \) and a condition \( y \), the path is the straight line
\( z_t = (1-t) z_0 + t z_1 \) and the loss regresses its velocity (equations 3 and 7 of the paper):

    \( L(u) = E_{t, z_0, z_1, y} \lVert u(t, z_t, y) - (z_1 - z_0) \rVert^2, \quad t \sim U[0, 1]. \)

Transport integrates \( \dot z = u(t, z, y) \) from t=0 to t=1; its log-determinant is
\( \int_0^1 \mathrm{div}\, u \, dt \) (computed for the discrete map, see `fmcpe.flows.solvers`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from fmcpe.flows.solvers import Solver
from fmcpe.flows.velocity import DenseHead, EmbeddingHead, VelocityField, head_from_config
from fmcpe.nn.describe import build, describe
from fmcpe.nn.ensemble import Stacked, Weights

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""u(t, z, y): times (..., 1), points (..., D) and conditions (..., *shape) to velocities (..., D)."""


class Field(nn.Module):
    """A velocity field as a plain function of (t, z, y); with the weights of several members, of rows of each.

    Args:
        dim: Dimension of z.
        embedding: Network from conditions to features.
        features: How many.
        widths: Of the residual blocks.
        head: Embeds (z, t) before the residual network.
    """

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
        """Its architecture; the embedding is None where it cannot be described."""
        head = self.u.head
        return {
            "dim": self.u.last.out_features, "embedding": describe(self.u.embedding), "features": self.u.from_y.in_features,
            "widths": list(self.u.widths), "head": None if head is None else head.to_config(),
        }  # fmt: skip

    @classmethod
    def from_config(cls, config: dict[str, Any], embedding: nn.Module | None = None) -> Field:
        """A field of that architecture; `embedding` is a network that could not be described."""
        net = build(config["embedding"]) if config["embedding"] is not None else embedding
        if net is None:
            raise ValueError(
                "Expected the embedding_net that the posterior was fitted with, which a file cannot describe, got none. Call "
                "fmcpe.load(path, embedding_net=the_network); its weights come from the file."
            )
        head = None if config["head"] is None else head_from_config(config["head"])
        return cls(config["dim"], copy.deepcopy(net), config["features"], tuple(config["widths"]), head)

    def push(self, z: Tensor, y: Tensor, solver: Solver) -> Tensor:
        """Carry draws (B, n, D) from the source to the target, for conditions (B, ...)."""
        context = self.u.embed(y).repeat_interleave(z.shape[1], dim=0)
        return transport(self.u, z.flatten(0, 1), context, solver).unflatten(0, z.shape[:2])

    def pull(self, z: Tensor, y: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
        """The inverse of `push`, and its log-determinant, (B, n)."""
        context = self.u.embed(y).repeat_interleave(z.shape[1], dim=0)
        z0, log_det = transport_back_with_logdet(self.u, z.flatten(0, 1), context, solver)
        return z0.unflatten(0, z.shape[:2]), log_det.unflatten(0, z.shape[:2])


def interpolate(z0: Tensor, z1: Tensor, t: Tensor) -> Tensor:
    """The straight path between rows of `z0` and `z1` at times `t` of shape (..., 1)."""
    return (1 - t) * z0 + t * z1


def matching_loss(u: Velocity, z0: Tensor, z1: Tensor, y: Tensor, t: Tensor | None = None) -> Tensor:
    """Squared error of the velocity, summed over dimensions: (..., B, D) -> (..., B).

    Args:
        u: The velocity field.
        z0: Source points.
        z1: Targets.
        y: Conditions.
        t: A time for each row, (..., B, 1); uniform if None.
    """
    t = torch.rand(*z0.shape[:-1], 1, device=z0.device) if t is None else t
    return (u(t, interpolate(z0, z1, t), y) - (z1 - z0)).square().sum(-1)


def members(dim: int, features: int, widths: tuple[int, ...], number: int) -> Stacked:
    """Fresh fields of so many members, conditioned on vectors. The last layer is zero: without evidence, no correction."""
    fresh = [Field(dim, nn.Identity(), features, widths) for _ in range(number)]
    for field in fresh:
        nn.init.zeros_(field.u.last.weight)
        nn.init.zeros_(field.u.last.bias)
    return Stacked(fresh, natively=True)


def unstacked(u: Stacked, weights: Weights) -> list[Field]:
    """Each member's field by itself."""
    return [cast(Field, module) for module in u.members(weights)]


@torch.no_grad()
def carry(u: Velocity, z0: Tensor, y: Tensor, solver: Solver) -> Tensor:
    """Source points to their targets, (..., B, D)."""
    return solver.solve(lambda t, z: u(t.expand(*z.shape[:-1], 1), z, y), z0)


def transport(u: VelocityField, z0: Tensor, context: Tensor, solver: Solver) -> Tensor:
    """Carry source points to the target."""
    head = u.head
    if isinstance(head, DenseHead) and z0.shape[-1] > u.widths[-1]:
        return _transport_hidden(u, head, z0, context, solver)
    return solver.solve(lambda t, z: u(t, z, context), z0)


def _transport_hidden(u: VelocityField, head: DenseHead, z0: Tensor, context: Tensor, solver: Solver) -> Tensor:
    r"""The same map, for a field with linear input and output layers.

    With \( u(t, z) = W g(t, V z) + b \), every stage of an explicit Runge-Kutta method has the form
    \( z = z_0 + W s + (t - t_0) b \), so it is enough to solve \( \dot s = g(t, V z_0 + V W s + (t - t_0) V b) \) for s, which
    has as many numbers as the last hidden layer: of an image, 128 in place of 12 288.
    """
    weight, bias = u.last.weight, u.last.bias
    start, mixed, drift = head.from_z(z0), head.from_z(weight.mT), head.from_z(bias)

    def velocity(t: Tensor, s: Tensor) -> Tensor:
        projection = start + s @ mixed + (t - solver.start) * drift
        return u.trunk(t.reshape(1), head.of_projection(t.reshape(1), projection), context)

    s = solver.solve(velocity, z0.new_zeros(*z0.shape[:-1], weight.shape[1]))
    return z0 + s @ weight.mT + (solver.end - solver.start) * bias


def transport_back_with_logdet(u: VelocityField, z1: Tensor, context: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
    """The inverse of `transport`, and the log-determinant of the forward map there."""
    return solver.invert_with_logdet(lambda t, z: u(t, z, context), z1)
