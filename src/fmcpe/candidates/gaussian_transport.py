r"""The base posterior behind the optimal transport of Gaussians from summaries of real data to those of simulations.

    x̃ = m_x + A (h(y) - m_y),      A = Σ_y^{-½} (Σ_y^{½} Σ_x Σ_y^{½})^{½} Σ_y^{-½}

m_y and Σ_y are mean and covariance of summaries of real observations without θ, m_x and Σ_x those of simulations from the
target prior, each shrunk by Ledoit and Wolf's rule. Closed form (Peyré and Cuturi, 2019, "Computational optimal transport",
remark 2.31). It assumes that θ of the unlabelled observations follow the target prior, and that the error of the simulator
is nearly affine in the summary and independent of θ. No pair takes part, so the score on all pairs is honest; it decides
whether the assumptions are good enough for a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import Candidate, Shared, Transported, base_of
from fmcpe.candidates.prior import log_prior
from fmcpe.problem import Problem
from fmcpe.spaces import ParameterSpace


class GaussianTransported(Transported):
    """The base posterior, as a function of its summary, at an affine map of the summary."""

    mean: Tensor  # m_y, (f,)
    target: Tensor  # m_x, (f,)
    matrix: Tensor  # transpose of A, (f, f)

    def __init__(
        self, base: BasePosterior, space: ParameterSpace, mean: Tensor, target: Tensor, matrix: Tensor
    ) -> None:
        super().__init__(base, space)
        for name, value in (("mean", mean), ("target", target), ("matrix", matrix)):
            self.register_buffer(name, value.float())

    def source(self, y: Tensor, n: int) -> Tensor:
        seen = self.base.summarise(y)
        moved = self.target + (seen.flatten(1) - self.mean) @ self.matrix
        return moved.view_as(seen)[:, None].expand(-1, n, *seen.shape[1:])

    def to_config(self) -> dict[str, Any]:
        return super().to_config() | {"size": len(self.mean)}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> GaussianTransported:
        size = config["size"]
        empty = (torch.zeros(shape) for shape in ((size,), (size,), (size, size)))
        return cls(base_of(config, shared), shared.space, *empty)


@dataclass(frozen=True)
class GaussianTransport(Candidate):
    """Alignment of real and simulated summaries by mean and covariance, then the base posterior."""

    name = "gaussian_transport"
    uses_pairs = False
    needs_unlabelled = True
    effort = 0.1

    def skipped(self, problem: Problem) -> str | None:
        if problem.bank_seen is None:
            return "it needs a simulator, or simulations from the prior"
        if problem.bank_seen[0].numel() > 500:
            return "data have more than 500 numbers and the base posterior has no summary of them"
        return None if len(problem.unlabelled) > 1 else "it needs two real observations without θ"  # type: ignore[arg-type]

    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> list[GaussianTransported]:
        assert problem.unlabelled is not None and problem.bank_seen is not None
        real, simulated = problem.unlabelled.flatten(1).double(), _from_target_prior(problem).flatten(1).double()
        unit = simulated.std(0)
        unit = torch.where(unit > 1e-9 * simulated.abs().amax(0).clamp_min(1e-30), unit, 1.0)
        a, b = (_covariance(rows / unit) for rows in (real, simulated))
        root, inverse = _power(a, 0.5), _power(a, -0.5)
        matrix = inverse @ _power(root @ b @ root, 0.5) @ inverse
        matrix = matrix / unit[:, None] * unit
        one = GaussianTransported(problem.summarised, problem.space, real.mean(0), simulated.mean(0), matrix)
        return [one for _ in subsets]


def _from_target_prior(problem: Problem) -> Tensor:
    """Summaries of simulations from the target prior: those from the prior, resampled where it is another one."""
    assert problem.bank_seen is not None and problem.bank_theta is not None
    if problem.target_prior is problem.base.prior:
        return problem.bank_seen
    z = problem.space.to_z_safely(problem.bank_theta)
    log_ratio = log_prior(problem.target_prior, problem.space, z) - log_prior(problem.base.prior, problem.space, z)
    share = log_ratio.nan_to_num(-torch.inf).softmax(0)
    return problem.bank_seen[torch.multinomial(share, len(z), replacement=True)]


def _covariance(rows: Tensor) -> Tensor:
    """Ledoit and Wolf's, (f, f)."""
    return torch.as_tensor(ledoit_wolf(rows.cpu().numpy())[0]).to(rows)


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """Of a symmetric, positive matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(1e-9 * values.max().clamp_min(1e-30)) ** exponent) @ vectors.T
