"""Domain randomisation of simulations (Tobin et al., 2017): the embedding learns to survive data unlike any simulation.

While the base posterior trains, part of its simulations are distorted at random by a smooth gain, a smooth offset and extra
noise. The level of the distortion is drawn for each one and told to the network (`fmcpe.nn.embeddings.LevelAware`). At level 0,
the default, it is the ordinary, sharp posterior; at higher levels it is wider, more robust, and a better start for fine-tuning.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

GAIN, OFFSET, NOISE = 2.0, 0.3, 0.2
"""Strength of the distortions at level 1: of the log gain, and of offset and noise in standard deviations of the data."""

_WAVES = 8
_SHARE_CLEAN = 0.3
_BASELINE = 3.0


def on_a_baseline(x: Tensor) -> bool:
    """Whether data lie so far from zero, for their size, that a gain would change nothing but where they lie."""
    return bool(x.mean().abs() > _BASELINE * x.std())


def draw_levels(number: int, device: torch.device | None = None) -> Tensor:
    """Levels for training, (B, 1): some are 0, the others in (0, 1), small ones more often than large."""
    level = torch.rand(number, 1, device=device) ** 1.5
    return level * (torch.rand(number, 1, device=device) > _SHARE_CLEAN)


class Distortion(NamedTuple):
    """What is done to data, row by row: they are multiplied by curves, and others and noise are added."""

    log_gain: list[Tensor]
    """A curve for each axis along which data are smooth; broadcast against the data, like all that follows."""
    offset: list[Tensor]
    noise: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Data (B, ...) distorted, with fresh noise."""
        out = x.clone()
        # one axis at a time, in place: of a large image, most of the time goes into moving memory
        for curve in self.log_gain:
            out *= curve.exp()
        for curve in self.offset:
            out += curve
        return out.addcmul_(self.noise, torch.randn_like(x))

    def rows(self, index: Tensor | tuple[Tensor, ...]) -> Distortion:
        """Those that an index picks."""
        return Distortion([c[index] for c in self.log_gain], [c[index] for c in self.offset], self.noise[index])


def draw_distortion(x: Tensor, level: Tensor, scale: float) -> Distortion:
    """A random distortion for each row.

    Args:
        x: Vectors or series (B, d), series of several channels (B, c, d), or images (B, ., ., .).
        level: Strength for each row, (B, 1), from 0 (as they are) to 1.
        scale: Standard deviation of the data.
    """
    level = level.reshape(-1, *([1] * (x.ndim - 1)))
    strength, curves = GAIN * _strength(level), _smooth(x)
    gain = [(strength * curve).clamp(-6 / len(curves), 2 / len(curves)) for curve in curves]
    strength, curves = OFFSET * scale * _strength(level), _smooth(x)
    return Distortion(gain, [strength * curve for curve in curves], NOISE * scale * _strength(level))


def distort(x: Tensor, level: Tensor, scale: float) -> Tensor:
    """Data distorted at random; arguments as for `draw_distortion`."""
    return draw_distortion(x, level, scale)(x)


def _strength(level: Tensor) -> Tensor:
    return level * torch.rand_like(level)


def smooth_axes(x: Tensor) -> list[int]:
    """Axes of data (B, ...) along which neighbours are alike: the last, or the two longest ones of an image."""
    return sorted(range(1, x.ndim), key=lambda i: x.shape[i])[-2:] if x.ndim == 4 else [x.ndim - 1]


def _smooth(x: Tensor) -> list[Tensor]:
    """A random curve for each row, along its last axis or along both of an image: their sum has about unit size."""
    axes, curves = smooth_axes(x), []
    for axis in axes:
        waves = min(_WAVES, x.shape[axis])
        place = (torch.arange(x.shape[axis], device=x.device) + 0.5) / x.shape[axis]
        basis = torch.cos(math.pi * torch.arange(waves, device=x.device)[:, None] * place)
        decay = 1.0 / torch.arange(waves, device=x.device).clamp_min(1)
        decay[0] = 0.5
        # one curve per row and, for images, per colour: every axis that is neither a row's nor smooth stays
        others = [size if i == 0 or (x.ndim == 4 and i not in axes) else 1 for i, size in enumerate(x.shape)]
        others.pop(axis)
        drawn = (torch.randn(*others, waves, device=x.device) * decay) @ basis
        curves.append(drawn.movedim(-1, axis) / math.sqrt(len(axes)))
    return curves
