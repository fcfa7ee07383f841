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

from fmcpe._checks import as_theta, is_whole
from fmcpe._random import seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.energy import Distances
from fmcpe.mixture import Mixture
from fmcpe.stacking import stack_weights

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


def suggest(
    posterior: CorrectedPosterior, n: int, *, by: str = "space", simulator: Any = None, seed: int = 0
) -> Tensor:
    """Parameters to measure next, given the pairs of a posterior; the most useful first.

    Suggested pairs are not draws of the prior. For few of them beside many draws this is of no matter; otherwise pass
    ``fit(..., weights=design_weights(posterior, theta))``, with θ of all pairs.

    Args:
        posterior: Fitted with the default recipe, or with a `Stack`; also one from `fmcpe.load`.
        n: Number of suggestions.
        by: ``"space"``: space-filling over the target prior. ``"disagreement"``: the same over the prior times the
            disagreement of the stack's members at simulated data.
        simulator: For ``by="disagreement"``: θ (N, p) -> x (N, ...).
        seed: Of the candidates, and of simulations at them.

    Returns:
        Physical θ inside the support, (n, p).
    """
    if not is_whole(n):
        raise ValueError(f"Expected n to be a whole number of at least 1, got {n!r}. Try suggest(posterior, 10).")
    if by not in ("space", "disagreement", "maximin"):
        raise ValueError(f'Expected by="space" or by="disagreement", got by={by!r}. Leave it out.')
    if posterior.held_out is None:
        raise ValueError(
            f"Expected a posterior that keeps its pairs, got one of {posterior.method} that does not. Fit it with "
            'FMCPE(..., recipe="default").'
        )
    space, shared = posterior.space, posterior.shared
    device = shared.pool.device
    with seeded(seed), torch.no_grad():
        size = torch.Size((max(2000 if by != "disagreement" else 500, 4 * int(n)),))
        theta = shared.target_prior.sample(size).to(device, torch.float32)
        z = space.to_z_safely(theta)
        tilt = disagreement(posterior, theta, simulator) if by == "disagreement" else None
    white = _whitening(shared.pool)
    taken = space.to_z_safely(posterior.held_out.theta.to(device))
    if by == "maximin":
        c, t = z @ white, taken @ white
        far, rows = torch.cdist(c, t).min(1).values, []
        for _ in range(n):
            rows.append(int(far.argmax()))
            far = torch.minimum(far, torch.cdist(c, c[rows[-1]][None])[:, 0])
        return theta[rows]
    return theta[support_points(z @ white, taken @ white, int(n), tilt)]


def support_points(candidates: Tensor, taken: Tensor, n: int, tilt: Tensor | None = None, sweeps: int = 10) -> Tensor:
    """Rows of `candidates` that complete other points to a sample of the candidates' distribution.

    Greedy, then exchanged one by one until nothing changes, then ordered greedily.

    Args:
        candidates: Draws of the distribution, (M, p).
        taken: Points that are there already, (N, p).
        n: Number of rows.
        tilt: Weight of each candidate in the distribution, (M,); equal if None.
        sweeps: Exchanges of each row, at most.

    Returns:
        Row numbers, (n,), the most useful first.
    """
    between = torch.cdist(candidates, candidates)
    outwards = between.mean(1) if tilt is None else between @ (tilt / tilt.sum())
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


def disagreement(posterior: CorrectedPosterior, theta: Tensor, simulator: Any, draws: int = 32) -> Tensor:
    """Weighted energy distance between members of the mixture, at data simulated at θ (M, p): (M,)."""
    if simulator is None:
        raise ValueError(
            'Expected a simulator for by="disagreement", got none. Pass simulator=, or leave by out for by="space".'
        )
    inner = posterior.inner
    while not isinstance(inner, Mixture):
        inner = inner.inner  # type: ignore[assignment]
    x = CheckedSimulator(simulator, posterior.observation_shape)(theta)
    members = [(m, w) for m, w in zip(inner.members, inner.weights.tolist(), strict=True) if w > 0]
    parts = [member.sample(x, draws) for member, _ in members]
    within = [torch.cdist(z, z).sum((1, 2)) / (draws * (draws - 1)) for z in parts]
    out = theta.new_zeros(len(theta))
    for k, (_, one) in enumerate(members):
        for j, (_, other) in enumerate(members[:k]):
            out += one * other * (2 * torch.cdist(parts[k], parts[j]).mean((1, 2)) - within[k] - within[j])
    return out.clamp_min(0.0)


def _whitening(pool: Tensor) -> Tensor:
    """Matrix W (p, p) such that draws z W of the prior have unit covariance."""
    covariance = torch.cov(pool.double().T).reshape(pool.shape[1], pool.shape[1])
    return torch.linalg.inv(torch.linalg.cholesky(covariance)).T.to(pool)
