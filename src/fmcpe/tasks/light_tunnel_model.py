"""Camera models of the light tunnel: model F1, and a stand-in for the real camera.

Model F1 (Gamella et al., 2025) renders a hexagon of one colour on black:

    x[i, j, k] = m[i, j] · α (R, G, B)_k / 255.

The stand-in is model F3, in which the sensor mixes colours (S) and balances white (w), and the polarisers leak (T_c) and absorb
(T_p < 1), with four additions: a blurred edge, a dark offset d, shot noise and 8-bit quantisation:

    v_k = e w_k (S (R, G, B)/255)_k ((T_p − T_c)_k α + T_c,k)
    y[i, j, k] = round(255 clip(s + √(g s + ρ²) ε, 0, 1)) / 255,   s = d + v_k h[i, j],   h the blurred m.

Each channel depends on θ through one number, v_k, and pixels are independent given v_k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from fmcpe.tasks.options import not_negative, positive
from fmcpe.tasks.truncated_normal import log_normal_mass

SIZE = 64
_CENTRE, _RADIUS = 0.5, 0.22


def hexagon(size: int = SIZE) -> Tensor:
    """Mask of the pixels in the hexagon, ``(size, size)``. Row 0 is the top; a pixel's position is its lower left corner."""
    column = torch.arange(size, dtype=torch.float64)
    x, y = column[None, :], (size - 1 - column)[:, None]
    angles = torch.arange(6, dtype=torch.float64) * math.pi / 3
    corners = size * torch.stack([_CENTRE + _RADIUS * angles.cos(), _CENTRE + _RADIUS * angles.sin()], 1)
    inside = torch.ones(size, size, dtype=torch.bool)
    for (ax, ay), (bx, by) in zip(corners.tolist(), corners.roll(-1, 0).tolist(), strict=True):
        inside &= (bx - ax) * (y - ay) - (by - ay) * (x - ax) >= 0
    return inside


@dataclass(frozen=True)
class Camera:
    """Constants of the stand-in.

    Mixing and polarisers are those measured for model F3 (tutorial of the causalchamber package); dark offset, blur and noise
    are typical of a camera. White balance and exposure are those of an unadjusted camera: red too dark, green and blue too
    bright.

    Args:
        mixing: S, one row per channel of the sensor.
        white_balance: w.
        passed: T_p, transmission of aligned polarisers.
        leaked: T_c, transmission of crossed polarisers.
        exposure: e.
        blur: Standard deviation of the edge's blur, pixels.
        dark: d, as a fraction of full scale.
        shot: g, variance of the photon noise at full scale.
        read: ρ, standard deviation of the read noise.
    """

    mixing: tuple[tuple[float, float, float], ...] = (
        (0.2995802, 0.06920322, 0.028159),
        (0.04017132, 0.9209918, 0.31265),
        (0.00217392, 0.2071558, 0.75763),
    )
    white_balance: tuple[float, float, float] = (0.6, 1.8, 1.4)
    passed: tuple[float, float, float] = (0.29, 0.35, 0.33)
    leaked: tuple[float, float, float] = (0.02, 0.08, 0.18)
    exposure: float = 5.0
    blur: float = 1.0
    dark: float = 0.02
    shot: float = 4e-4
    read: float = 0.01

    def __post_init__(self) -> None:
        not_negative(blur=self.blur, dark=self.dark, shot=self.shot)
        positive(exposure=self.exposure, read=self.read)


class Photographs:
    """Images of a camera.

    Attributes:
        profile: h of the module's docstring, ``(64, 64)``, float64.
        mixing: e diag(w) S, ``(3, 3)``, float64.
    """

    def __init__(self, camera: Camera):
        self.camera = camera
        self.profile = torch.from_numpy(gaussian_filter(hexagon().double().numpy(), camera.blur))
        balance = torch.tensor(camera.white_balance, dtype=torch.float64)
        self.mixing = camera.exposure * balance[:, None] * torch.tensor(camera.mixing, dtype=torch.float64)
        self._passed = torch.tensor(camera.passed, dtype=torch.float64)
        self._leaked = torch.tensor(camera.leaked, dtype=torch.float64)

    @property
    def brightest(self) -> Tensor:
        """The largest v of each channel."""
        return self.mixing.sum(1) * self._passed

    def transmission(self, alpha: Tensor) -> Tensor:
        """Transmission of the polarisers in each channel, ``(*, 3)`` from α ``(*, 1)``."""
        return (self._passed - self._leaked) * alpha + self._leaked

    def levels(self, theta: Tensor) -> Tensor:
        """Levels v at each row (R, G, B, α): ``(N, 3)``, float64."""
        theta = theta.double()
        return (theta[:, :3] / 255) @ self.mixing.T * self.transmission(theta[:, 3:])

    def draw(self, theta: Tensor) -> Tensor:
        """Images at each row of θ, ``(N, 64, 64, 3)``, with fresh noise from torch's global generator."""
        camera = self.camera
        signal = camera.dark + self.profile.float()[:, :, None] * self.levels(theta).float()[:, None, None]
        noisy = torch.randn(signal.shape).mul_((camera.shot * signal + camera.read**2).sqrt_()).add_(signal)
        return noisy.clamp_(0, 1).mul_(255).round_().div_(255)

    def log_likelihood(self, channel: Tensor) -> Callable[[Tensor], Tensor]:
        """Log p(one channel's pixels | v) up to a constant, as a function of v.

        Args:
            channel: ``(64, 64)``; values are rounded to 8 bits.
        """
        profile = self.profile.flatten()
        lit = profile > 1e-3  # elsewhere, v changes a pixel by less than a thousandth of its noise
        # pixels of equal profile and value have equal likelihood, and inside the edge all profiles are 1
        keys = torch.stack([profile[lit].round(decimals=4), (255 * channel.double().flatten()[lit]).round()], 1)
        values, counts = keys.unique(dim=0, return_counts=True)
        h, byte, counts = values[:, 0].numpy(), values[:, 1].numpy(), counts.double().numpy()
        lower = np.where(byte <= 0, -np.inf, (byte - 0.5) / 255)
        upper = np.where(byte >= 255, np.inf, (byte + 0.5) / 255)

        def log_likelihood(v: Tensor) -> Tensor:
            signal = self.camera.dark + v.double().numpy()[:, None] * h
            std = np.sqrt(self.camera.shot * signal + self.camera.read**2)
            return torch.from_numpy(log_normal_mass((lower - signal) / std, (upper - signal) / std) @ counts)

        return log_likelihood
