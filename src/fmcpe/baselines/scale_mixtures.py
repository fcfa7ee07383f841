r"""Gaussian models with heavy-tailed errors, sampled by Gibbs with the errors integrated out.

    s = m + ε + e,   ε ~ N(0, Σ),   e_d | v_d ~ N(0, v_d),   v_d ~ a finite grid of variances with weights

A Cauchy or a Laplace error is such a scale mixture of normals (Andrews and Mallows, 1974): its mixing distribution is put on a
logarithmic grid (`cauchy_levels`, `laplace_levels`). Given the variances everything is Gaussian, so `sweep` draws each v_d from
its conditional with e and ε integrated out. With P = (Σ + diag v)⁻¹ and q = P (s - m), a change of v_d by δ changes the log
density by \( -\tfrac12 \log(1 + \delta P_{dd}) + \tfrac12 \delta q_d^2 / (1 + \delta P_{dd}) \), and P by a matrix of rank one.

`Summaries` are the numbers that `RNPE` and `RSNL` work on.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.baselines.common import refuse_overflow
from fmcpe.spaces import FlatStandardiser

MAX_SUMMARIES = 64
"""Summaries up to which the covariance of each observation is affordable: a sweep takes time of order d³."""

CLIP = 1e4
"""Standardised summaries of an observation are clipped to this many standard deviations, for numerical reasons."""


def cauchy_levels(scale: float, number: int = 28) -> tuple[Tensor, Tensor]:
    """Variances and log weights, (L,) each, of the normals whose mixture is Cauchy(0, scale): v = scale² / χ²₁."""
    edges = torch.logspace(-1.2, 8.0, number - 1, dtype=torch.float64)
    return _levels(edges, torch.special.erfc((0.5 / edges).sqrt()), scale)


def laplace_levels(number: int = 16) -> tuple[Tensor, Tensor]:
    """The same for Laplace(0, 1): v is exponential with mean 2."""
    edges = torch.logspace(-2.5, 1.5, number - 1, dtype=torch.float64)
    return _levels(edges, -torch.expm1(-edges / 2), 1.0)


def _levels(edges: Tensor, cumulative: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Levels in the logarithmic middle of the intervals between edges, and one beyond each end."""
    step = (edges[1] / edges[0]).sqrt()
    middle = torch.cat([edges[:1] / step, edges * step])
    one = cumulative.new_ones(1)
    weights = torch.cat([cumulative, one]) - torch.cat([0 * one, cumulative])
    return middle * scale**2, weights.clamp_min(1e-300).log()


def chains_at_once(summaries: int) -> int:
    """Number of chains whose matrices take little memory: a sweep reads and writes them once per summary."""
    return max(256, min(4000, 500_000 // summaries**2))


def sweep(
    precision: Tensor, residual: Tensor, index: Tensor, variances: Tensor, log_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """One Gibbs sweep over the variances of R chains; `precision` is overwritten.

    Args:
        precision: P at the current variances, (R, d, d), double precision.
        residual: s - m, (R, d).
        index: Current level of each variance, (R, d).
        variances: Levels, (R or 1, d, L).
        log_weights: Their prior log weights, (L,).

    Returns:
        The new levels, (R, d), and the conditional probabilities of a level above the first one, (R, d).
    """
    chosen, above = [], []
    for j in range(residual.shape[1]):
        column = precision[:, :, j].clone()
        own, q = column[:, j : j + 1], (column * residual).sum(1, keepdim=True)
        table = variances[:, j].expand(len(residual), -1)
        delta = table - table.gather(1, index[:, j : j + 1])
        grown = (delta * own).add_(1.0).clamp_min_(1e-12)
        score = log_weights - 0.5 * grown.log() + 0.5 * delta * q.square() / grown
        share = score.softmax(1)
        above.append(1 - share[:, 0])
        place = torch.rand(len(share), 1, dtype=share.dtype, device=share.device)
        new = (share.cumsum(1) < place).sum(1, keepdim=True).clamp_max_(share.shape[1] - 1)
        step = delta.gather(1, new)
        precision.baddbmm_((column * (-step / grown.gather(1, new)))[:, :, None], column[:, None, :])
        chosen.append(new)
    return torch.cat(chosen, dim=1), torch.stack(above, dim=1)


def log_normal(residual: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Log density of N(0, covariance) at residuals (R, d) up to a constant, (R,), and the Cholesky factors."""
    root = torch.linalg.cholesky_ex(covariance)[0]
    white = torch.linalg.solve_triangular(root, residual[..., None], upper=False)[..., 0]
    return -root.diagonal(dim1=1, dim2=2).log().sum(1) - 0.5 * white.square().sum(1), root


def with_diagonal(covariance: Tensor, variances: Tensor) -> Tensor:
    """Covariances (R or 1, d, d) plus diagonal ones (R, d)."""
    return covariance + torch.diag_embed(variances)


class Summaries(nn.Module):
    """Standardised summaries of data: those that the base posterior is conditioned on, without constant ones.

    Args:
        base: The base posterior; with an embedding, its summary is the embedding's output.
        simulations: Simulations in the form that ``base.summarised()`` takes, (K, ...).
    """

    varies: Tensor

    def __init__(self, base: BasePosterior, simulations: Tensor) -> None:
        super().__init__()
        object.__setattr__(self, "base", base.summarised())
        self.scale = FlatStandardiser(simulations)
        flat = simulations.flatten(1)
        spread = flat.std(0) > 1e-6 * flat.abs().amax(0).clamp_min(1e-30)
        self.register_buffer("varies", spread)

    def of(self, summary: Tensor) -> Tensor:
        """Summaries of what the base posterior takes, (B, ...) -> (B, d), in double precision; an error where one is NaN."""
        s = self.scale(summary)[:, self.varies].double().clamp(-CLIP, CLIP)
        bad = s.isnan().any(1)
        if bool(bad.any()):
            raise ValueError(
                f"Expected summaries that are numbers, got NaN for {int(bad.sum())} of {len(bad)} row(s): values in the "
                "embedding overflow. Check the unit of the data, and remove extreme values."
            )
        return s

    def forward(self, y: Tensor) -> Tensor:
        """Summaries of raw data, (B, ...) -> (B, d)."""
        base: BasePosterior = self.base  # type: ignore[assignment]
        return self.of(base.summarise(y))

    def restore(self, s: Tensor, y: Tensor) -> Tensor:
        """What the base posterior takes, (B, n, ...), from summaries (B, n, d); constant ones are those of simulations."""
        shape = self.scale.mean.shape
        flat = self.scale.mean.flatten().expand(*s.shape[:2], -1).clone()
        flat[..., self.varies] += (s * self.scale.std.flatten()[self.varies]).to(flat)
        return flat.unflatten(2, shape)


def summaries_of(base: BasePosterior, pool: Tensor, method: str) -> Summaries:
    """The summaries of `RNPE` and `RSNL`, made from raw simulations (K, ...); an error if there are too many or none."""
    simulated = base.summarised().summarise(pool)
    refuse_overflow(simulated)
    found = Summaries(base, simulated)
    number = int(found.varies.sum())
    if not 1 <= number <= MAX_SUMMARIES:
        what = "that vary between simulations" if number == 0 else f"of at most {MAX_SUMMARIES} numbers"
        raise ValueError(
            f"Expected summaries {what} for {method}, got {number}. Train the base posterior with an embedding, e.g. "
            'train_npe(..., embedding_net="auto"); its output is then the summary.'
        )
    return found
