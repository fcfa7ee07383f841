r"""Have two calibration pairs been swapped? By the evidence of a regression of y on θ, with and without the swap.

The summaries T (N, d) of y are normal given features X (N, f) of θ, \( T = X W + E \), with the conjugate matrix-normal
inverse-Wishart prior of W and of the covariance of E. The log evidence is \( -\frac{ν}{2} \log |Ψ| \) and a constant that the
order of the rows does not change, with \( Ψ = Ψ_0 + T^T T - A^T K A \), \( A = X^T T \) and \( K = (X^T X + P)^{-1} \),
P the prior precision of W. A swap
of the rows i and j of X changes A by \( -(X_i - X_j)^T (T_i - T_j) \). So its gain of log evidence, in which the whole
regression is fitted again, takes no fit.

With δ the difference of both whitened means, the log likelihood ratio of a swap is N(-v/2, v), v = 2|δ|², for right rows: a
gain g has p ≤ Φ(-√(2g)) for any v. Residuals with heavy tails have larger gains; all gains are divided by the square of the
robust scale of (ratio + v/2)/√v over all pairs of rows but those of the most probable swap, where that is above one. Where the
noise depends on θ, noisy rows have larger gains; but after a real swap is undone, both residuals have the usual size. So a gain
is also divided by the larger squared whitened residual of both rows after the swap, over the 99 % quantile of χ²_d, where that
is above one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor


@dataclass(frozen=True)
class Swaps:
    """The most probable swap of each row.

    Args:
        p: P-value of the best swap of each row, times (N - 1)/2, Bonferroni's factor, (N,); one if the best swap of the other
            row is with a third one.
        bound: The same by Markov's inequality, P(gain ≥ g) ≤ exp(-g) for any ratio of evidences, if the regression holds.
        partner: The other row of that swap, (N,).
    """

    p: Tensor
    bound: Tensor
    partner: Tensor

    @classmethod
    def of(cls, gain: Tensor) -> Swaps:
        """From the log likelihood ratio of each swap, symmetric, (N, N)."""
        best, partner = gain.clone().fill_diagonal_(-torch.inf).max(1)
        best, partners = best.clamp_min(0.0), (len(gain) - 1) / 2  # as many as pairs, each counted once for two of them
        tail = torch.as_tensor(stats.norm.sf((2 * best).sqrt().cpu().numpy()), device=gain.device)
        mutual = partner[partner] == torch.arange(len(gain), device=gain.device)
        p, bound = (torch.where(mutual, partners * each, 1.0).clamp_max(1.0) for each in (tail, (-best).exp()))
        return cls(p, bound, partner)

    def unless(self, single: Tensor) -> Swaps:
        """The swaps that are less probable by chance than that one of both rows is wrong by itself, with p-values (N,)."""
        alone = torch.minimum(single, single[self.partner])
        p, bound = (torch.where(each < alone, each, 1.0) for each in (self.p, self.bound))
        return Swaps(p, bound, self.partner)


def swap_gains(features: Iterable[Tensor], targets: Tensor, most: int = 4000) -> Tensor:
    """Gain of log evidence by each swap of two rows, symmetric, (N, N); -inf for all but the `most` probable swaps.

    Args:
        features: Sets of features of θ, (N, f) each; that of highest evidence counts.
        targets: Summaries of y, (N, d), standardised.
        most: Swaps that are looked at, by the likelihood ratio of the regression as it is.
    """
    if not bool(targets.any()):  # constant data tell no swap from another
        return targets.new_full((len(targets), len(targets)), -torch.inf)
    directions = max(1, min(16, targets.shape[1], len(targets) // 3))
    u, s, _ = torch.linalg.svd(targets, full_matrices=False)
    rows = (u * s)[:, :directions]
    return max((_Regression.of(each, rows) for each in features), key=lambda each: each.evidence).gains(most)


@dataclass(frozen=True)
class _Regression:
    """A conjugate regression of T (N, d) on X (N, f)."""

    x: Tensor
    t: Tensor
    inverse: Tensor
    """K, (f, f)."""
    start: Tensor
    """Ψ_0, (d, d)."""
    evidence: float

    @classmethod
    def of(cls, features: Tensor, t: Tensor, penalty: float = 0.1, share: float = 0.003) -> _Regression:
        """The prior's noise has `share` of the variance of T, and one degree of freedom more than it takes to have a mean.

        Both numbers are vague on purpose: chosen by evidence, they would explain a swap as noise.
        """
        x = torch.cat([features.new_ones(len(features), 1), features], dim=1)
        prior = x.new_full((x.shape[1],), penalty)
        prior[0] = 1e-6
        precision = x.T @ x + prior.diag()
        start = share * t.square().mean() * torch.eye(t.shape[1], dtype=t.dtype, device=t.device)
        found = cls(x, t, torch.linalg.inv(precision), start, 0.0)
        both = torch.logdet(prior.diag()) - torch.logdet(precision)
        known = (found.freedom - len(t)) * torch.logdet(start)
        evidence = 0.5 * (t.shape[1] * both + known - found.freedom * torch.logdet(found.scatter(x.T @ t)))
        return cls(x, t, found.inverse, start, float(evidence))

    @property
    def freedom(self) -> int:
        """ν, degrees of freedom with the prior's."""
        return len(self.t) + self.t.shape[1] + 2

    def scatter(self, a: Tensor) -> Tensor:
        """Ψ for A (..., f, d): (..., d, d)."""
        return self.start + self.t.T @ self.t - a.mT @ (self.inverse @ a)

    def gains(self, most: int) -> Tensor:
        """See `swap_gains`."""
        number, a = len(self.t), self.x.T @ self.t
        now, i, j = self.scatter(a), *torch.triu_indices(number, number, 1, device=self.t.device)
        root = torch.linalg.cholesky(now / self.freedom)
        mean = self.x @ self.inverse @ a
        leverage = ((self.x @ self.inverse) * self.x).sum(1).clamp_max(0.95)
        error = (self.t - mean) / (1 - leverage).sqrt()[:, None]
        mean, error = (torch.linalg.solve_triangular(root, each.T, upper=False).T for each in (mean, error))
        between, with_error = mean @ mean.T, mean @ error.T
        half = between.diagonal()[i] + between.diagonal()[j] - 2 * between[i, j]  # |δ|² = v/2
        own = with_error.diagonal()
        along = with_error[i, j] + with_error[j, i] - own[i] - own[j]  # ratio + v/2
        chosen = (along - half).topk(min(most, len(i))).indices
        first, second = i[chosen[0]], j[chosen[0]]
        others = (i != first) & (i != second) & (j != first) & (j != second)
        scale = _scale((along / (2 * half).clamp_min(1e-12).sqrt())[others])
        i, j, gains = i[chosen], j[chosen], []
        noise = torch.maximum(*((mean[k] + error[k] - mean[m]).square().sum(1) for k, m in ((i, j), (j, i))))
        unusual = (noise / stats.chi2.ppf(0.99, self.t.shape[1])).clamp_min(1.0)
        for first, second in zip(i.split(1000), j.split(1000), strict=True):  # bounds memory
            change = (self.x[first] - self.x[second])[:, :, None] * (self.t[first] - self.t[second])[:, None]
            gains.append(-0.5 * self.freedom * (torch.logdet(self.scatter(a - change)) - torch.logdet(now)))
        out = mean.new_full((number, number), -torch.inf)
        out[i, j] = out[j, i] = torch.cat(gains) / scale**2 / unusual
        return out


def _scale(values: Tensor, most: int = 100_000) -> float:
    """Robust scale of values that are standard normal at best: by both quartiles, or the upper tenth, and at least one."""
    some = values[:: 1 + len(values) // most]
    low, middle, high, upper = some.quantile(torch.tensor([0.25, 0.5, 0.75, 0.9], dtype=some.dtype, device=some.device))
    normal = stats.norm.ppf([0.75, 0.9])
    return max(1.0, float((high - low) / (2 * normal[0])), float((upper - middle) / normal[1]))
