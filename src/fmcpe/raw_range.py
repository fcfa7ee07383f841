r"""Which raw data are like those of the calibration pairs: what the summary of a base posterior may not show.

An embedding was trained on simulations, and may map noise or a broken sensor near them. Raw data, standardised, have two kinds
of features here: scores on the leading principal directions of the simulations, and the log of the mean square that these
directions leave over. P-values are those of `fmcpe.in_range` for these features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fmcpe._random import seeded
from fmcpe.in_range import Range
from fmcpe.nn.fitted import Fitted


class RawRange(Fitted):
    """The reference distribution of raw data, (B, ...)."""

    mean: Tensor
    """(d,)"""
    scale: Tensor
    """(d,)"""
    directions: Tensor
    """Orthonormal, (d, q)."""
    features: Range

    @classmethod
    def of(cls, y: Tensor, simulations: Tensor, most: int = 16, compared: int = 300) -> RawRange:
        """From pairs' y (N, ...) and simulations (M, ...), on at most `most` directions.

        The first `compared` simulations complete few pairs.
        """
        flat = simulations.flatten(1).double()
        size = torch.maximum(flat.abs().amax(0), y.flatten(1).abs().amax(0)).clamp_min(1e-30)
        scale = flat.std(0)
        # a sensor that is constant in the simulations has the scale of the pairs, or that of rounding
        scale = torch.where(scale > 1e-5 * size, scale, y.flatten(1).double().std(0)).clamp_min(1e-5 * size)
        mean = flat.mean(0)
        rows = (flat - mean) / scale
        with seeded(0):
            directions = torch.svd_lowrank(rows, q=min(most, *rows.shape), niter=4)[2]
        out = cls(mean=mean, scale=scale, directions=directions)
        out.features = Range.of(out.of_data(y), out.of_data(simulations[:compared]), directions.shape[1] + 1)
        return out

    def of_data(self, y: Tensor, floor: float = 1e-8) -> Tensor:
        """Features, (B, q + 1); without the last one if the directions are all of the data."""
        rows = ((y.flatten(1).double() - self.mean) / self.scale).clamp(-1e12, 1e12)
        scores = rows @ self.directions.double()
        if self.directions.shape[0] == self.directions.shape[1]:
            return scores.to(y)
        left = rows.square().mean(1) - scores.square().sum(1) / rows.shape[1]
        return torch.cat([scores, (left.clamp_min(0) + floor).log()[:, None]], dim=1).to(y)

    def p_values(self, y: Tensor, rows: int = 2000) -> Tensor:
        """P-value of each observation, (B,); `rows` are held in double precision at a time."""
        return torch.cat([self.features.p_values(self.of_data(part)) for part in y.split(rows)])

    def to_config(self) -> dict[str, Any]:
        """Arguments of `from_config`."""
        found = self.features
        sizes = [*found.matrix.shape, len(found.distances)]
        return {
            "directions": list(self.directions.shape),
            "sizes": sizes,
            "before": found.before,
            "constant": [*found.constant],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RawRange:
        """A reference distribution of this architecture; its tensors are loaded afterwards."""
        (d, q), (f, r, number) = config["directions"], config["sizes"]
        out = cls.empty(mean=d, scale=d, directions=(d, q))
        out.features = Range.empty(mean=f, matrix=(f, r), distances=number)
        out.features.before = tuple(config["before"])
        out.features.constant = known_columns(config["constant"], f)
        return out


def known_columns(columns: Any, number: int) -> tuple[int, ...]:
    """Columns of a file's manifest, checked."""
    if not all(type(k) is int and 0 <= k < number for k in columns):
        raise ValueError(f"Expected columns of {number} summaries, got {columns}.")
    return tuple(columns)
