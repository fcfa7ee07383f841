r"""Where to measure next: parameters that complete the pairs to a space-filling sample of the prior.

With pairs \( z_1..z_N \), suggestions \( z_{N+1}..z_T \) minimise the energy distance between all T points and the target
prior (support points; Mak and Joseph, 2018):

    (2/T) Σ_i E|z_i - Z| - (1/T²) Σ_ij |z_i - z_j|,      Z ~ target prior

The first term keeps points where the prior has mass, the second keeps them apart, and away from the pairs. Candidates are draws
of the prior: inside its support, whatever its shape. Distances are those of whitened z.

The energy distance also gives weights to pairs from any design (`design_weights`): those that bring the weighted pairs closest
to the target prior, shrunk to equal ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fmcpe._checks import as_theta
from fmcpe._options import is_whole
from fmcpe._random import seeded
from fmcpe.energy import Distances
from fmcpe.stacking import stack_weights

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


def suggest(posterior: CorrectedPosterior, n: int, *, seed: int = 0) -> Tensor:
    """Parameters to measure next, given the pairs of a posterior; the most useful first.

    Suggested pairs are not draws of the prior. For few of them beside many draws this is of no matter; otherwise pass
    ``fit(..., weights=design_weights(posterior, theta))``, with θ of all pairs.

    Args:
        posterior: Fitted with the default recipe, or with a `Stack`; also one from `fmcpe.load`.
        n: Number of suggestions.
        seed: Of the candidates.

    Returns:
        Physical θ inside the support, (n, p).
    """
    if not is_whole(n):
        raise ValueError(f"Expected n to be a whole number of at least 1, got {n!r}. Try suggest(posterior, 10).")
    if posterior.held_out is None:
        raise ValueError(
            f"Expected a posterior that keeps its pairs, got one of {posterior.method} that does not. Fit it with "
            'FMCPE(..., recipe="default").'
        )
    space, shared = posterior.space, posterior.shared
    device = shared.pool.device
    with seeded(seed), torch.no_grad():
        size = torch.Size((max(2000, 4 * int(n)),))
        theta = shared.target_prior.sample(size).to(device, torch.float32)
        z = space.to_z_safely(theta)
    white = _whitening(shared.pool)
    taken = space.to_z_safely(posterior.held_out.theta.to(device))
    return theta[support_points(z @ white, taken @ white, int(n))]


def support_points(candidates: Tensor, taken: Tensor, n: int, sweeps: int = 10) -> Tensor:
    """Rows of `candidates` that complete other points to a sample of the candidates' distribution.

    Greedy, then exchanged one by one until nothing changes, then ordered greedily.

    Args:
        candidates: Draws of the distribution, (M, p).
        taken: Points that are there already, (N, p).
        n: Number of rows.
        sweeps: Exchanges of each row, at most.

    Returns:
        Row numbers, (n,), the most useful first.
    """
    between = torch.cdist(candidates, candidates)
    outwards = between.mean(1)
    near = torch.cdist(candidates, taken).sum(1)

    def greedy(allowed: Tensor) -> list[int]:
        chosen, cost, sums = list[int](), torch.where(allowed, outwards, torch.inf), near
        for k in range(n):
            chosen.append(int((cost - sums / (len(taken) + k + 1)).argmin()))
            cost[chosen[-1]], sums = torch.inf, sums + between[chosen[-1]]
        return chosen

    chosen = greedy(torch.ones(len(candidates), dtype=torch.bool, device=between.device))
    sums = near + between[chosen].sum(0)
    for _ in range(sweeps):
        before = list(chosen)
        for i in range(n):
            sums = sums - between[chosen[i]]
            cost = outwards - sums / (len(taken) + n)
            cost[chosen[:i] + chosen[i + 1 :]] = torch.inf
            chosen[i] = int(cost.argmin())
            sums = sums + between[chosen[i]]
        if chosen == before:
            break
    last = torch.zeros(len(candidates), dtype=torch.bool, device=between.device)
    last[chosen] = True
    return torch.tensor(greedy(last), device=between.device)


def design_weights(posterior: CorrectedPosterior, theta: Any, *, pseudo_count: float = 0.05) -> Tensor:
    """Weights of pairs for ``fit(weights=...)``, where θ was chosen rather than drawn from the target prior.

    They minimise the energy distance between the weighted θ and the target prior, as the density ratio of prior and design does
    for many pairs, and need no density of the design.

    Args:
        posterior: Any posterior of the same problem, for its target prior.
        theta: Physical θ of all pairs, (N, p).
        pseudo_count: Dirichlet pseudo-count, which shrinks them to equal weights.

    Returns:
        (N,), positive, of mean one.
    """
    pool, white = posterior.shared.pool, _whitening(posterior.shared.pool)
    z = posterior.space.to_z_safely(as_theta(theta, posterior.space.dim).to(pool.device)) @ white
    outwards, between = torch.cdist(z, pool @ white).mean(1), torch.cdist(z, z)
    distances = Distances(outwards[:, None].cpu(), between[..., None].cpu())
    return len(z) * stack_weights(distances, torch.zeros(len(z)), pseudo_count, len(z))


def _whitening(pool: Tensor) -> Tensor:
    """Matrix W (p, p) such that draws z W of the prior have unit covariance."""
    covariance = torch.cov(pool.double().T).reshape(pool.shape[1], pool.shape[1])
    return torch.linalg.inv(torch.linalg.cholesky(covariance)).T.to(pool)
