r"""What the method needs of a base posterior: one θ per row of x, and its log density where there is one.

`fmcpe.adapters` makes one of sbi posteriors and of plain functions. None of them goes through sbi's rejection loop, which
does not end when x is out of distribution: rows outside the prior's support are redrawn a bounded number of
times, then moved to its edge, and the fraction is kept in `Proposal.fraction_clamped`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from sbi.utils.sbiutils import within_support
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._random import seeded

REDRAWS = 20
"""How often a row outside the prior's support is drawn again before it is clamped."""

LEAKAGE_DRAWS = 200
"""Draws that estimate how much of an estimator's mass lies inside the support, for one x."""


class Proposal(ABC):
    r"""A frozen conditional distribution \( \hat p(\theta | x) \), truncated to the prior's support.

    Args:
        prior: Its support bounds the draws.
        x_shape: Shape of one x, or None where the object does not know.
    """

    components = 256
    """Draws of x̃ in the mixture that is the corrected density, where nobody says how many."""

    def __init__(self, prior: Distribution, x_shape: torch.Size | None) -> None:
        self.prior, self.x_shape = prior, x_shape
        self.fraction_clamped = 0.0

    @abstractmethod
    def _draw(self, x: Tensor) -> Tensor:
        """One θ per row of x, anywhere."""

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        """Density of `_draw`: θ (N, p) against every row of x (K, ...), giving (N, K)."""
        raise NotImplementedError(
            "this base posterior has no density, so the corrected posterior has none either. Use sample() and "
            "diagnostics made of draws, or give as_proposal(draw, prior=..., log_prob=...)."
        )

    def to(self, device: str | torch.device) -> Proposal:
        """Move to a device, in place."""
        return self

    @property
    def raw_shape(self) -> torch.Size | None:
        """Shape of an observation as users see it."""
        return self.x_shape

    @property
    def embedding(self) -> nn.Module | None:
        """The trained network that summarises raw data for it, (B, ...) -> (B, features), where it has one."""
        return None

    def summarise(self, data: Tensor) -> Tensor:
        """What the method works on in place of the raw data; here the data themselves."""
        return data

    def summarised(self) -> Proposal:
        """The same posterior as a function of its own summary of x, where it has one."""
        return self

    @torch.no_grad()
    def sample(self, x: Tensor) -> Tensor:
        """One physical θ per row of x, inside the support: (B, p)."""
        theta = self._draw(x)
        outside = ~self._inside(theta)
        for _ in range(REDRAWS):
            if not bool(outside.any()):
                break
            rows = outside.nonzero()[:, 0]
            theta[rows] = self._draw(x[rows])
            outside[rows] = ~self._inside(theta[rows])
        self.fraction_clamped = float(outside.float().mean())
        if self.fraction_clamped:
            theta[outside] = self._clamp(theta[outside])
        return theta

    def log_prob(self, theta: Tensor, x: Tensor, log_acceptance: Tensor | None = None) -> Tensor:
        """Log density of physical θ (N, p) under every row of x (K, ...): (N, K), -inf outside the support.

        Args:
            theta: Physical parameters.
            x: Data.
            log_acceptance: `log_acceptance(x)`, where it is known already.
        """
        log_density = self._log_density(theta, x) - (
            self.log_acceptance(x) if log_acceptance is None else log_acceptance
        )
        return torch.where(self._inside(theta)[:, None], log_density, -torch.inf)

    @torch.no_grad()
    def log_acceptance(self, x: Tensor) -> Tensor:
        """Log of the mass inside the support for each row of x, (K,), estimated by draws; 0 where nothing can leak."""
        if not self._may_leak():
            return torch.zeros(x.shape[0], device=x.device)
        # of a mixture, the mean over the components is what counts: many components need few draws each
        draws = max(20, min(LEAKAGE_DRAWS, 4000 // x.shape[0]))
        copies = min(draws, max(1, 2_000_000 // x.numel()))  # at once, for memory's sake
        rows, rounds = x.repeat_interleave(copies, dim=0), -(-draws // copies)
        inside = torch.stack(
            [self._inside(self._draw(rows)).float().reshape(-1, copies).mean(1) for _ in range(rounds)]
        )
        return inside.mean(0).clamp_min(0.5 / draws).log()

    def _may_leak(self) -> bool:
        """Whether draws can fall outside the support at all: not if the support is everything."""
        with seeded(0):
            probe = self.prior.sample((1,))
        far = torch.cat([probe + 1e6 * (1 + probe.abs()), probe - 1e6 * (1 + probe.abs())])
        return not bool(within_support(self.prior, far).all())

    def _inside(self, theta: Tensor) -> Tensor:
        return within_support(self.prior, theta) & torch.isfinite(theta).all(-1)

    def _clamp(self, theta: Tensor) -> Tensor:
        """The nearest point of a box; for any other support a draw of the prior is all that is left."""
        constraint = getattr(self.prior.support, "base_constraint", self.prior.support)
        lower = getattr(constraint, "lower_bound", None)
        upper = getattr(constraint, "upper_bound", None)
        if lower is None and upper is None:
            return self.prior.sample((theta.shape[0],)).to(theta)
        theta = torch.nan_to_num(theta, nan=0.0)
        theta = theta if lower is None else torch.maximum(theta, torch.as_tensor(lower).to(theta))
        return theta if upper is None else torch.minimum(theta, torch.as_tensor(upper).to(theta))


class PriorProposal(Proposal):
    """The prior, whatever x: the answer of somebody who has learned nothing.

    Args:
        prior: The prior.
        x_shape: Shape of one observation.
    """

    def __init__(self, prior: Distribution, x_shape: torch.Size) -> None:
        super().__init__(prior, x_shape)

    def _draw(self, x: Tensor) -> Tensor:
        return self.prior.sample((x.shape[0],)).to(x.device, torch.float32)

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        inside = self._inside(theta)
        density = torch.full((theta.shape[0],), -torch.inf, device=theta.device)
        # a uniform prior forgets θ: its gradient is zero, not missing
        flat = 0.0 * theta[inside].sum(-1)
        density = density.index_put((inside,), self.prior.log_prob(theta[inside]).to(density) + flat)
        return density[:, None].expand(-1, x.shape[0])

    def _may_leak(self) -> bool:
        return False
