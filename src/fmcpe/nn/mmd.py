r"""Squared maximum mean discrepancy as a penalty of summaries in training: differentiable, Gaussian kernels of several widths.

\[ \mathrm{MMD}^2(P, Q) = E\, k(s, s') + E\, k(t, t') - 2 E\, k(s, t), \qquad k(u, v) = e^{-|u - v|^2 / 2 w^2}, \]

with s, s' ~ P and t, t' ~ Q, as a V-statistic. It is sbi's `compute_rbf_mmd` with distances computed once for all widths
and without square roots; `fmcpe.metrics.mmd2` is the unbiased estimate for reports, without gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mmd2_to_normal(s: Tensor, widths: tuple[float, ...] = (0.5, 1.0, 2.0)) -> Tensor:
    r"""MMD² between summaries s (B, d) and \( \mathcal N(0, I) \), whose expectations are known:

    \[ E\, k(s, z) = \Big(\frac{w^2}{w^2 + 1}\Big)^{d/2} e^{-|s|^2 / 2 (w^2 + 1)}, \qquad
       E\, k(z, z') = \Big(\frac{w^2}{w^2 + 2}\Big)^{d/2}. \]

    This is the statistic of Baringhaus, Henze, Epps and Pulley (Henze and Zirkler, 1990) without their standardisation. Widths
    are in units of √d.
    """
    d, total, squares = s.shape[1], s.new_zeros(()), squared_distances(s, s)
    for width in widths:
        w2 = width**2 * d
        cross = (w2 / (w2 + 1)) ** (d / 2) * torch.exp(s.square().sum(1) / (-2 * (w2 + 1))).mean()
        total = total + torch.exp(squares / (-2 * w2)).mean() - 2 * cross + (w2 / (w2 + 2)) ** (d / 2)
    return total / len(widths)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """|a_i - b_k|², by a product of matrices."""
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_min(0.0)
