r"""A mixture of base posteriors over simulations, weighted by optimal transport between real and simulated data.

For features \( a_i \) of n observations and \( b_k \) of K simulations, the plan solves

\[ \min_P \; \langle P, C \rangle + \gamma\, KL(P \| u v^\top) + \rho\, KL(P^\top 1 \| v), \qquad P 1 = u, \]

where \( C_{ik} = |a_i - b_k|^2 \), \( u, v \) uniform: entropic, *semi-balanced* (rows exact, columns relaxed). Its solution is
\( P_{ik} = u_i\, \mathrm{softmax}_k(\psi_k - C_{ik} / \gamma) \), where ψ is the fixed point of

\[ \psi_k \leftarrow -\tau \log \textstyle\sum_i u_i e^{\varphi_i - C_{ik}/\gamma}, \quad
   \varphi_i = -\log \textstyle\sum_k v_k e^{\psi_k - C_{ik}/\gamma}, \quad \tau = \rho / (\rho + \gamma). \]

POT's solver of this problem (`ot.unbalanced`, ``reg_m=(inf, rho)``) forms \( e^{-C/\gamma} \), which underflows at far points
if γ is small. Here ψ is absorbed into a row-normalised kernel, computed as a softmax, and each iteration multiplies by that
kernel. The tests compare the two where both converge.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from fmcpe._checks import finite_rows
from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import Shared, Transported, base_of
from fmcpe.spaces import FlatStandardiser, ParameterSpace

NEGLIGIBLE = 1e-6
"""Total weight of the smallest components that the density of the mixture omits."""

_ABSORB = 20.0  # largest |ψ - absorbed ψ|: e^20 is safe in single precision
_FLOOR = 1e-30  # of column sums that underflow; the next absorption restores them


def mean_cost(features: Tensor) -> float:
    """The mean squared distance between two simulations, which is twice the variance."""
    return 2 * float(features.var(0).sum())


def relative_costs(a: Tensor, b: Tensor, gamma: float = 1.0) -> Tensor:
    """|a_i - b_k|² up to a constant per row, for a (n, d) and b (K, d): (n, K).

    A plan with exact rows is invariant to row constants. Omitting |a_i|² avoids cancellation for observations far from all
    simulations. Observations whose distances, divided by γ, overflow are an error.
    """
    centre = b.mean(0)
    a, b = a - centre, b - centre
    costs = torch.addmm(b.square().sum(1).expand(a.shape[0], -1), a, b.T, alpha=-2.0)
    ok = finite_rows(costs / gamma)
    if not bool(ok.all()):
        raise ValueError(
            f"Expected observations at finite distances from the simulations, got {int((~ok).sum())} of {len(ok)} so far away "
            "that numbers overflow. Check their units, and remove extreme values."
        )
    return costs


def semi_balanced_rows(
    cost: Tensor, gamma: float, rho: float, tolerance: float = 1e-3, max_iterations: int = 2000
) -> Tensor:
    """The normalised rows of the plan, (n, K): every row is a distribution over the columns.

    Args:
        cost: C, (n, K), each row up to a constant; its dtype sets the precision.
        gamma: Weight γ of the entropy.
        rho: Weight ρ of the columns' divergence from uniform; infinite for exact columns, 0 for free ones.
        tolerance: Iteration stops at this mean |change of ψ|, weighted by the columns' masses: about the relative error of a
            weight.
        max_iterations: Number of iterations after which a warning is given.
    """
    return torch.softmax(cost / -gamma + column_potentials(cost, gamma, rho, tolerance, max_iterations), 1)


def column_potentials(
    cost: Tensor, gamma: float, rho: float, tolerance: float = 1e-3, max_iterations: int = 2000
) -> Tensor:
    """ψ of the plan, (K,), with the arguments of `semi_balanced_rows`; 0 for free columns."""
    n, size = cost.shape
    scores = cost / -gamma
    absorbed = torch.zeros(size, dtype=cost.dtype, device=cost.device)
    if rho == 0:
        return absorbed
    tau = 1.0 if math.isinf(rho) else rho / (rho + gamma)
    # the plain iteration is slow where columns are nearly exact: over-relax as long as the error does not grow
    relaxation = 1.0 if tau < 0.95 else 1.5
    psi, kernel = absorbed, scores.softmax(1)
    error = before = math.inf
    for _ in range(max_iterations):
        shift = psi - absorbed
        if float(shift.abs().max()) > _ABSORB:
            absorbed, shift = psi, torch.zeros_like(psi)
            kernel = torch.softmax(scores + absorbed, 1)
        v = shift.exp()
        columns = kernel.T @ (1 / (kernel @ v).clamp_min(_FLOOR))  # column sums of the plan, divided by v_k / n
        mass = columns * v / n
        target = tau * (absorbed - (columns * (size / n)).clamp_min(_FLOOR).log())
        # τ = 1 defines ψ up to a constant, which also converges slowest for τ near 1: the error counts changes of the
        # weights within a row only
        step = target - psi
        before, error = error, float((mass * (step - (mass * step).sum()).abs()).sum())
        relaxation = relaxation if error < 2 * before else 1.0
        psi = psi + relaxation * step
        if not error >= tolerance * (1 - 0.9 * tau):  # an error of NaN, which costs that overflow give, stays NaN
            break
    else:
        warnings.warn(
            f"Expected the transport plan to converge in {max_iterations} iterations, got an error of {error:.1e}. "
            f"Try a larger gamma than {gamma:g} or a smaller rho than {rho:g}.",
            FMCPEWarning,
            stacklevel=4,
        )
    return psi


class TransportMixture(Transported):
    r"""\( p(\theta | y_i) = \sum_k w_{ik}\, \hat p(\theta | x_k) \), with weights from the transport of a batch to a pool.

    One plan is solved for a whole batch, extended by the calibration observations so that a single observation has a batch
    too. Entropy and relaxation are in units of the mean cost between two simulations, so they do not depend on the units of
    the features.

    Args:
        base: The base posterior \( \hat p(\theta | x) \), as a function of its summary.
        space: Physical θ <-> z.
        g: Features of real observations, (B, ...) -> (B, d).
        pool: Simulations in the form that `base` takes, (K, ...).
        features: Their features, (K, d).
        company: Features g(y) of the calibration observations, (N, d).
        gamma: Weight of the entropy.
        rho: Weight of the columns' divergence from uniform.
    """

    transductive = True
    is_random = True
    pool: Tensor
    features: Tensor
    company: Tensor

    def __init__(
        self,
        base: BasePosterior,
        space: ParameterSpace,
        g: nn.Module,
        pool: Tensor,
        features: Tensor,
        company: Tensor,
        gamma: float,
        rho: float,
    ) -> None:
        super().__init__(base, space)
        self.g = g
        self.register_buffer("pool", pool)
        self.register_buffer("features", features)
        self.register_buffer("company", company)
        self.gamma, self.rho = gamma, rho

    @torch.no_grad()
    def plan(self, y: Tensor) -> Tensor:
        """Weights of each observation over the pool, (B, K), from one plan for the batch and the calibration observations."""
        batch = torch.cat([self.g(rows) for rows in y.split(2000)])
        unit = mean_cost(self.features)
        cost = relative_costs(torch.cat([batch, self.company]), self.features, self.gamma * unit)
        return semi_balanced_rows(cost, self.gamma * unit, self.rho * unit)[: y.shape[0]]

    def source(self, y: Tensor, n: int) -> Tensor:
        """Simulations drawn from the pool by weight, (B, n, ...)."""
        return self.pool[torch.multinomial(self.plan(y), n, replacement=True)]

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        """Log density: a sum over all components but those of negligible weight."""
        rows = []
        for row, each in zip(self.plan(y), z, strict=True):
            descending, order = row.sort(descending=True)
            kept = int((descending.double().cumsum(0) < 1 - NEGLIGIBLE).sum()) + 1
            weights, x = descending[:kept], self.pool[order[:kept]]
            with seeded(0):
                log_mass = self.base.log_acceptance(x) - (weights / weights.sum()).log()
            theta = self.space.to_theta(each)
            density = self.base.log_prob(theta.expand(kept, *theta.shape), x, log_mass).logsumexp(0)
            rows.append(density - self.space.log_abs_det(theta, each))
        return torch.stack(rows)

    def to_config(self) -> dict[str, Any]:
        flat = isinstance(self.g, FlatStandardiser)
        shapes = {name: list(getattr(self, name).shape) for name in ("pool", "features", "company")}
        raw = list(self.g.mean.shape) if isinstance(self.g, FlatStandardiser) else None
        return super().to_config() | shapes | {"gamma": self.gamma, "rho": self.rho, "embedded": not flat, "raw": raw}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> TransportMixture:
        # the network is a copy of the base posterior's embedding; its weights come from the file
        g = (
            copy.deepcopy(shared.base.embedding)
            if config["embedded"]
            else FlatStandardiser(torch.zeros(2, *config["raw"]))
        )
        assert g is not None
        pool, features, company = (torch.zeros(config[name]) for name in ("pool", "features", "company"))
        return cls(base_of(config, shared), shared.space, g, pool, features, company, config["gamma"], config["rho"])
