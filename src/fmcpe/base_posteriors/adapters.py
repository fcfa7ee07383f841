"""Adapters from what users have (sbi posteriors, plain functions) to a `BasePosterior`."""

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
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.flows.solvers import Solver
from fmcpe.nn.splines import natively


class DensityBase(BasePosterior):
    """An sbi `DirectPosterior` (NPE): its density estimator, without the rejection loop."""

    def __init__(self, posterior: DirectPosterior, prior: Distribution | None = None) -> None:
        self.posterior = posterior
        self.estimator = posterior.posterior_estimator.eval()
        self._summarised: DensityBase | None = None
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

    def _draw(self, x: Tensor, n: int) -> Tensor:
        if isinstance(self.estimator, ZukoFlow):
            return self._flow(x).sample((n,)).movedim(0, 1).contiguous()
        return self.estimator.sample(torch.Size((n,)), condition=x).movedim(0, 1).contiguous()

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        if isinstance(self.estimator, ZukoFlow):
            return self._flow(x).log_prob(theta.movedim(1, 0)).movedim(0, 1)
        return self.estimator.log_prob(theta.movedim(1, 0), condition=x).movedim(0, 1)

    def with_estimator(self, estimator: nn.Module) -> DensityBase:
        """The same posterior, its draws and density those of another estimator."""
        # `copy.copy` would not do: of sbi's posteriors it shares the very dictionary of their attributes
        posterior = object.__new__(type(self.posterior))
        posterior.__dict__.update(self.posterior.__dict__)
        posterior.posterior_estimator = estimator
        posterior.potential_fn = copy.copy(posterior.potential_fn)
        posterior.potential_fn.posterior_estimator = estimator
        return DensityBase(posterior, self.prior)

    @property
    def embedding(self) -> nn.Module | None:
        net = getattr(self.estimator, "embedding_net", None)
        # sbi standardises x in the same place: without weights there is no embedding
        return net if isinstance(net, nn.Module) and any(True for _ in net.parameters()) else None

    def summarised(self) -> BasePosterior:
        if not isinstance(self.estimator, ZukoFlow) or self.embedding is None:
            return self
        if self._summarised is None:
            summary = SummaryBase(self.posterior, self.prior)
            assert summary.x_shape is not None
            self._summarised = summary if summary.x_shape.numel() <= summary.raw_shape.numel() else self
        return self._summarised

    def _may_leak(self) -> bool:
        # sbi owns the map onto the support of z_score_theta="transform_to_unconstrained" in such a module
        onto_support = any(isinstance(m, CallableTransform) for m in self.estimator.modules())
        return not onto_support and super()._may_leak()

    def to(self, device: str | torch.device) -> BasePosterior:
        self.estimator.to(device)
        return self


class SummaryBase(DensityBase):
    """A `DensityBase` as a function of its embedding h(x): far fewer numbers, and nearly all that x says of θ."""

    def __init__(self, posterior: DirectPosterior, prior: Distribution | None = None) -> None:
        super().__init__(posterior, prior)
        self._raw_shape = torch.Size(self.estimator.condition_shape)
        self.x_shape = self.summarise(torch.zeros(2, *self._raw_shape)).shape[1:]

    @property
    def raw_shape(self) -> torch.Size:
        return self._raw_shape

    def summarised(self) -> SummaryBase:
        return self

    @torch.no_grad()
    def summarise(self, data: Tensor) -> Tensor:
        return torch.cat([self.estimator.embedding_net(rows) for rows in data.split(2000)])

    def _flow(self, x: Tensor) -> Any:
        return self._flow_of(x)


class VectorFieldBase(BasePosterior):
    """An sbi `VectorFieldPosterior` (FMPE, NPSE): its probability-flow ODE with a fixed number of steps."""

    components = 32  # each costs an ODE and its Jacobians

    def __init__(self, posterior: VectorFieldPosterior, prior: Distribution | None = None, steps: int = 20) -> None:
        self.estimator = posterior.vector_field_estimator.eval()
        # noise is at t_max, θ at t_min
        self.solver = Solver("midpoint", steps, start=float(self.estimator.t_max), end=float(self.estimator.t_min))
        super().__init__(prior or posterior.prior, torch.Size(self.estimator.condition_shape))

    def _velocity(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda t, z: self.estimator.ode_fn(z, x, t.expand(z.shape[0]))

    def _draw(self, x: Tensor, n: int) -> Tensor:
        rows = x.repeat_interleave(n, dim=0)
        base = self.estimator.mean_base + self.estimator.std_base * torch.randn(
            len(rows), *self.estimator.input_shape, device=x.device
        )
        z = self.solver.solve(self._velocity(rows), base)
        return (self.estimator.from_z(z) if self.estimator.compose_enabled else z).unflatten(0, (len(x), n))

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        z, shift = theta.flatten(0, 1), 0.0
        if self.estimator.compose_enabled:
            z, shift = self.estimator.to_z(z), self.estimator.log_abs_det()
        rows = x.repeat_interleave(theta.shape[1], dim=0)
        z0, logdet = self.solver.invert_with_logdet(self._velocity(rows), z)
        base = torch.distributions.Normal(self.estimator.mean_base, self.estimator.std_base)
        return (base.log_prob(z0).sum(-1) - logdet - shift).unflatten(0, theta.shape[:2])

    def to(self, device: str | torch.device) -> BasePosterior:
        self.estimator.to(device)
        return self


class EnsembleBase(BasePosterior):
    """An sbi `EnsemblePosterior`: each row picks a member by weight."""

    def __init__(self, members: Sequence[BasePosterior], weights: Tensor) -> None:
        used = [i for i, weight in enumerate(weights.tolist()) if weight > 0]
        members, weights = [members[i] for i in used], weights[used]
        self.members: Sequence[BasePosterior] = members
        self.weights = weights / weights.sum()
        super().__init__(members[0].prior, members[0].x_shape)

    def _draw(self, x: Tensor, n: int) -> Tensor:
        rows = x.repeat_interleave(n, dim=0)
        member = torch.multinomial(self.weights, len(rows), replacement=True)
        theta: Tensor | None = None
        for index in member.unique().tolist():
            chosen = member == index
            drawn = self.members[index]._draw(rows[chosen], 1)[:, 0]
            theta = drawn.new_empty(len(rows), drawn.shape[1]) if theta is None else theta
            theta[chosen] = drawn
        assert theta is not None
        return theta.unflatten(0, (len(x), n))

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        each = [
            member._log_density(theta, x) + math.log(weight)
            for member, weight in zip(self.members, self.weights.tolist(), strict=True)
        ]
        return torch.stack(each).logsumexp(0)

    @property
    def embedding(self) -> nn.Module | None:
        return self.members[0].embedding

    def _may_leak(self) -> bool:
        return any(m._may_leak() for m in self.members)

    def to(self, device: str | torch.device) -> BasePosterior:
        self.weights = self.weights.to(device)
        for member in self.members:
            member.to(device)
        return self


class CallableBase(BasePosterior):
    """A function ``x (B, ...) -> θ (B, p)``, and optionally ``(θ (B, p), x (B, ...)) -> log density (B,)``."""

    def __init__(self, draw: Callable[[Tensor], Any], prior: Distribution, log_prob: Callable | None = None) -> None:
        super().__init__(prior, None)
        self.draw, self.density = draw, log_prob

    def _draw(self, x: Tensor, n: int) -> Tensor:
        rows = x.repeat_interleave(n, dim=0)
        theta = torch.as_tensor(self.draw(rows)).to(x.device, torch.float32)
        expected = (len(rows), parameter_dim(self.prior))
        if theta.shape != expected:
            raise ValueError(
                f"Expected the base posterior to return one θ per row of x, {expected}, got {tuple(theta.shape)} for x of "
                f"shape {tuple(rows.shape)}. Return one draw per row."
            )
        return theta.clone().unflatten(0, (len(x), n))

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        if self.density is None:
            return super()._log_density(theta, x)
        flat = self.density(theta.flatten(0, 1), x.repeat_interleave(theta.shape[1], dim=0))
        return torch.as_tensor(flat).to(theta).reshape(theta.shape[:2])


def as_base_posterior(
    posterior: Any, prior: Distribution | None = None, log_prob: Callable | None = None
) -> BasePosterior:
    """Adapt a posterior to the one thing the method needs.

    Args:
        posterior: An sbi `DirectPosterior`, `EnsemblePosterior` or `VectorFieldPosterior`, a `BasePosterior`, or a function
            from x of shape (B, ...) to one draw of θ per row, (B, p).
        prior: The prior of the simulations. sbi posteriors carry theirs; a function needs it.
        log_prob: For a function: its log density, ``(theta (B, p), x (B, ...)) -> (B,)``.

    Returns:
        A `BasePosterior`.
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
    if isinstance(posterior, BasePosterior):
        return posterior
    if isinstance(posterior, DirectPosterior):
        return DensityBase(posterior, prior)
    if isinstance(posterior, VectorFieldPosterior):
        return VectorFieldBase(posterior, prior)
    if isinstance(posterior, EnsemblePosterior):
        return EnsembleBase([as_base_posterior(p, prior) for p in posterior.posteriors], posterior.weights.clone())
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
                "Pass as_base_posterior(draw, prior=...), or FMCPE(draw, simulator, prior=BoxUniform(low, high))."
            )
        return CallableBase(posterior, prior, log_prob)
    raise TypeError(
        f"posterior is a {type(posterior).__name__}; an sbi DirectPosterior, EnsemblePosterior or VectorFieldPosterior, or "
        "a function from x to one draw of theta per row was expected. Train one with fmcpe.train_npe(simulator, prior)."
    )
