r"""The interface of a base posterior: draws for each x, and their log density where there is one.

`fmcpe.base_posteriors.adapters` adapts sbi posteriors and plain functions to it. None uses sbi's rejection loop, which
does not terminate out of distribution: draws outside the prior's support are redrawn a bounded number of times, then
moved to its edge.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sbi.utils.sbiutils import within_support
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._errors import FMCPEWarning
from fmcpe._random import derive, seeded
from fmcpe.spaces import bounded


class Remembered:
    """Cache of one value per batch of observations: densities are often evaluated for the same batch."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, Any] | None = None  # read and set at once: threads share it

    def __call__(self, y: Tensor, compute: Callable[[], Any]) -> Any:
        """The value for these observations."""
        last = self._last
        if last is None or last[0].shape != y.shape or last[0].device != y.device or not torch.equal(last[0], y):
            self._last = last = (y.detach().clone(), compute())
        return last[1]


class BasePosterior(ABC):
    r"""A frozen conditional distribution \( \hat p(\theta | x) \) over physical θ, truncated to the prior's support.

    `x_shape` is the shape of one x, None if unknown.
    """

    components = 256
    """Draws of x̃ in the Monte-Carlo mixture of the corrected density."""
    amortised = True
    """Whether draws for many x cost little more than for one."""
    redraws = 20
    """Repetitions of a draw outside the support before it is clamped."""
    tries = 1
    """Draws per repetition."""
    names: tuple[str, ...] | None = None
    """Parameter names, if known."""
    leakage_draws = 200
    """Draws that estimate the mass inside the support, for one x."""
    leakage_draws_in_all = 4000
    """Limit of these draws over all x of a mixture."""
    estimator: Any = None
    """The network, if any."""

    def __init__(self, prior: Distribution, x_shape: torch.Size | None) -> None:
        self.prior, self.x_shape = prior, x_shape
        self.raw_shape = x_shape  # of one observation before it is summarised

    @abstractmethod
    def _draw(self, x: Tensor, n: int) -> Tensor:
        """Draws for each row of x, inside the support or not: (B, ...) -> (B, n, p)."""

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        """Density of `_draw`: θ (B, n, p) and x (B, ...) -> (B, n)."""
        raise NotImplementedError(
            "Expected a base posterior with a density, got one without. Use sample() and diagnostics made of draws, or "
            "pass as_base_posterior(draw, prior=..., log_prob=...)."
        )

    def to(self, device: str | torch.device) -> BasePosterior:
        """Move its network, if any, to a device, in place."""
        if self.estimator is not None:
            self.estimator.to(device)
        return self

    @property
    def fixed_noise(self) -> bool:
        """Whether `_draw` takes as many random numbers whatever x is, so that rows do not depend on each other."""
        return False

    @property
    def embedding(self) -> nn.Module | None:
        """The trained embedding of raw data, (B, ...) -> (B, features), if any."""
        return None

    def summarise(self, data: Tensor) -> Tensor:
        """The summary that the posterior is conditioned on, (B, ...) -> (B, ...)."""
        return data

    def summarised(self) -> BasePosterior:
        """The same posterior, conditioned on its embedding of x if it has one."""
        return self

    @torch.no_grad()
    def sample(self, x: Tensor, n: int) -> Tensor:
        """Physical θ inside the support: (B, ...) -> (B, n, p)."""
        with seeded(None):  # its turn with the global generators
            return self._redrawn(self._draw(x, n), x)

    @torch.no_grad()
    def sample_each(self, parts: Sequence[Tensor], n: int) -> list[Tensor]:
        """`sample` for several batches: draws for one do not depend on the others, however many of them are redrawn."""
        seed = int(torch.randint(2**31, ()))
        drawn = self._draw(torch.cat([*parts]), n).split([len(x) for x in parts]) if self.fixed_noise else None
        out = []
        for k, x in enumerate(parts):
            with seeded(derive(seed, k)):
                out.append(self._redrawn(self._draw(x, n) if drawn is None else drawn[k], x))
        return out

    def _redrawn(self, theta: Tensor, x: Tensor) -> Tensor:
        """Draws for x, (B, n, p), with others in place of those outside the support."""
        n = theta.shape[1]
        shape, flat = theta.shape, theta.reshape(-1, theta.shape[-1])
        outside = ~self._inside(flat)
        for _ in range(self.redraws):
            if not bool(outside.any()):
                break
            rows = outside.nonzero()[:, 0]
            fresh = self._draw(x[rows // n], self.tries)
            inside = self._inside(fresh.flatten(0, 1)).reshape(fresh.shape[:2])
            # the first inside, if any
            flat[rows] = fresh[torch.arange(len(rows), device=rows.device), inside.int().argmax(1)]
            outside[rows] = ~inside.any(1)
        missing = flat.isnan().any(1)
        if bool(missing.any()):
            self._refuse_nan(int(missing.sum()), len(missing))
            flat[missing] = self.prior.sample((int(missing.sum()),)).to(flat)
            outside &= ~missing
        if bool(outside.any()):
            infinite = int(flat[outside].isinf().any(1).sum())
            if 2 * infinite > len(flat):
                warnings.warn(
                    f"Expected finite draws from the base posterior, got infinite ones in {infinite} of {len(flat)} cases, "
                    f"{self.redraws + 1} times each: they are moved to the edge of the prior, or replaced by its draws. Check "
                    "that x is in the units of the simulations.",
                    FMCPEWarning,
                    stacklevel=4,
                )
            flat[outside] = self._clamp(flat[outside])
        return flat.reshape(shape)

    def _refuse_nan(self, number: int, of: int) -> None:
        """Fail if most draws are NaN; warn if fewer are, which draws of the prior replace."""
        found = f"Expected numbers from the base posterior, got NaN for {number} of {of} draws, {self.redraws + 1} times each"
        if 2 * number > of:
            raise ValueError(
                f"{found}. Check that it was trained on finite data, and that x is in the units of the simulations."
            )
        warnings.warn(
            f"{found}: draws of the prior replace them. Check that x is in the units of the simulations.",
            FMCPEWarning,
            stacklevel=4,
        )

    def log_prob(self, theta: Tensor, x: Tensor, log_acceptance: Tensor | None = None) -> Tensor:
        """Log density of physical θ (B, n, p) given x (B, ...): (B, n), -inf outside the support.

        Pass `log_acceptance`, (B,), if it is known already.
        """
        mass = self.log_acceptance(x) if log_acceptance is None else log_acceptance
        inside = self._inside(theta.reshape(-1, theta.shape[-1])).reshape(theta.shape[:2])
        return torch.where(inside, self._log_density(theta, x) - mass[:, None], -torch.inf)

    @torch.no_grad()
    def log_acceptance(self, x: Tensor) -> Tensor:
        """Log mass inside the support for each row of x, (B,), estimated by draws; 0 where nothing can leak."""
        if not self._may_leak():
            return torch.zeros(x.shape[0], device=x.device)
        # only the mean over the components of a mixture matters: many components need few draws each
        draws = max(20, min(self.leakage_draws, self.leakage_draws_in_all // x.shape[0]))
        parts = x.split(max(1, 2_000_000 // (draws * max(1, x[0].numel()))))  # bounds memory
        with seeded(None):
            inside = [
                self._inside(self._draw(part, draws).flatten(0, 1)).float().reshape(len(part), draws).mean(1)
                for part in parts
            ]
        return torch.cat(inside).clamp_min(0.5 / draws).log()

    def _may_leak(self) -> bool:
        """Whether draws can fall outside the support: not if it is unbounded."""
        with seeded(0):
            return bool(bounded(self.prior, self.prior.sample((100,))).any())

    def _inside(self, theta: Tensor) -> Tensor:
        return within_support(self.prior, theta) & torch.isfinite(theta).all(-1)

    def _clamp(self, theta: Tensor) -> Tensor:
        """The nearest point of a box; for any other support, a draw of the prior."""
        constraint = getattr(self.prior.support, "base_constraint", self.prior.support)
        lower = getattr(constraint, "lower_bound", None)
        upper = getattr(constraint, "upper_bound", None)
        if lower is None and upper is None:
            return self.prior.sample((theta.shape[0],)).to(theta)
        theta = torch.nan_to_num(theta)  # infinite values; NaN never comes here
        theta = theta if lower is None else torch.maximum(theta, torch.as_tensor(lower).to(theta))
        return theta if upper is None else torch.minimum(theta, torch.as_tensor(upper).to(theta))


class OnSummary(BasePosterior):
    """Mixin: an adapter of an sbi posterior, conditioned on its embedding h(x) in place of x."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        weights = next(self.estimator.parameters())
        self.x_shape = self.summarise(torch.zeros(2, *self.estimator.condition_shape, device=weights.device)).shape[1:]

    @torch.no_grad()
    def summarise(self, data: Tensor) -> Tensor:
        return torch.cat([self.estimator.embedding_net(rows.clone()) for rows in data.split(2000)])

    def summarised(self) -> BasePosterior:
        return self

    def _embed(self, x: Tensor) -> Tensor:
        return x
