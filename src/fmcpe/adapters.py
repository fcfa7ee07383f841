"""Adapters from what users have (sbi posteriors, plain functions) to a `Proposal`: one θ per row of x."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sbi.inference.posteriors import DirectPosterior, EnsemblePosterior, VectorFieldPosterior
from sbi.inference.posteriors.base_posterior import NeuralPosterior
from sbi.neural_nets.estimators import ZukoFlow
from sbi.utils.sbiutils import CallableTransform
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._checks import parameter_dim
from fmcpe.ode import Solver
from fmcpe.proposal import Proposal
from fmcpe.splines import natively


class DensityProposal(Proposal):
    """An sbi `DirectPosterior` (NPE): its density estimator, without the rejection loop."""

    def __init__(self, posterior: DirectPosterior, prior: Distribution | None = None) -> None:
        self.posterior = posterior
        self.estimator = posterior.posterior_estimator.eval()
        self._net: nn.Module | None = None
        self._made_of: list[Tensor] = []
        super().__init__(prior or posterior.prior, torch.Size(self.estimator.condition_shape))

    def _flow(self, x: Tensor) -> Any:
        """The conditional distribution for each row of x; sbi's wrapper embeds each x anew for every θ."""
        return self._flow_of(self.estimator.embedding_net(x))

    def _flow_of(self, seen: Tensor) -> Any:
        """The same for rows as the embedding sees them, by the faster way to ask where there is one."""
        net = self.estimator.net
        parts = [*net.parameters(), *net.buffers()]
        # it shares what it was made of, and has to be made again once that was replaced, on another device say
        if self._net is None or [*map(id, parts)] != [*map(id, self._made_of)]:
            self._net, self._made_of = natively(net, own_weights=False) or net, parts
        return self._net(seen)

    def _draw(self, x: Tensor) -> Tensor:
        if isinstance(self.estimator, ZukoFlow):
            return self._flow(x).sample()
        return self.estimator.sample(torch.Size((1,)), condition=x)[0]

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        if isinstance(self.estimator, ZukoFlow):
            return self._flow(x).log_prob(theta[:, None].expand(-1, x.shape[0], -1))
        return self.estimator.log_prob(theta[:, None].expand(-1, x.shape[0], -1), condition=x)

    @property
    def has_latent(self) -> bool:
        """Whether θ is made of standard normal numbers in a way that can be undone and rescaled."""
        return isinstance(self.estimator, ZukoFlow) and isinstance(
            getattr(self.estimator.net.base, "scale", None), Tensor
        )

    @torch.no_grad()
    def latent(self, theta: Tensor, x: Tensor) -> Tensor:
        """What θ is made of, standard normal if the density is right, row by row: (B, p) and (B, ...) -> (B, p)."""
        base = self.estimator.net.base
        return (self._flow(x).transform(theta) - base.loc) / base.scale

    @torch.no_grad()
    def widen(self, factor: Tensor) -> None:
        """Multiply the spread of these numbers, in draws and in the density."""
        self.estimator.net.base.scale.mul_(factor)  # a buffer: files hold it

    def with_estimator(self, estimator: nn.Module) -> DensityProposal:
        """The same posterior, its draws and density those of another estimator."""
        # `copy.copy` would not do: of sbi's posteriors it shares the very dictionary of their attributes
        posterior = object.__new__(type(self.posterior))
        posterior.__dict__.update(self.posterior.__dict__)
        posterior.posterior_estimator = estimator
        posterior.potential_fn = copy.copy(posterior.potential_fn)
        posterior.potential_fn.posterior_estimator = estimator
        return DensityProposal(posterior, self.prior)

    @property
    def embedding(self) -> nn.Module | None:
        net = getattr(self.estimator, "embedding_net", None)
        # sbi standardises x in the same place: without weights there is no embedding
        return net if isinstance(net, nn.Module) and any(True for _ in net.parameters()) else None

    def summarised(self) -> Proposal:
        if not isinstance(self.estimator, ZukoFlow) or self.embedding is None:
            return self
        summary = SummaryProposal(self.posterior, self.prior)
        assert summary.x_shape is not None
        return summary if summary.x_shape.numel() <= summary.raw_shape.numel() else self

    def _may_leak(self) -> bool:
        # sbi owns the map onto the support of z_score_theta="transform_to_unconstrained" in such a module
        onto_support = any(isinstance(m, CallableTransform) for m in self.estimator.modules())
        return not onto_support and super()._may_leak()

    def to(self, device: str | torch.device) -> Proposal:
        self.estimator.to(device)
        return self


class SummaryProposal(DensityProposal):
    """A `DensityProposal` as a function of its embedding h(x): far fewer numbers, and nearly all that x says of θ."""

    def __init__(self, posterior: DirectPosterior, prior: Distribution | None = None) -> None:
        super().__init__(posterior, prior)
        self._raw_shape = torch.Size(self.estimator.condition_shape)
        self.x_shape = self.summarise(torch.zeros(2, *self._raw_shape)).shape[1:]

    @property
    def raw_shape(self) -> torch.Size:
        return self._raw_shape

    @torch.no_grad()
    def summarise(self, data: Tensor) -> Tensor:
        return torch.cat([self.estimator.embedding_net(rows) for rows in data.split(2000)])

    def _flow(self, x: Tensor) -> Any:
        return self._flow_of(x)


class VectorFieldProposal(Proposal):
    """An sbi `VectorFieldPosterior` (FMPE, NPSE): its probability-flow ODE with a fixed number of steps."""

    components = 32  # each costs an ODE and its Jacobians

    def __init__(self, posterior: VectorFieldPosterior, prior: Distribution | None = None, steps: int = 20) -> None:
        self.estimator = posterior.vector_field_estimator.eval()
        # noise is at t_max, θ at t_min
        self.solver = Solver("midpoint", steps, start=float(self.estimator.t_max), end=float(self.estimator.t_min))
        super().__init__(prior or posterior.prior, torch.Size(self.estimator.condition_shape))

    def _velocity(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda t, z: self.estimator.ode_fn(z, x, t.expand(z.shape[0]))

    def _draw(self, x: Tensor) -> Tensor:
        base = self.estimator.mean_base + self.estimator.std_base * torch.randn(
            x.shape[0], *self.estimator.input_shape, device=x.device
        )
        z = self.solver.solve(self._velocity(x), base)
        return self.estimator.from_z(z) if self.estimator.compose_enabled else z

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        n, k = theta.shape[0], x.shape[0]
        z, shift = theta, 0.0
        if self.estimator.compose_enabled:
            z, shift = self.estimator.to_z(theta), self.estimator.log_abs_det()
        rows = x.repeat(n, *([1] * (x.ndim - 1)))
        z0, logdet = self.solver.invert_with_logdet(self._velocity(rows), z.repeat_interleave(k, dim=0))
        base = torch.distributions.Normal(self.estimator.mean_base, self.estimator.std_base)
        return (base.log_prob(z0).sum(-1) - logdet).reshape(n, k) - shift

    def to(self, device: str | torch.device) -> Proposal:
        self.estimator.to(device)
        return self


class EnsembleProposal(Proposal):
    """An sbi `EnsemblePosterior`: each row picks a member by weight."""

    def __init__(self, members: Sequence[Proposal], weights: Tensor) -> None:
        used = [i for i, weight in enumerate(weights.tolist()) if weight > 0]
        members, weights = [members[i] for i in used], weights[used]
        self.members: Sequence[Proposal] = members
        self.weights = weights / weights.sum()
        super().__init__(members[0].prior, members[0].x_shape)

    def _share(self, x: Tensor, index: int) -> Tensor:
        """What a member is given of x: here all of it."""
        return x

    def _draw(self, x: Tensor) -> Tensor:
        member = torch.multinomial(self.weights, x.shape[0], replacement=True)
        theta: Tensor | None = None
        for index in member.unique().tolist():
            rows = member == index
            drawn = self.members[index]._draw(self._share(x[rows], index))
            theta = drawn.new_empty(x.shape[0], drawn.shape[1]) if theta is None else theta
            theta[rows] = drawn
        assert theta is not None
        return theta

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        each = [
            member._log_density(theta, self._share(x, index)) + math.log(weight)
            for index, (member, weight) in enumerate(zip(self.members, self.weights.tolist(), strict=True))
        ]
        return torch.stack(each).logsumexp(0)

    @property
    def embedding(self) -> nn.Module | None:
        return self.members[0].embedding

    def _may_leak(self) -> bool:
        return any(m._may_leak() for m in self.members)

    def to(self, device: str | torch.device) -> Proposal:
        self.weights = self.weights.to(device)
        for member in self.members:
            member.to(device)
        return self


class CallableProposal(Proposal):
    """A function ``x (B, ...) -> θ (B, p)``, and optionally ``(θ (B, p), x (B, ...)) -> log density (B,)``."""

    def __init__(self, draw: Callable[[Tensor], Any], prior: Distribution, log_prob: Callable | None = None) -> None:
        super().__init__(prior, None)
        self.draw, self.density = draw, log_prob

    def _draw(self, x: Tensor) -> Tensor:
        theta = torch.as_tensor(self.draw(x)).to(x.device, torch.float32)
        expected = (x.shape[0], parameter_dim(self.prior))
        if theta.shape != expected:
            raise ValueError(
                f"the base posterior returned shape {tuple(theta.shape)} for x of shape {tuple(x.shape)}; {expected} was "
                "expected: one θ per row of x. Return one draw per row."
            )
        return theta.clone()

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        if self.density is None:
            return super()._log_density(theta, x)
        n, k = theta.shape[0], x.shape[0]
        flat = self.density(theta.repeat_interleave(k, dim=0), x.repeat(n, *([1] * (x.ndim - 1))))
        return torch.as_tensor(flat).to(theta).reshape(n, k)


def as_proposal(posterior: Any, prior: Distribution | None = None, log_prob: Callable | None = None) -> Proposal:
    """Adapt a posterior to the one thing the method needs.

    Args:
        posterior: An sbi `DirectPosterior`, `EnsemblePosterior` or `VectorFieldPosterior`, a `Proposal`, or a function
            from x of shape (B, ...) to one draw of θ per row, (B, p).
        prior: The prior of the simulations. sbi posteriors carry theirs; a function needs it.
        log_prob: For a function: its log density, ``(theta (B, p), x (B, ...)) -> (B,)``.

    Returns:
        A `Proposal`.
    """
    if prior is not None and not isinstance(prior, Distribution):
        raise TypeError(
            f"prior is a {type(prior).__name__}; a torch distribution was expected, e.g. sbi.utils.BoxUniform(low, high)."
        )
    if prior is not None and (len(prior.batch_shape) or len(prior.event_shape) != 1):
        raise ValueError(
            f"prior has batch shape {tuple(prior.batch_shape)} and event shape {tuple(prior.event_shape)}; a "
            "distribution over θ of shape (p,) was expected. Use e.g. torch.distributions.Independent(Normal(zeros, ones), 1)."
        )
    if isinstance(posterior, Proposal):
        return posterior
    if isinstance(posterior, DirectPosterior):
        return DensityProposal(posterior, prior)
    if isinstance(posterior, VectorFieldPosterior):
        return VectorFieldProposal(posterior, prior)
    if isinstance(posterior, EnsemblePosterior):
        return EnsembleProposal([as_proposal(p, prior) for p in posterior.posteriors], posterior.weights.clone())
    if isinstance(posterior, NeuralPosterior):
        raise TypeError(
            f"posterior is a {type(posterior).__name__}, which samples one observation at a time by MCMC, rejection or "
            "optimisation; the method draws for thousands of observations. Train one with NPE or FMPE, e.g. "
            "fmcpe.train_npe(simulator, prior)."
        )
    if callable(posterior):
        if prior is None:
            raise ValueError(
                "posterior is a function and prior is missing; a function does not know its prior. "
                "Pass as_proposal(draw, prior=...), or FMCPE(draw, simulator, prior=BoxUniform(low, high))."
            )
        return CallableProposal(posterior, prior, log_prob)
    raise TypeError(
        f"posterior is a {type(posterior).__name__}; an sbi DirectPosterior, EnsemblePosterior or VectorFieldPosterior, or "
        "a function from x to one draw of theta per row was expected. Train one with fmcpe.train_npe(simulator, prior)."
    )
