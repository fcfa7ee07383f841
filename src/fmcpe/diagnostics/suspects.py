r"""Which calibration pair is suspect? Pairs that disagree with all others, from their cross-validated draws.

A pair is wrong in one of two ways. Its θ does not belong to its y: then the true z lies far from the draws of members that have
not seen the pair, by the Mahalanobis distance of the draws' mean and covariance. Or its y is unlike every other y: then its
summary lies far from theirs (`fmcpe.extrapolation.Range`). The distances of all pairs say what is far: the log
distance, minus the median, over the normal-consistent interquartile range, has a Student-t p-value. Median and quartiles do not
move with a few wrong pairs. P-values are adjusted for the number of pairs (Benjamini and Hochberg, 1995).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from scipy import stats
from torch import Tensor

from fmcpe.extrapolation import Range

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


@dataclass(frozen=True)
class Suspect:
    """A pair that disagrees with all others.

    Args:
        pair: Its row, counted from 0.
        p_theta: P-value of its θ given its y.
        p_data: P-value of its y among those of all pairs.
        parameter: Name of the parameter that lies farthest off.
        value: The pair's value of it.
        low: Lower end of its central 90 % interval given y, from members that have not seen the pair.
        high: Upper end.
    """

    pair: int
    p_theta: float
    p_data: float
    parameter: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.p_theta <= self.p_data:
            return (
                f"pair {self.pair}: {self.parameter} = {self.value:.4g}, but its own y says {self.low:.4g} to {self.high:.4g} "
                f"(p = {self.p_theta:.2g}). Check that θ belongs to this y."
            )
        return (
            f"pair {self.pair}: its y is unlike that of all other pairs (p = {self.p_data:.2g}). Check the measurement."
        )


def suspects(posterior: CorrectedPosterior, *, level: float = 0.05) -> list[Suspect]:
    """Pairs that disagree with all others, the most suspect first; none is the usual answer.

    Args:
        posterior: Fitted with the default recipe, or with a `Stack`, on at least 8 pairs.
        level: False discovery rate: of clean pairs, some is named with at most about this probability.

    Example:
        >>> from fmcpe import diagnostics
        >>> diagnostics.suspects(posterior)
        []
        >>> swapped = theta_cal.clone()
        >>> swapped[0] = theta_cal[0] + 8  # a typing error
        >>> posterior = fmcpe.FMCPE(base, simulator, recipe=fast).fit(swapped, y_cal, seed=0)
        >>> [found.pair for found in diagnostics.suspects(posterior)]
        [0]
    """
    held_out = posterior.held_out
    if held_out is None:
        raise ValueError(
            f"Expected a posterior with cross-validated draws, got one of {posterior.method} without. Fit it with "
            'FMCPE(..., recipe="default").'
        )
    space, names = posterior.space, tuple(line.name for line in posterior.record.parameters)
    truth = space.to_z_safely(held_out.theta)
    if len(truth) < 8:
        return []
    by_theta, by_data = p_values(_mahalanobis(held_out.z, truth)), p_values(Range.of(held_out.seen).distances)
    p = torch.stack([by_theta, by_data], dim=1)
    adjusted = stats.false_discovery_control(p.flatten().double().cpu().numpy()).reshape(p.shape).min(axis=1)
    ends = held_out.z.quantile(torch.tensor([0.05, 0.95], device=truth.device), dim=1)
    half = held_out.z.std(1).clamp_min(1e-6)
    worst = ((truth - held_out.z.mean(1)).abs() / half).argmax(1)
    low, high = (space.to_theta(each) for each in ends)
    found = []
    for j in p.min(1).values.argsort().tolist():
        if adjusted[j] < level:
            i = int(worst[j])
            values = (float(each[j, i]) for each in (held_out.theta, low, high))
            found.append(Suspect(j, float(by_theta[j]), float(by_data[j]), names[i], *values))
    return found


def p_values(log_distances: Tensor) -> Tensor:
    """Student-t p-value of each log distance (N,) among all of them, by median and interquartile range."""
    low, middle, high = log_distances.double().quantile(
        torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device=log_distances.device)
    )
    scale = ((high - low) / (2 * stats.norm.ppf(0.75))).clamp_min(1e-3)
    t = ((log_distances.double() - middle) / scale).cpu().numpy()
    return torch.as_tensor(stats.t.sf(t, len(log_distances) - 1), device=log_distances.device)


def _mahalanobis(draws: Tensor, truth: Tensor) -> Tensor:
    """Log distance of each truth (N, p) from its draws (N, S, p), in their covariance, shrunk to its diagonal."""
    mean, dim = draws.mean(1), truth.shape[1]
    centred = draws - mean[:, None]
    covariance = centred.mT @ centred / (draws.shape[1] - 1)
    weight = dim / (dim + draws.shape[1])
    diagonal = torch.diag_embed(covariance.diagonal(dim1=1, dim2=2).clamp_min(1e-12))
    shrunk = (1 - weight) * covariance + weight * diagonal
    offset = (truth - mean)[..., None]
    return (offset.mT @ torch.linalg.solve(shrunk, offset)).flatten().clamp_min(1e-12).log() / 2
