"""Domain randomisation of simulations (Tobin et al., 2017): the embedding learns to generalise beyond the simulator.

While the base posterior trains, part of its simulations are distorted by a smooth random gain, a smooth random offset
and extra noise. The level of the distortion is a feature of the embedding (`fmcpe.nn.embeddings.LevelAware`). At level
0, the default, the posterior is as sharp as without randomisation; at higher levels it is wider and a better start for
fine-tuning.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def on_a_baseline(x: Tensor, ratio: float = 3.0) -> bool:
    """Whether the mean of the data exceeds `ratio` standard deviations: a gain would then only shift them."""
    return bool(x.mean().abs() > ratio * x.std())


def draw_levels(number: int, device: torch.device | None = None, share_clean: float = 0.3) -> Tensor:
    """Levels for training, (B, 1): a share of zeros, the others in (0, 1) with more mass at small values."""
    level = torch.rand(number, 1, device=device) ** 1.5
    return level * (torch.rand(number, 1, device=device) > share_clean)


def distort(
    x: Tensor, level: Tensor, scale: float, gain: float = 2.0, offset: float = 0.3, noise: float = 0.2
) -> Tensor:
    """Data with a random distortion for each row.

    Args:
        x: Vectors or series (B, d), series of several channels (B, c, d), or images (B, ., ., .).
        level: Strength for each row, (B, 1), from 0 (unchanged) to 1.
        scale: Standard deviation of the data.
        gain: Standard deviation of the log gain at level 1.
        offset: Standard deviation of the offset at level 1, in units of `scale`.
        noise: Standard deviation of the noise at level 1, in units of `scale`.
    """
    level = level.reshape(-1, *([1] * (x.ndim - 1)))
    out = x.clone()
    # one axis at a time, in place: for a large image, memory traffic takes most of the time
    strength, curves = gain * (level * torch.rand_like(level)), _smooth(x)
    for curve in curves:
        out *= (strength * curve).clamp(-6 / len(curves), 2 / len(curves)).exp()
    strength, curves = offset * scale * (level * torch.rand_like(level)), _smooth(x)
    for curve in curves:
        out += strength * curve
    return out.addcmul_(noise * scale * (level * torch.rand_like(level)), torch.randn_like(x))


def _smooth(x: Tensor, max_waves: int = 8) -> list[Tensor]:
    """Random cosine series for each row of x, one per smooth axis, broadcast against x; their sum has about unit size.

    The last axis is smooth, and of images the two longest ones.
    """
    axes = sorted(range(1, x.ndim), key=lambda i: x.shape[i])[-2:] if x.ndim == 4 else [x.ndim - 1]
    curves = []
    for axis in axes:
        waves = min(max_waves, x.shape[axis])
        place = (torch.arange(x.shape[axis], device=x.device) + 0.5) / x.shape[axis]
        basis = torch.cos(math.pi * torch.arange(waves, device=x.device)[:, None] * place)
        decay = 1.0 / torch.arange(waves, device=x.device).clamp_min(1)
        decay[0] = 0.5
        # one curve per row and, for images, per colour
        others = [size if i == 0 or (x.ndim == 4 and i not in axes) else 1 for i, size in enumerate(x.shape)]
        others.pop(axis)
        drawn = (torch.randn(*others, waves, device=x.device) * decay) @ basis
        curves.append(drawn.movedim(-1, axis) / math.sqrt(len(axes)))
    return curves
