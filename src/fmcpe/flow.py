r"""Conditional flow matching with an arbitrary source.

For a source point \( z_0 \), a target \( z_1 \) and a condition \( y \), the path is the straight line
\( z_t = (1-t) z_0 + t z_1 \) and the loss regresses its velocity (equations 3 and 7 of the paper):

    \( L(u) = E_{t, z_0, z_1, y} \lVert u(t, z_t, y) - (z_1 - z_0) \rVert^2, \quad t \sim U[0, 1]. \)

Transport integrates \( \dot z = u(t, z, y) \) from t=0 to t=1; its log-determinant is
\( \int_0^1 \mathrm{div}\, u \, dt \) (computed for the discrete map, see `fmcpe.ode`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fmcpe.networks import DenseHead, VelocityField
from fmcpe.ode import Solver


def interpolate(z0: Tensor, z1: Tensor, t: Tensor) -> Tensor:
    """The straight path between rows of `z0` and `z1` at times `t` of shape (B, 1)."""
    return (1 - t) * z0 + t * z1


def matching_loss(u: VelocityField, z0: Tensor, z1: Tensor, context: Tensor, t: Tensor | None = None) -> Tensor:
    """Squared error of the velocity, summed over dimensions: shape (B,), or (K, B) for the rows of K stacked fields.

    Args:
        u: The velocity field.
        z0: Source points, (B, D).
        z1: Targets, (B, D).
        context: What `u` knows of the observations.
        t: A time for each row, (B, 1); uniform if None.
    """
    t = torch.rand(*z0.shape[:-1], 1, device=z0.device) if t is None else t
    velocity = u(t, interpolate(z0, z1, t), context)
    return (velocity - (z1 - z0)).square().sum(-1)


def transport(u: VelocityField, z0: Tensor, context: Tensor, solver: Solver) -> Tensor:
    """Carry source points to the target."""
    head = u.head
    if isinstance(head, DenseHead) and u.first.weight.ndim == 2 and z0.shape[-1] > u.widths[-1]:
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


def transport_back(u: VelocityField, z1: Tensor, context: Tensor, solver: Solver) -> Tensor:
    """The inverse of `transport`."""
    return solver.invert(lambda t, z: u(t, z, context), z1)


def transport_back_with_logdet(u: VelocityField, z1: Tensor, context: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
    """The inverse of `transport`, and the log-determinant of the forward map there."""
    return solver.invert_with_logdet(lambda t, z: u(t, z, context), z1)
