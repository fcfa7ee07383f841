r"""The chain of the default recipe: \( y \to \tilde x \to \theta_0 \to \theta \), from a warm start.

    x̃ = Move(y)                    closed form, or y itself
    z_0 ~ p̂(θ | x̃), then Step      the base posterior, or one that was fine-tuned; closed form
    z = ODE(u_Θ; z_0, y)           members that were cross-fitted, one picked for each draw

Any part may be missing: the evidence decides (`fmcpe.evidence`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fmcpe.chain import Chain
from fmcpe.flow import transport, transport_back_with_logdet
from fmcpe.networks import VelocityField
from fmcpe.ode import Solver
from fmcpe.proposal import Proposal
from fmcpe.source import Move, Step
from fmcpe.spaces import ParameterSpace, Standardiser

MANY_NUMBERS = 500
"""Data of more numbers than this, without a summary, are not regressed on."""

FURTHEST = 4.0
"""How far, in standard deviations of the calibration pairs, a number that describes y may lie from their mean."""


class WarmChain(Chain):
    r"""A warm start and the θ-flows that refine it.

    Args:
        proposal: The base posterior, or what fine-tuning made of it.
        space: Physical θ <-> z.
        summary: What describes y to regressions and flows: (B, ...) -> (B, f).
        x_scale: Standardises what the base posterior sees of simulations.
        y_scale: Standardises the summary of real observations.
        move: From y to x̃, or None: the base posterior is asked about y itself.
        step: From the base posterior's draws to z_0, or None.
        u_theta: Cross-fitted members of \( u_\Theta \); none, where they do not help.
        solver: How the flows are integrated.
    """

    def __init__(
        self,
        proposal: Proposal,
        space: ParameterSpace,
        summary: nn.Module,
        x_scale: Standardiser,
        y_scale: Standardiser,
        move: Move | None,
        step: Step | None,
        u_theta: Sequence[VelocityField],
        solver: Solver,
    ) -> None:
        super().__init__()
        self.proposal, self.space, self.solver = proposal, space, solver
        self.summary, self.x_scale, self.y_scale = summary, x_scale, y_scale
        self.move, self.step = move, step
        self.set_flows(u_theta)

    def set_flows(self, members: Sequence[VelocityField]) -> None:
        """Refine the warm start by these."""
        self._u_theta = nn.ModuleList(members)

    @property
    def u_theta(self) -> list[VelocityField]:
        """The members of the θ-flow."""
        return [cast(VelocityField, u) for u in self._u_theta]

    @property
    def shape(self) -> torch.Size:
        """Shape of one x̃."""
        return self.proposal.x_shape or self.x_scale.mean.shape

    @torch.no_grad()
    def features(self, y: Tensor) -> Tensor:
        """What regressions and flows are told of prepared observations: (B, f).

        One that is unlike all pairs is described as the last that is still somewhat like them: no line is drawn further.
        """
        return self.y_scale(self.summary(y)).clamp(-FURTHEST, FURTHEST)

    @torch.no_grad()
    def draw_x(self, y: Tensor, copies: int = 1) -> Tensor:
        """x̃ as the base posterior takes it: `copies` consecutive rows for each row of y."""
        if self.move is None:
            return y.repeat_interleave(copies, dim=0)
        x = self.move.draw(self.features(y), self.x_scale(y).flatten(1), copies)
        return self.x_scale.inverse(x.unflatten(1, self.shape))

    @torch.no_grad()
    def draw_z0(self, y: Tensor, copies: int = 1) -> Tensor:
        """The warm start: where the θ-flows begin."""
        z = self.space.to_z_safely(self.proposal.sample(self.draw_x(y, copies)))
        return z if self.step is None else self.step(z, self.features(y).repeat_interleave(copies, dim=0))

    @torch.no_grad()
    def draw_theta(self, y: Tensor, copies: int = 1) -> Tensor:
        z = self.draw_z0(y, copies)
        if self.u_theta:
            features = self.features(y).repeat_interleave(copies, dim=0)
            z = draw_through(self.u_theta, z, features, self.solver)
        return self.space.to_theta(z)

    def source(self, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
        x = self.draw_x(y, 1 if self.move is None else number)
        return x, self.proposal.log_acceptance(x)

    def log_prob(self, theta: Tensor, y: Tensor, x: Tensor, log_acceptance: Tensor) -> Tensor:
        if not self.u_theta and self.step is None:
            return self._log_source(theta, x, log_acceptance)
        z, features = self.space.to_z(theta), self.features(y).expand(theta.shape[0], -1)
        if not self.u_theta:
            return self._log_start(z, features, x, log_acceptance) + self.space.log_abs_det(theta)
        members = []
        for u in self.u_theta:
            z0, log_det = transport_back_with_logdet(u, z, u.embed(features), self.solver)
            members.append(self._log_start(z0, features, x, log_acceptance) - log_det)
        log_density = torch.stack(members).logsumexp(0) - math.log(len(members))
        return log_density + self.space.log_abs_det(theta)

    def _log_start(self, z: Tensor, features: Tensor, x: Tensor, log_acceptance: Tensor) -> Tensor:
        """Log density of the warm start at z, as a density in z."""
        z0 = z if self.step is None else self.step.inverse(z, features)
        theta0 = self.space.to_theta(z0)
        log_density = self._log_source(theta0, x, log_acceptance) - self.space.log_abs_det(theta0)
        return log_density if self.step is None else log_density - self.step.log_det()

    def _log_source(self, theta: Tensor, x: Tensor, log_acceptance: Tensor) -> Tensor:
        log_density = self.proposal.log_prob(theta, x, log_acceptance)
        return log_density.logsumexp(dim=1) - math.log(log_density.shape[1])


class LastRow(nn.Module):
    """Of what fine-tuned members and, last, the base posterior see of y, (B, K + 1, ...), the base posterior's part."""

    def forward(self, y: Tensor) -> Tensor:
        return y[:, -1]


def summary_for(numbers: int) -> nn.Module:
    """What describes prepared observations of so many numbers: all of them, or where they are many, 64 means of neighbours."""
    if numbers <= MANY_NUMBERS:
        return nn.Flatten()
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, numbers)), nn.AdaptiveAvgPool1d(64), nn.Flatten())


def draw_through(members: Sequence[VelocityField], z: Tensor, features: Tensor, solver: Solver) -> Tensor:
    """Carry each row of z through a member that is picked at random."""
    picked = torch.randint(len(members), (z.shape[0],), device=z.device)
    out = torch.empty_like(z)
    for index, u in enumerate(members):
        rows = (picked == index).nonzero()[:, 0]
        if len(rows):
            out[rows] = transport(u, z[rows], u.embed(features[rows]), solver)
    return out
