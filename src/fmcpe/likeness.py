"""What is wrong with the simulator, told by the pairs as distortions that make its simulations look like their real data.

A pair says what reality looks like at a θ, and the simulator what it should look like there. Between the two a smooth gain, a
smooth offset and noise are looked for (`fmcpe.roughen`): of many that are drawn at random, those are kept after which
simulations at θ look most like y. Simulations anywhere else, distorted like that, are stand-ins for real data that nobody has
measured: fine-tuning learns from them what a handful of pairs cannot show (`fmcpe.summary`).

Data look alike where their local means and local strengths are alike. That sees what a distortion does, and does not see what
is random in a simulation, a phase say, by which no two series are alike number by number.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fmcpe.roughen import Distortion, draw_distortion, smooth_axes

KEPT = 5
"""Distortions for each pair."""
_MOST, _FEWEST, _NUMBERS = 1500, 50, 30_000_000
"""Distortions that are tried for each pair, and how many numbers all of them may be applied to."""
_FAINT = 0.03
"""Strength, in standard deviations of the data, below which nothing is seen."""


@torch.no_grad()
def likely_distortions(x: Tensor, y: Tensor, scale: float) -> Distortion:
    """Distortions after which simulations look like real data at the same θ.

    Args:
        x: Simulations, several for each pair, (N, S, ...).
        y: Real data, (N, ...).
        scale: Standard deviation of simulations.

    Returns:
        `KEPT` for each pair: curves of shape (N, KEPT, ...).
    """
    number = max(_FEWEST, min(_MOST, _NUMBERS // y.numel()))
    level, found = torch.ones(number, 1, device=y.device), []
    again = torch.arange(number, device=y.device) % x.shape[1]
    for simulated, real in zip(x[:, again], y, strict=True):
        tried = draw_distortion(simulated, level, scale)
        unlike = (_look(tried(simulated), scale) - _look(real[None], scale)).square().sum(1)
        found.append(tried.rows(unlike.topk(KEPT, largest=False).indices))
    gains, offsets, noise = zip(*found, strict=True)
    return Distortion(
        [torch.stack(curves) for curves in zip(*gains, strict=True)],
        [torch.stack(curves) for curves in zip(*offsets, strict=True)],
        torch.stack(noise),
    )


def _look(x: Tensor, scale: float) -> Tensor:
    """Local means and logarithms of local strengths, (B, f)."""
    axes = smooth_axes(x)
    others = [axis for axis in range(1, x.ndim) if axis not in axes]
    x = x.permute(0, *others, *axes).reshape(len(x), -1, *(x.shape[axis] for axis in axes)) / scale
    pool: nn.Module = nn.AdaptiveAvgPool1d(min(10, x.shape[2])) if len(axes) == 1 else nn.AdaptiveAvgPool2d(4)
    mean, square = pool(x).flatten(1), pool(x.square()).flatten(1)
    return torch.cat([2 * mean, 0.5 * (square + _FAINT**2).log()], dim=1)
