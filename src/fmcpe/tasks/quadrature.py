"""One-parameter posteriors by quadrature.

A density on an interval is evaluated at nodes; cells without mass are dropped and the others refined. Between nodes the density
is linear, and draws invert its cdf exactly. The prior may jump at the edges between pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fmcpe._checks import as_sample_shape
from fmcpe._random import seeded

_NEGLIGIBLE = 30.0  # log of the density ratio at which a cell is dropped


class Quadrature:
    """A posterior of one parameter with a unimodal likelihood.

    Args:
        log_likelihood: ``(N,) float64 -> (N,)``.
        edges: Points where the prior density may jump, ascending, including both ends of its support.
        prior: Unnormalised prior density between consecutive edges.
        cells: Initial number of cells per piece, and approximate final number in total.
    """

    def __init__(
        self,
        log_likelihood: Callable[[Tensor], Tensor],
        edges: Sequence[float],
        prior: Sequence[float] = (1.0,),
        cells: tuple[int, int] = (1024, 4096),
    ):
        self._log_likelihood = log_likelihood
        self._edges = torch.tensor(edges, dtype=torch.float64)
        self._log_prior = torch.tensor(prior, dtype=torch.float64).log()
        starts, widths = self._edges[:-1], self._edges.diff() / cells[0]
        starts = (starts[:, None] + widths[:, None] * torch.arange(cells[0])).flatten()
        widths, piece = widths.repeat_interleave(cells[0]), torch.arange(len(prior)).repeat_interleave(cells[0])

        ends = self._log_density(torch.stack([starts, starts + widths], 1), piece)
        keep = ends.amax(1) >= ends.max() - _NEGLIGIBLE
        starts, widths, piece = starts[keep], widths[keep], piece[keep]

        parts = -(-cells[1] // len(starts))
        nodes = starts[:, None] + widths[:, None] * torch.arange(parts + 1) / parts
        value = self._log_density(nodes, piece)
        top = value.max()
        density = (value - top).exp()
        self._left, self._width = nodes[:, :-1].flatten(), (widths / parts).repeat_interleave(parts)
        self._low, self._high = density[:, :-1].flatten(), density[:, 1:].flatten()
        mass = self._width * (self._low + self._high) / 2
        self._log_total = mass.sum().log() + top
        self._cdf = mass.cumsum(0) / mass.sum()

    def sample(self, sample_shape: Sequence[int] = (), seed: int | None = None) -> Tensor:
        """Draw the parameter, shape ``(*sample_shape, 1)``."""
        shape = as_sample_shape(sample_shape)
        with seeded(seed):
            values = self.draw(shape.numel())
        return values.float().reshape(*shape, 1)

    def draw(self, n: int) -> Tensor:
        """``n`` draws, float64, from torch's global generator."""
        cell = torch.searchsorted(self._cdf, torch.rand(n, dtype=torch.float64)).clamp_max(len(self._cdf) - 1)
        low, high = self._low[cell], self._high[cell]
        u = torch.rand(n, dtype=torch.float64)
        # root of low·s + (high − low)s²/2 = u(low + high)/2, in the form that is valid for low = high
        root = (low**2 + u * (high**2 - low**2)).clamp_min(0).sqrt()
        share = u * (low + high) / (low + root).clamp_min(1e-300)
        return self._left[cell] + self._width[cell] * share.clamp(0, 1)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density of each row of ``theta`` ``(N, 1)``; minus infinity outside the prior."""
        value = torch.as_tensor(theta).double().reshape(-1)
        piece = (torch.searchsorted(self._edges, value, right=True) - 1).clamp(0, len(self._log_prior) - 1)
        inside = (value >= self._edges[0]) & (value <= self._edges[-1])
        density = self._log_density(value.clamp(self._edges[0], self._edges[-1])[:, None], piece)[:, 0]
        return torch.where(inside, density - self._log_total, -torch.inf).float()

    def _log_density(self, values: Tensor, piece: Tensor) -> Tensor:
        """Log density at ``values`` ``(K, M)``, where row k lies in piece k of the prior."""
        return self._log_likelihood(values.flatten()).reshape(values.shape) + self._log_prior[piece][:, None]
