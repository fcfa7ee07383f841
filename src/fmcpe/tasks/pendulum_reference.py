"""The pendulum's posterior p(ω₀, A | y), to Monte-Carlo accuracy.

With q = e^{(iω−α)Δ} and times kΔ, the log likelihood of (ω, α, φ, A) is, up to a constant,

    bA − aA²/2,   b = Re(e^{iφ} Σ y_k q^k) / σ²,   a = ½ Σ |q|^{2k} / σ² + ½ Re(e^{2iφ} Σ q^{2k}) / σ².

A is uniform in polar coordinates, so A | ω, α, φ is a truncated normal and integrates out in closed form. (In
(c, s) = (A cos φ, A sin φ) the prior would have a factor 1/A.) This leaves a smooth function L(ω, α, φ) on a box,
whose peak may be 1e-4 or 1 wide. The box is divided into cells, and cells that can have mass are halved until L is
nearly constant on each. Draws from the cells are reweighted by exact values of L, so the grid affects efficiency
only, not bias.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.tasks.importance import PILOT, ImportanceReference, draw_rows, effective_size
from fmcpe.tasks.truncated_normal import log_normal_mass, truncated_normal

Array = NDArray
Range = tuple[float, float]

_FIRST_CELLS = (64, 8, 16)  # along ω, α, φ
_MAX_CELLS = 200_000
_NEGLIGIBLE = 16.0  # log of the density ratio at which a resolved cell is dropped
_RESOLVED = 0.5  # change of L from a cell's centre to its face
_CHUNK = 16_384
_LOW_ESS = 0.05
_GOOD_ESS = 0.4


class PendulumReference(ImportanceReference):
    """Posterior of (ω₀, A) for one series sampled at 0, Δ, 2Δ, …

    Attributes:
        num_cells: Number of cells.
    """

    def __init__(
        self,
        y: Tensor,
        *,
        step: float,
        noise_std: float,
        omega_range: Range,
        amplitude_range: Range,
        damping_range: Range,
    ):
        self._y = y.double()
        self._step, self._noise_std, self._amplitude_range = step, noise_std, amplitude_range
        times = step * torch.arange(len(y), dtype=torch.float64)
        energy = self._y**2
        # ω correlates strongly with the phase at t=0, but not with the phase at the centre of the signal's energy
        self._pivot = float((times * energy).sum() / energy.sum().clamp_min(1e-300))

        axes = (omega_range, damping_range, (0.0, 2 * math.pi))
        low = torch.tensor([a for a, _ in axes], dtype=torch.float64)
        width = torch.tensor([b - a for a, b in axes], dtype=torch.float64)
        # a series with amplitude below A_min still gives L the curvature of a model with A_min
        floor = amplitude_range[0] ** 2 * torch.exp(-2 * damping_range[0] * times) if not width[1] else 0.0
        power = torch.maximum(energy, torch.as_tensor(floor, dtype=torch.float64)) / noise_std**2
        spread = float((power * (times - self._pivot) ** 2).sum())
        curvature = torch.tensor([spread, spread, float(power.sum())], dtype=torch.float64)
        with seeded(derive(0, "pendulum", "pilot")):
            self._resolve(low, width, curvature)
            self.ess = self._pilot()[0]
        self.num_cells = len(self._centres)
        self._warn_unless(self.ess >= _LOW_ESS, f"{self.num_cells} cells do not resolve the posterior")

    def _resolve(self, low: Tensor, width: Tensor, curvature: Tensor) -> None:
        """Drop cells without mass and halve the others along the axes where L still changes."""
        counts = [n if w > 0 else 1 for n, w in zip(_FIRST_CELLS, width, strict=True)]
        width = width / torch.tensor(counts, dtype=torch.float64)
        offsets = [torch.arange(n, dtype=torch.float64) + 0.5 for n in counts]
        centres = low + width * torch.cartesian_prod(*offsets)
        while True:
            value = self._log_target(centres)[0]
            # A peak lies at most half a cell from a centre along each axis, so the centre's value is at most this
            # much below the peak's. The 3 covers correlated axes: (u+v+w)² <= 3(u²+v²+w²).
            slack = 3 * float((curvature * width**2).sum()) / 8
            keep = value > value.max() - _NEGLIGIBLE - slack
            centres, value = centres[keep], value[keep]
            self._set_cells(centres, width, value)
            best = value.topk(min(512, len(value))).indices
            change = self._change(centres[best], torch.softmax(value[best], 0))
            split = change > _RESOLVED
            if not split.any():
                # the best centres can all lie where L is flat while a thin ridge passes between others, so weigh
                # cells by more than their centre before using the pilot
                inside = [centres + width * (torch.rand(len(centres), 3, dtype=torch.float64) - 0.5) for _ in range(3)]
                values = [value] + [self._log_target(points)[0] for points in inside]
                self._set_cells(centres, width, torch.stack(values).logsumexp(0))
                ess, change = self._pilot()
                if ess > _GOOD_ESS:
                    return
                split = change > min(_RESOLVED, float(change.max()) / 2)
            if len(centres) * 2 ** int(split.sum()) > _MAX_CELLS:
                split &= change == change.max()
            if 2 * len(centres) > _MAX_CELLS:
                return
            width = torch.where(split, width / 2, width)
            signs = [torch.tensor([-0.5, 0.5] if s else [0.0], dtype=torch.float64) for s in split]
            centres = (centres[:, None] + width * torch.cartesian_prod(*signs)).reshape(-1, 3)

    def _set_cells(self, centres: Tensor, width: Tensor, value: Tensor) -> None:
        self._centres, self._width = centres, width
        # the flatter second part bounds the weights where L at a cell's centre is below the rest of the cell
        self._cells = 0.9 * torch.softmax(value, 0) + 0.1 * torch.softmax(value / 2, 0)
        self._log_cells = self._cells.log()

    def _change(self, points: Tensor, weights: Tensor) -> Tensor:
        """Per axis, the weighted mean change of L over half a cell's width."""
        faces = torch.diag(self._width) / 2
        shifted = (points[:, None] + torch.cat([faces, -faces])).reshape(-1, 3)
        change = self._log_target(shifted)[0].reshape(-1, 2, 3) - self._log_target(points)[0][:, None, None]
        return weights @ change.abs().amax(1)

    def _pilot(self) -> tuple[float, Tensor]:
        """Effective sample size as a fraction, and the change per axis where the mass is."""
        points, weights = self._candidates(PILOT)
        best = weights.topk(512)
        change = self._change(points[best.indices], best.values / best.values.sum())
        return effective_size(weights) / PILOT, change

    def _candidates(self, n: int) -> tuple[Tensor, Tensor]:
        """Points uniform inside cells drawn by weight, and their importance weights."""
        cell = draw_rows(self._cells, n)
        points = self._centres[cell] + self._width * (torch.rand(n, 3, dtype=torch.float64) - 0.5)
        return points, torch.softmax(self._log_target(points)[0] - self._log_cells[cell], 0)

    def _log_target(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """L at each (ω, α, φ at the pivot), with the mean and std of the normal that A is truncated from."""
        # numpy is serial here: torch would parallelise exp and log of a few thousand numbers, at four times the cost
        parts = [self._log_target_chunk(chunk.numpy()) for chunk in points.split(_CHUNK)]
        value, mean, std = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        return value, mean, std

    def _log_target_chunk(self, points: Array) -> tuple[Array, Array, Array]:
        omega, alpha, pivot_phase = points.T
        q = np.exp((-alpha + 1j * omega) * self._step)
        projection = np.zeros_like(q)
        for y_k in self._y.flip(0).tolist():  # Horner's rule: stable for |q| <= 1 without a table of powers
            projection *= q
            projection += y_k
        turn = np.exp(1j * (pivot_phase - omega * self._pivot))
        n = len(self._y)
        power = _geometric(np.abs(q) ** 2, n) + (turn**2 * _geometric(q**2, n)).real
        # at ω=0, φ=±π/2 the model is 0 for every A; the floor keeps that limit finite
        a = np.maximum(power / 2 / self._noise_std**2, 1e-8)
        b = (turn * projection).real / self._noise_std**2
        mean, std = b / a, 1 / np.sqrt(a)
        low, high = self._amplitude_range
        log_mass = log_normal_mass((low - mean) / std, (high - mean) / std)
        return b * mean / 2 + np.log(std) + log_mass, mean, std

    def _theta(self, candidates: Tensor) -> Tensor:
        """(ω, A), with A | ω, α, φ from a truncated normal, by its inverse cdf in logs."""
        _, mean, std = self._log_target(candidates)
        low, high = self._amplitude_range
        u = torch.rand(len(candidates), dtype=torch.float64).numpy()
        amplitude = torch.from_numpy(truncated_normal(u, mean.numpy(), std.numpy(), low, high))
        return torch.stack([candidates[:, 0], amplitude], 1)


def _geometric(ratio: Array, n: int) -> Array:
    """Σ_{k<n} ratio^k by doubling, which unlike (1 − r^n)/(1 − r) is accurate near r = 1."""
    total, power = np.zeros_like(ratio), np.ones_like(ratio)
    for bit in f"{n:b}":
        total, power = total + power * total, power * power
        if bit == "1":
            total, power = total * ratio + 1, power * ratio
    return total
