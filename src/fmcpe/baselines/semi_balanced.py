r"""A chain that answers by a mixture over simulations, weighted by optimal transport between real and simulated data.

For features \( a_i \) of n observations and \( b_k \) of K simulations, the plan solves

\[ \min_P \; \langle P, C \rangle + \gamma\, KL(P \| u v^\top) + \rho\, KL(P^\top 1 \| v), \qquad P 1 = u, \]

where \( C_{ik} = |a_i - b_k|^2 \), \( u, v \) uniform: entropic, *semi-balanced* (rows exact, columns relaxed). Its solution is
\( P_{ik} = u_i\, \mathrm{softmax}_k(\psi_k - C_{ik} / \gamma) \), where ψ is the fixed point of

\[ \psi_k \leftarrow -\tau \log \textstyle\sum_i u_i e^{\varphi_i - C_{ik}/\gamma}, \quad
   \varphi_i = -\log \textstyle\sum_k v_k e^{\psi_k - C_{ik}/\gamma}, \quad \tau = \rho / (\rho + \gamma). \]

POT's solver of this problem (`ot.unbalanced`, ``reg_m=(inf, rho)``) forms \( e^{-C/\gamma} \) and loses far points to underflow
where γ is small. Here ψ is absorbed into a row-normalised kernel, which a softmax gives exactly, and iterations are products
with that kernel. The tests compare the two where both converge.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import Shared, Transported, base_of
from fmcpe.spaces import FlatStandardiser, ParameterSpace

NEGLIGIBLE = 1e-6
"""Mass of the lightest components of a mixture that its density leaves out."""

_ABSORB = 20.0  # ψ may move so far from the value in the kernel: e^20 is safe in single precision
_FLOOR = 1e-30  # of column sums, where all of a column has underflown; the next absorption lifts it


def relative_costs(a: Tensor, b: Tensor) -> Tensor:
    """|a_i - b_k|² less a number for each row, for a (n, d) and b (K, d): (n, K).

    A plan with exact rows does not depend on what is added to a row. Without |a_i|², an observation far from all simulations
    does not drown the differences between them in rounding.
    """
    centre = b.mean(0)
    a, b = a - centre, b - centre
    return torch.addmm(b.square().sum(1).expand(a.shape[0], -1), a, b.T, alpha=-2.0)


def semi_balanced_rows(
    cost: Tensor, gamma: float, rho: float, tolerance: float = 1e-3, max_iterations: int = 2000
) -> Tensor:
    """The rows of the plan, each divided by its mass: (n, K), every row a distribution over the columns.

    Args:
        cost: C, (n, K), each row up to a constant; its type is the precision.
        gamma: Weight γ of the entropy.
        rho: Weight ρ of the columns' divergence from uniform; infinite for exact columns, 0 for free ones.
        tolerance: Largest mean |change of ψ|, weighted by the columns' masses, at which ψ is taken to be fixed: about the
            relative error of a weight.
        max_iterations: Products with the kernel after which a warning is given.
    """
    n, size = cost.shape
    scores = cost / -gamma
    if rho == 0:
        return scores.softmax(1)
    tau = 1.0 if math.isinf(rho) else rho / (rho + gamma)
    # where columns are nearly exact the plain iteration is slow: longer steps, as long as they do not overshoot
    relaxation = 1.0 if tau < 0.95 else 1.5
    absorbed = torch.zeros(size, dtype=cost.dtype, device=cost.device)
    psi, kernel = absorbed, scores.softmax(1)
    error = before = math.inf
    for _ in range(max_iterations):
        shift = psi - absorbed
        if float(shift.abs().max()) > _ABSORB:
            absorbed, shift = psi, torch.zeros_like(psi)
            kernel = torch.softmax(scores + absorbed, 1)
        v = shift.exp()
        columns = kernel.T @ (1 / (kernel @ v).clamp_min(_FLOOR))  # of the plan, over v_k / n
        mass = columns * v / n
        target = tau * (absorbed - (columns * (size / n)).clamp_min(_FLOOR).log())
        # ψ is defined up to a constant where τ = 1, and its constant is the slowest to settle where τ is near 1: what
        # counts is how the weights within a row change
        step = target - psi
        before, error = error, float((mass * (step - (mass * step).sum()).abs()).sum())
        relaxation = relaxation if error < 2 * before else 1.0
        psi = psi + relaxation * step
        if error < tolerance * (1 - 0.9 * tau):
            break
    else:
        warnings.warn(
            f"the transport plan has not settled after {max_iterations} iterations (error {error:.1e}); a smoother plan was "
            f"expected. Try a larger gamma than {gamma:g} or a smaller rho than {rho:g}.",
            FMCPEWarning,
            stacklevel=3,
        )
    return torch.softmax(scores + psi, 1)


class TransportMixture(Transported):
    r"""\( p(\theta | y_i) = \sum_k w_{ik}\, \hat p(\theta | x_k) \), the weights from the transport of a batch to a pool.

    The plan is one for a whole batch, and the batch is always joined by the calibration observations, so that a single
    observation has company. Entropy and relaxation are in units of the mean cost between two simulations, so that neither
    depends on the units of the features.

    Args:
        base: The base posterior \( \hat p(\theta | x) \), as a function of its summary.
        space: Physical θ <-> z.
        g: Features of real observations, (B, ...) -> (B, d).
        pool: Simulations as `base` takes them, (K, ...).
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
        """The weights over the pool of each observation of a batch, (B, K): one plan for the batch and its company."""
        batch = torch.cat([self.g(rows) for rows in y.split(2000)])
        # the mean of |b_k - b_l|² is twice the variance: known without forming the matrix
        unit = 2 * float(self.features.var(0).sum())
        cost = relative_costs(torch.cat([batch, self.company]), self.features)
        return semi_balanced_rows(cost, self.gamma * unit, self.rho * unit)[: y.shape[0]]

    def source(self, y: Tensor, n: int) -> Tensor:
        """Simulations of the pool by weight, (B, n, ...)."""
        return self.pool[torch.multinomial(self.plan(y), n, replacement=True)]

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        """The mixture is summed, not drawn: all components but a negligible mass."""
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
