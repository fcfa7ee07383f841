"""Adapters from sbi posteriors and plain functions to a `BasePosterior`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sbi.inference.posteriors import DirectPosterior, EnsemblePosterior, VectorFieldPosterior
from sbi.inference.posteriors.base_posterior import NeuralPosterior
from sbi.inference.posteriors.filtered_direct_posterior import FilteredDirectPosterior
from sbi.inference.posteriors.npe_a_posterior import NPE_A_Posterior
from sbi.neural_nets.estimators import NFlowsFlow, ZukoFlow
from sbi.neural_nets.estimators.base import ConditionalEstimator
from sbi.utils.sbiutils import CallableTransform, ImproperEmpirical
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._ambient import user_code
from fmcpe._arrays import returned_numbers
from fmcpe._checks import check_prior, parameter_dim
from fmcpe.base_posteriors.base import BasePosterior, OnSummary
from fmcpe.base_posteriors.bayesflow import from_bayesflow, is_bayesflow
from fmcpe.base_posteriors.other_sbi import other_base
from fmcpe.base_posteriors.vector_field import VectorFieldBase
from fmcpe.nn.embeddings import has_weights
from fmcpe.nn.splines import natively


class DensityBase(BasePosterior):
    """An sbi `DirectPosterior` (NPE): its density estimator, without the rejection loop.

    `prior`, whose support bounds the draws, and `estimator` are those of `posterior` if None.
    """

    def __init__(
        self, posterior: DirectPosterior, prior: Distribution | None = None, estimator: nn.Module | None = None
    ) -> None:
        self.posterior = posterior
        self.estimator = (posterior.posterior_estimator if estimator is None else estimator).eval()
        self._summarised: DensityBase | None = None
        self._net: nn.Module | None = None
        self._made_of: list[Tensor] = []
        self.names = getattr(posterior, "names", None)
        super().__init__(prior or posterior.prior, torch.Size(self.estimator.condition_shape))

    def _embed(self, x: Tensor) -> Tensor:
        return self.estimator.embedding_net(x.clone())  # networks may work in place

    def _flow(self, x: Tensor) -> Any:
        """The conditional distribution for each row of x, through the fast implementation of the flow where there is one.

        sbi's wrapper repeats the embedding of x for every θ.
        """
        net = self.estimator.net
        parts = [*net.parameters(), *net.buffers()]
        # it shares the flow's tensors, so it is stale once they are replaced, e.g. by a move to another device
        if self._net is None or [*map(id, parts)] != [*map(id, self._made_of)]:
            self._net, self._made_of = natively(net, own_weights=False) or net, parts
        return self._net(self._embed(x))

    def _draw(self, x: Tensor, n: int) -> Tensor:
        if isinstance(self.estimator, ZukoFlow):
            return self._flow(x).sample((n,)).movedim(0, 1).contiguous()
        return self.estimator.sample(torch.Size((n,)), condition=x).movedim(0, 1).contiguous()

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        if isinstance(self.estimator, ZukoFlow):
            return self._flow(x).log_prob(theta.movedim(1, 0)).movedim(0, 1)
        return self.estimator.log_prob(theta.movedim(1, 0), condition=x).movedim(0, 1)

    def with_estimator(self, estimator: nn.Module) -> DensityBase:
        """The same posterior with another density estimator."""
        return DensityBase(self.posterior, self.prior, estimator)

    @property
    def fixed_noise(self) -> bool:
        return isinstance(self.estimator, ZukoFlow | NFlowsFlow)

    @property
    def embedding(self) -> nn.Module | None:
        net = getattr(self.estimator, "embedding_net", None)
        # sbi's standardisation of x is in the same module: an embedding has weights
        return net if isinstance(net, nn.Module) and has_weights(net) else None

    def summarised(self) -> BasePosterior:
        if not isinstance(self.estimator, ZukoFlow) or self.embedding is None:
            return self
        if self._summarised is None:
            summary = SummaryBase(self.posterior, self.prior, self.estimator)
            assert summary.x_shape is not None and self.x_shape is not None
            self._summarised = summary if summary.x_shape.numel() <= self.x_shape.numel() else self
        return self._summarised

    def _may_leak(self) -> bool:
        # with z_score_theta="transform_to_unconstrained", such a module maps onto the support
        onto_support = any(isinstance(m, CallableTransform) for m in self.estimator.modules())
        return not onto_support and super()._may_leak()


class SummaryBase(OnSummary, DensityBase):
    """A `DensityBase` conditioned on its embedding h(x) in place of x."""


class EnsembleBase(BasePosterior):
    """An sbi `EnsemblePosterior`: a member is drawn by weight for each θ."""

    def __init__(self, members: Sequence[BasePosterior], weights: Tensor) -> None:
        used = [i for i, weight in enumerate(weights.tolist()) if weight > 0]
        members, weights = [members[i] for i in used], weights[used]
        self.members: Sequence[BasePosterior] = members
        self.weights = weights / weights.sum()
        self.names = members[0].names
        super().__init__(members[0].prior, members[0].x_shape)

    def _draw(self, x: Tensor, n: int) -> Tensor:
        rows = x.repeat_interleave(n, dim=0)
        member = torch.multinomial(self.weights, len(rows), replacement=True)
        theta = torch.empty(len(rows), parameter_dim(self.prior), device=x.device)
        for index in member.unique().tolist():
            chosen = member == index
            theta[chosen] = self.members[index]._draw(rows[chosen], 1)[:, 0]
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
        with user_code():
            drawn = self.draw(rows.clone())
        theta = returned_numbers(drawn, "the base posterior", x.device)
        expected = (len(rows), parameter_dim(self.prior))
        if theta.shape != expected:
            raise ValueError(
                f"Expected the base posterior to return one θ per row of x, {expected}, got {tuple(theta.shape)} for x "
                f"of shape {tuple(rows.shape)}. Return one draw per row."
            )
        return theta.unflatten(0, (len(x), n))

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        if self.density is None:
            return super()._log_density(theta, x)
        with user_code(torch.is_grad_enabled()):
            found = self.density(theta.flatten(0, 1).clone(), x.repeat_interleave(theta.shape[1], dim=0))
        checked = returned_numbers(found, "log_prob of the base posterior", x.device)
        number = theta.shape[0] * theta.shape[1]
        if checked.shape not in ((number,), (number, 1)):
            raise ValueError(
                f"Expected log_prob of the base posterior to return one log density per row of theta, ({number},), got "
                f"{tuple(checked.shape)}. Sum over parameters, e.g. Independent(Normal(mean, std), 1).log_prob(theta)."
            )
        bad = int((checked.isnan() | (checked == torch.inf)).sum())
        if bad:
            raise ValueError(
                f"Expected log densities from log_prob of the base posterior, got NaN or +inf for {bad} of {number} rows. "
                "Return -inf where the density is zero."
            )
        # gradients of theta live in the function's own tensor
        return (found.to(theta) if isinstance(found, Tensor) else checked).reshape(theta.shape[:2])


def as_base_posterior(
    posterior: Any, prior: Distribution | None = None, log_prob: Callable | None = None
) -> BasePosterior:
    """Adapt a posterior to `BasePosterior`.

    Args:
        posterior: Any posterior of sbi made of an estimator (NPE, FMPE, NPSE, ensembles; NLE and NRE, see
            `fmcpe.base_posteriors.potential`), a BayesFlow approximator or workflow, a `BasePosterior`, or a function
            ``x (B, ...) -> theta (B, p)``, one draw per row.
        prior: The prior of the simulations. A function needs it; sbi posteriors have one.
        log_prob: Log density of a function, ``(theta (B, p), x (B, ...)) -> (B,)``.

    Example:
        >>> base = fmcpe.as_base_posterior(lambda x: x - 0.5 + 0.3 * torch.randn_like(x), prior=prior)
        >>> base.sample(y_test, 7).shape  # seven draws for each of fifty observations
        torch.Size([50, 7, 1])
    """
    if prior is not None:
        check_prior(prior)
    if isinstance(posterior, BasePosterior):
        return posterior
    _refuse_other_parts_of_sbi(posterior, prior)
    if isinstance(posterior, DirectPosterior) and not isinstance(posterior, FilteredDirectPosterior | NPE_A_Posterior):
        return DensityBase(posterior, prior)
    if isinstance(posterior, VectorFieldPosterior):
        return VectorFieldBase(posterior, prior)
    if isinstance(posterior, EnsemblePosterior):
        return EnsembleBase([as_base_posterior(p, prior) for p in posterior.posteriors], posterior.weights.clone())
    if is_bayesflow(posterior):
        return from_bayesflow(posterior, prior)
    if isinstance(posterior, NeuralPosterior):
        found = other_base(posterior, prior)
        if found is not None:
            return as_base_posterior(found, prior)
        raise TypeError(
            "Expected an sbi posterior made of a posterior, likelihood or ratio estimator, got a "
            f"{type(posterior).__name__} on a {type(posterior.potential_fn).__name__}. Pass a function instead: "
            "FMCPE(draw, simulator, prior=...), where draw(x) returns one θ per row of x."
        )
    if callable(posterior):
        if prior is None:
            raise ValueError(
                "Expected a prior for a posterior that is a function, got none. Pass as_base_posterior(draw, "
                "prior=...), or FMCPE(draw, simulator, prior=BoxUniform(low, high))."
            )
        return CallableBase(posterior, prior, log_prob)
    raise TypeError(
        "Expected an sbi DirectPosterior, EnsemblePosterior or VectorFieldPosterior, or a function from x to one draw "
        f"of theta per row, got a {type(posterior).__name__}. Train one with fmcpe.train_npe(simulator, prior)."
    )


def _refuse_other_parts_of_sbi(posterior: Any, prior: Distribution | None) -> None:
    """Recognise what belongs to sbi and is not a posterior with a prior."""
    if isinstance(posterior, ConditionalEstimator):
        raise TypeError(
            f"Expected an sbi posterior, got a {type(posterior).__name__}, the estimator that inference.train() returns. Pass "
            "inference.build_posterior(estimator)."
        )
    if hasattr(posterior, "append_simulations") and hasattr(posterior, "build_posterior"):
        kind = posterior.__name__ if isinstance(posterior, type) else type(posterior).__name__
        raise TypeError(f"Expected an sbi posterior, got the trainer {kind}. Pass inference.build_posterior().")
    if isinstance(posterior, Distribution):
        raise TypeError(
            f"Expected a posterior, got a {type(posterior).__name__}, which depends on no data. Call FMCPE(posterior, "
            "simulator, prior), or train a posterior first: fmcpe.train_npe(simulator, prior)."
        )
    members = posterior.posteriors if isinstance(posterior, EnsemblePosterior) else [posterior]
    if prior is None and any(isinstance(getattr(each, "prior", None), ImproperEmpirical) for each in members):
        raise ValueError(
            "Expected the prior of the simulations, got an sbi posterior whose NPE was given none. Pass it: FMCPE(posterior, "
            "simulator, prior=BoxUniform(low, high)), the distribution that θ of the simulations were drawn from."
        )
