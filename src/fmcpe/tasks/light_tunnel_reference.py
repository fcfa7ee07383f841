"""Posteriors of the light tunnel's θ = (R, G, B, α) for one image.

A channel depends on θ through one level v_k, so p(v|image) is three quadratures. It remains to separate colour and
polarisers: with (R, G, B)/255 = c = M⁻¹ (v / t(α)), where t is the polarisers' transmission,

    p(v, α | image) ∝ Π_k L_k(v_k) / t_k(α)   where c is in [0, 1]³, and 0 elsewhere,

where 1/t is the Jacobian of c in v. Levels are drawn from L, α from cells, and both are reweighted exactly.

Model F1 has no noise, so v is known, and t_k = α: the density of α is α⁻³ between the brightest level and 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fmcpe._checks import as_sample_shape
from fmcpe._random import derive, seeded
from fmcpe.tasks.importance import PILOT, ImportanceReference, draw_rows, effective_size
from fmcpe.tasks.light_tunnel_model import Photographs, hexagon
from fmcpe.tasks.quadrature import Quadrature

_CELLS = 1024  # cells of α
_LEVELS = 64  # draws of v to find the support of α
_PILOTS = (PILOT, 16 * PILOT, 128 * PILOT)
_ENOUGH = 100  # effective sample size of a pilot


class F1Reference:
    """The posterior under model F1: a curve in θ, from the brightest level's α to α = 1.

    An image that F1 cannot produce is replaced by the nearest that it can: the limit of the posterior under F1 with pixel
    noise as the noise vanishes.

    Attributes:
        levels: α(R, G, B)/255 of the nearest F1 image, ``(3,)``, float64.
    """

    def __init__(self, image: Tensor):
        self.levels = image.double()[hexagon()].mean(0).clamp(0, 1)

    def sample(self, sample_shape: Sequence[int] = (), seed: int | None = None) -> Tensor:
        """Draw (R, G, B, α), shape ``(*sample_shape, 4)``."""
        shape = as_sample_shape(sample_shape)
        # α⁻³ of a black image is not integrable: a floor far below one grey level
        lowest = float(self.levels.max().clamp_min(1e-6)) ** -2
        with seeded(seed):
            u = torch.rand(shape.numel(), 1, dtype=torch.float64)
        alpha = (lowest + u * (1 - lowest)) ** -0.5
        colour = 255 * (self.levels / alpha).clamp(0, 1)
        return torch.cat([colour, alpha], 1).float().reshape(*shape, 4)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Not available: the posterior lies on a curve."""
        raise NotImplementedError(
            "Expected a posterior with a density, got that of model F1, which has no noise: its posterior lies on a curve. "
            "Use sample((n,)) and compare draws."
        )


class CameraReference(ImportanceReference):
    """The posterior under the stand-in camera. For an image that no θ explains, candidates are clamped to the prior."""

    def __init__(self, image: Tensor, photographs: Photographs):
        self._photographs = photographs
        self._inverse = torch.linalg.inv(photographs.mixing)
        self._levels = [
            Quadrature(photographs.log_likelihood(image[:, :, k]), (0.0, float(top)), cells=(256, 512))
            for k, top in enumerate(photographs.brightest)
        ]
        with seeded(derive(0, "light-tunnel", "pilot")):
            self._set_cells()
            for size in _PILOTS:
                theta, weights = self._candidates(size)
                effective = effective_size(weights)
                self.ess = effective / size
                if effective >= _ENOUGH:
                    break
                self._aim(theta[:, 3], weights)
        self._warn_unless(effective >= _ENOUGH, f"hardly any of {size} candidates explains the image")

    def _set_cells(self) -> None:
        """Cell weights of α from a few draws of the levels; other cells keep a small weight."""
        centres = (torch.arange(_CELLS, dtype=torch.float64) + 0.5) / _CELLS
        levels = self._draw_levels(_LEVELS)
        weights = self._weights(levels.repeat_interleave(_CELLS, 0), centres.repeat(_LEVELS)[:, None])[1]
        mass = weights.reshape(_LEVELS, _CELLS).mean(0)
        self._cells = 0.9 * mass / mass.sum().clamp_min(1e-300) + 0.1 / _CELLS

    def _aim(self, alpha: Tensor, weights: Tensor) -> None:
        """Refine the cells after a poor pilot: at a corner of the prior few levels are possible."""
        if not weights.any():
            return
        mass = torch.zeros(_CELLS, dtype=torch.float64)
        mass.index_add_(0, (alpha * _CELLS).long().clamp_max(_CELLS - 1), weights)
        spread = torch.nn.functional.avg_pool1d(mass[None, None], 65, stride=1, padding=32)[0, 0]
        self._cells = 0.8 * spread / spread.sum() + 0.2 / _CELLS

    def _draw_levels(self, n: int) -> Tensor:
        return torch.stack([level.draw(n) for level in self._levels], 1)

    def _candidates(self, n: int) -> tuple[Tensor, Tensor]:
        """Draws (R, G, B, α), and their importance weights."""
        cell = draw_rows(self._cells, n)
        alpha = ((cell + torch.rand(n, dtype=torch.float64)) / _CELLS)[:, None]
        colour, weights = self._weights(self._draw_levels(n), alpha)
        return torch.cat([255 * colour.clamp(0, 1), alpha], 1), weights / self._cells[cell]

    def _weights(self, levels: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        transmission = self._photographs.transmission(alpha)
        colour = (levels / transmission) @ self._inverse.T
        possible = ((colour >= 0) & (colour <= 1)).all(1)
        return colour, possible / transmission.prod(1)
