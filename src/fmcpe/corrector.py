r"""The trained chain \( y \to x_0 \to \tilde x \to \theta_0 \to \theta \), as one torch module.

Training (`fmcpe.correction`) and drawing (`fmcpe.posterior`) walk the same chain; it is written down here once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fmcpe.chain import Chain
from fmcpe.flow import transport, transport_back_with_logdet
from fmcpe.networks import DenseHead, EmbeddingHead, VelocityField, embedding_width
from fmcpe.ode import Solver
from fmcpe.proposal import Proposal
from fmcpe.recipe import Recipe
from fmcpe.spaces import ParameterSpace, Standardiser


class Corrector(Chain):
    r"""Both flows, the frozen base posterior, and the spaces they live in.

    Args:
        proposal: The base posterior \( \hat p(\theta | x) \); physical x in, physical θ out.
        space: Physical θ <-> z.
        x_scale: Standardises simulations.
        y_scale: Standardises real observations.
        u_x: \( u_X \), or None (``stages="theta-only"``): the base posterior is then asked about y itself.
        u_theta: \( u_\Theta \), or None (``stages="x-only"``): the draw stops at θ_0.
        sigma: Standard deviation of the x-source around the standardised y.
        solver: How both flows are integrated.
        source: ``"observation"`` for the x-source N(y, σ² I), ``"normal"`` for N(0, I).
    """

    def __init__(
        self,
        proposal: Proposal,
        space: ParameterSpace,
        x_scale: Standardiser,
        y_scale: Standardiser,
        u_x: VelocityField | None,
        u_theta: VelocityField | None,
        sigma: float,
        solver: Solver,
        source: str = "observation",
    ) -> None:
        super().__init__()
        self.proposal, self.sigma, self.solver, self.source_name = proposal, sigma, solver, source
        self.space, self.x_scale, self.y_scale = space, x_scale, y_scale
        self.u_x, self.u_theta = u_x, u_theta

    @property
    def shape(self) -> torch.Size:
        """Shape of one observation."""
        return self.x_scale.mean.shape

    def draw_x0(self, y: Tensor) -> Tensor:
        """x_0 ~ N(y, σ² I) around the standardised y, or x_0 ~ N(0, I), flat: (B, d)."""
        centre = self.y_scale(y).flatten(1)
        noise = torch.randn_like(centre)
        return noise if self.source_name == "normal" else centre + self.sigma * noise

    @torch.no_grad()
    def draw_x(self, y: Tensor, copies: int = 1, x0: Tensor | None = None) -> Tensor:
        """x̃, physical: `copies` consecutive rows for each row of y. Without u_X it is y."""
        if self.u_x is None:
            return y.repeat_interleave(copies, dim=0)
        context = self.u_x.embed(self.y_scale(y)).repeat_interleave(copies, dim=0)
        x0 = self.draw_x0(y.repeat_interleave(copies, dim=0)) if x0 is None else x0
        x = transport(self.u_x, x0, context, self.solver)
        return self.x_scale.inverse(x.unflatten(1, self.shape))

    @torch.no_grad()
    def draw_z0(self, y: Tensor, copies: int = 1, x0: Tensor | None = None) -> Tensor:
        """θ_0 ~ p̂(θ | x̃), in z. No gradient flows through x̃, and the base posterior stays frozen."""
        return self.space.to_z_safely(self.proposal.sample(self.draw_x(y, copies, x0)))

    @torch.no_grad()
    def draw_theta(self, y: Tensor, copies: int = 1) -> Tensor:
        """Corrected physical θ: `copies` consecutive rows for each row of y."""
        z = self.draw_z0(y, copies)
        if self.u_theta is not None:
            context = self.u_theta.embed(self.y_scale(y)).repeat_interleave(copies, dim=0)
            z = transport(self.u_theta, z, context, self.solver)
        return self.space.to_theta(z)

    def source(self, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Draws of x̃, and the log mass of each inside the support. Without u_X, y itself is the one component."""
        x = self.draw_x(y, 1 if self.u_x is None else number)
        return x, self.proposal.log_acceptance(x)

    def log_prob(self, theta: Tensor, y: Tensor, x: Tensor, log_acceptance: Tensor) -> Tensor:
        r"""Log density of physical θ (N, p), inside the support, given one observation y (1, ...): (N,).

        \( \log p(\theta|y) = \log \pi(\theta_0|y) - \log|\det \partial T_\Theta| \), with
        \( \pi(\theta_0|y) \) the mean of \( \hat p(\theta_0|\tilde x) \) over the rows of `x`, draws of x̃ for y, and
        `log_acceptance` the log mass of each of them inside the support.
        """
        if self.u_theta is None:
            return _log_mean_exp(self.proposal.log_prob(theta, x, log_acceptance))
        z = self.space.to_z(theta)
        context = self.u_theta.embed(self.y_scale(y)).expand(theta.shape[0], -1)
        z0, logdet = transport_back_with_logdet(self.u_theta, z, context, self.solver)
        theta0 = self.space.to_theta(z0)
        log_source = _log_mean_exp(self.proposal.log_prob(theta0, x, log_acceptance)) - self.space.log_abs_det(theta0)
        return log_source - logdet + self.space.log_abs_det(theta)


def x_field(recipe: Recipe, shape: torch.Size, embedding: nn.Module) -> VelocityField:
    """A fresh u_X for data of `shape`; (x_t, t) has an embedding head of its own, and `embedding` is that of y."""
    widths = recipe.hidden_x or recipe.widths
    head: DenseHead | EmbeddingHead = (
        DenseHead(shape.numel(), widths[0])
        if recipe.x_head == "dense"
        else EmbeddingHead(tuple(shape), recipe.embedding_dim)
    )
    return VelocityField(shape.numel(), embedding, embedding_width(embedding, shape), widths, head)


def theta_field(recipe: Recipe, dim: int, shape: torch.Size, embedding: nn.Module) -> VelocityField:
    """A fresh u_Θ for θ of `dim` numbers and data of `shape`; `embedding` is that of y."""
    return VelocityField(dim, embedding, embedding_width(embedding, shape), recipe.hidden_theta or recipe.widths)


def _log_mean_exp(log_densities: Tensor) -> Tensor:
    return log_densities.logsumexp(dim=1) - torch.tensor(float(log_densities.shape[1])).log()
