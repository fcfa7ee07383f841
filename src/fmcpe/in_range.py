r"""Which observations are like the calibration pairs: p-values of the distance of a summary.

The distance of an observation is that of its summary to the mean of the pairs' summaries, in the metric of their shrunk
covariance. The leave-one-out distances of the pairs are the reference. The p-value of a log distance is the largest of three:
under the Student-t predictive distribution of the pairs' log distances; under an exponential tail of the ⌈√N⌉ largest (a Pareto
tail of the distance; Hill, 1975); and the share of pairs that are as far.

Few pairs determine neither covariance nor spread. Simulations complete them, as pseudo-pairs of the covariance (about the
pairs' own mean, so that an offset of the simulator does not matter) and as a conjugate normal-inverse-gamma prior of the log
distances. A summary that is constant in the pairs and in these simulations has no variance: another value of it has distance
infinity, and p = 0.

Real observations without θ add a second p-value, of the distance to all real observations, and the smaller one counts. They
show how real data are distributed, but carry no information about θ: an observation unlike the pairs stays out of range even
if it is like other real data. So the check becomes sharper where pairs are few, and never more lenient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy import stats
from torch import Tensor

from fmcpe.nn.fitted import Fitted


class Range(Fitted):
    """The reference distribution of distances, fitted to summaries of calibration pairs, of all real data or of simulations."""

    mean: Tensor  # (f,)
    matrix: Tensor  # to whitened principal directions, (f, q)
    distances: Tensor  # leave-one-out log distances of the N reference observations, (N,)
    pseudo_pairs: ClassVar[int] = 4
    """Pseudo-count of the simulations, and of a normal tail, in the conjugate priors."""
    before: tuple[float, float] | None = None
    """Mean and standard deviation of log distances between simulations, the prior for few pairs; None without simulations."""
    constant: tuple[int, ...] = ()
    """Summaries with one value in all reference observations, and one in the simulations that complete them."""

    @classmethod
    def of(cls, rows: Tensor, like: Tensor | None = None, directions: int = 16) -> Range:
        """From summaries (N, f), in at most `directions` principal directions; simulations `like` regularise the fit."""
        number = len(rows)
        size = max(1, min(directions, rows.shape[1], number // 3 if like is None else len(like) // 3))
        constant = torch.stack([each.amax(0) == each.amin(0) for each in (rows, like) if each is not None]).all(0)
        # the mean of equal numbers is not exactly this number: the rounding error is no variance
        like = None if like is None else (like - like.mean(0)).masked_fill(constant, 0)
        mean, matrix = whitening(rows, size, like, cls.pseudo_pairs)
        distances, folds = rows.new_zeros(number), torch.arange(number, device=rows.device) % min(number, 20)
        for k in folds.unique() if number > (3 if like is None else 1) else ():
            distances[folds == k] = _log_distance(
                rows[folds == k], *whitening(rows[folds != k], size, like, cls.pseudo_pairs)
            )
        out = cls(mean=mean, matrix=matrix, distances=distances)
        out.constant = tuple(constant.nonzero()[:, 0].tolist())
        if like is not None:
            out.before = _between_simulations(like, number, size, cls.pseudo_pairs)
        return out

    def p_values(self, rows: Tensor) -> Tensor:
        """P-value of each row's log distance, (B,); 1 for three reference observations or fewer without simulations."""
        number = len(self.distances)
        if number < (4 if self.before is None else 2):
            return torch.ones(len(rows), device=rows.device)
        mean, variance, freedom, count = self.distances.mean(), self.distances.var(), number - 1, float(number)
        pseudo = self.pseudo_pairs
        if self.before is not None:  # normal-inverse-gamma prior of as many pseudo-pairs as the covariance has
            usual, deviation = self.before
            apart = number * pseudo / (number + pseudo) * (mean - usual).square()
            freedom, count = number - 1 + pseudo, number + pseudo
            variance = ((number - 1) * variance + pseudo * deviation**2 + apart) / freedom
            mean = (number * mean + pseudo * usual) / count
        scale = variance.sqrt().clamp_min(1e-3) * (1 + 1 / count) ** 0.5
        distance = self._log_distances(rows)
        share = self._as_far(distance).float() / number
        normal = torch.maximum(share, student_tail((distance - mean) / scale, freedom))
        return torch.maximum(normal, _exponential_tail(self.distances, distance, float(scale), pseudo))

    def conformal(self, rows: Tensor) -> Tensor:
        """Conformal p-value of each row, (B,): the share of reference distances at least as large; at least 1/(N + 1)."""
        return (1 + self._as_far(self._log_distances(rows))) / (1 + len(self.distances))

    def _as_far(self, distance: Tensor) -> Tensor:
        """Number of reference distances at least as large, (B,), without a (B, N) matrix."""
        return len(self.distances) - torch.searchsorted(self.distances.sort().values, distance)

    def _log_distances(self, rows: Tensor) -> Tensor:
        """Log distances, (B,); infinite where a summary without variation has another value, beyond rounding."""
        distance, columns = _log_distance(rows, self.mean, self.matrix), list(self.constant)
        usual = self.mean[columns]
        return distance.masked_fill(((rows[:, columns] - usual).abs() > 1e-5 * usual.abs()).any(1), torch.inf)


@dataclass(frozen=True)
class RangeCheck:
    """Whether observations are like those that the posterior was fitted on; every tensor has shape (B,).

    Args:
        pairs: P-value of the distance to the calibration pairs.
        conformal: Conformal p-value of the same distance: approximately valid for any distribution, at least 1/(N + 1).
        simulations: P-value of the distance to simulations from the prior; NaN without a simulator.
        prior_share: Weight of the prior, for the parameter that has most of it.
        real: P-value of the distance to all real observations, with θ and without; None if all have θ.
        raw: P-value of the raw data against those of the pairs; None where the summaries show all of them.
        level: P-value below which an observation is called out of range.
    """

    pairs: Tensor
    conformal: Tensor
    simulations: Tensor
    prior_share: Tensor
    real: Tensor | None = None
    level: float = 1e-3
    raw: Tensor | None = None

    @property
    def p_values(self) -> Tensor:
        """The smallest one of `pairs`, `real` and `raw`."""
        return torch.stack([each for each in (self.pairs, self.real, self.raw) if each is not None]).amin(0)

    @property
    def out_of_range(self) -> Tensor:
        """Observations with a p-value below the level."""
        return self.p_values < self.level

    def __str__(self) -> str:
        columns = [
            each.tolist()
            for each in (self.out_of_range, self.pairs, self.conformal, self.simulations, self.prior_share)
        ]
        others = {"all real data": self.real, "their raw data": self.raw}
        known = {name: each.tolist() for name, each in others.items() if each is not None}
        more = [
            "".join(f"p = {each[i]:.2g} against {name}; " for name, each in known.items())
            for i in range(len(columns[0]))
        ]
        return "\n".join(
            f"observation {i}: {'out of range' if out else 'in range'} (p = {p:.2g}, conformal p = {c:.2g} against the pairs; "
            f"{more[i]}p = {s:.2g} against simulations); the prior has weight {share:.2g}"
            for i, (out, p, c, s, share) in enumerate(zip(*columns, strict=True))
        )


def student_tail(t: Tensor, freedom: float) -> Tensor:
    """Probability that Student's t exceeds a value."""
    return torch.as_tensor(stats.t.sf(t.double().cpu().numpy(), max(1.0, freedom))).to(t)


def _exponential_tail(usual: Tensor, distance: Tensor, scale: float, pseudo: int) -> Tensor:
    """Predictive probability that a log distance exceeds a value, from the excesses of the largest reference distances.

    Excesses are exponential, their rate has a conjugate gamma prior: `pseudo` excesses of a normal distribution.
    """
    number = len(usual)
    largest = min(math.ceil(number**0.5), number - 1)
    values = usual.sort(descending=True).values
    threshold, quantile = values[largest], stats.norm.isf(largest / number)
    excess = scale * (stats.norm.pdf(quantile) * number / largest - quantile)
    total = pseudo * excess + (values[:largest] - threshold).sum()
    above = (distance - threshold).clamp_min(0) / total
    return largest / number * (1 + above) ** -(pseudo + largest)


def _log_distance(rows: Tensor, mean: Tensor, matrix: Tensor) -> Tensor:
    # where single precision overflows, or a summary network does, the distance is NaN: nothing is farther
    return ((rows - mean) @ matrix).norm(dim=1).nan_to_num(torch.inf, torch.inf).clamp_min(1e-12).log()


def whitening(rows: Tensor, size: int, like: Tensor | None = None, pseudo: int = 0) -> tuple[Tensor, Tensor]:
    """Mean, and a matrix to principal directions of unit variance, shrunk to their mean variance.

    Centred simulations `like`, (M, f), count for `pseudo` rows of the covariance.
    """
    data, freedom = rows.double(), max(1, len(rows) - 1)
    mean = data.mean(0)
    data = data - mean
    if like is not None:
        freedom = len(rows) - 1 + pseudo
        data = torch.cat([data, (pseudo / len(like)) ** 0.5 * like.double()])
    std = (data.square().sum(0) / freedom).sqrt()
    std = torch.where(std > 1e-9 * (data + mean).abs().amax(0).clamp_min(1e-30), std, torch.inf)
    _, values, vectors = torch.linalg.svd(data / std, full_matrices=False)
    values, vectors = values[:size].square() / freedom, vectors[:size]
    if len(values) < size:
        values = torch.cat([values, values.new_ones(size - len(values))])
        vectors = torch.cat([vectors, vectors.new_zeros(size - len(vectors), vectors.shape[1])])
    weight = size / (size + freedom + 1)
    values = (1 - weight) * values + weight * values.mean()
    return mean.to(rows), (vectors.T / values.clamp_min(1e-12).sqrt() / std[:, None]).to(rows)


def _between_simulations(
    like: Tensor, number: int, size: int, pseudo: int, sets: int = 12, most: int = 60
) -> tuple[float, float]:
    """Mean and standard deviation of the log distance of a simulation to `number` others, as pairs have it."""
    number, found = min(number, most, len(like) // 2), []
    for k in range(sets):
        rows = like.roll(-k * (len(like) // sets), 0)
        found.append(_log_distance(rows[number : number + most], *whitening(rows[:number], size, like, pseudo)))
    distances = torch.cat(found)
    return float(distances.mean()), float(distances.std())
