"""The input of a recipe: pairs, base posterior, simulations and prior; and the splits of the pairs.

A `Problem` holds nothing that was computed from several pairs together: simulations at θ_j, and the base posterior's summary of
y_j and of these simulations, depend on pair j alone. A candidate computes everything else from its own rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._progress import Progress
from fmcpe._random import derive, seeded
from fmcpe._simulator import CheckedSimulator
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.spaces import ParameterSpace


@dataclass(frozen=True)
class Problem:
    """Frozen inputs of a fit.

    Args:
        base: The base posterior on raw data.
        space: Physical θ <-> z, standardised by the prior.
        target_prior: The distribution of θ in use.
        theta: Physical parameters of the pairs, (N, p).
        z: Their unconstrained, standardised values, (N, p).
        y: Real observations, (N, ...).
        seen: The base posterior's summary of y, (N, ...); y itself where it has none.
        x: Summaries of simulations at θ_j, (N, S, ...); None without simulations.
        x_mean: Mean of the raw simulations at θ_j, (N, ...).
        bank_theta: Parameters of simulations from the prior, (M, p); None without a simulator.
        bank_x: These simulations, raw, (M, ...).
        bank_seen: The base posterior's summaries of these simulations.
        pool: Draws of the target prior, in z, (L, p).
        simulator: The checked simulator, θ (N, p) -> x (N, ...), for candidates that need fresh simulations.
        rows: Row numbers of these pairs in the user's data, (N,), if some were dropped because the simulator fails at their θ.
        unlabelled: The base posterior's summaries of real observations without θ, (M, ...), without those of the pairs; None
            if there are none.
    """

    base: BasePosterior
    space: ParameterSpace
    target_prior: Distribution
    theta: Tensor
    z: Tensor
    y: Tensor
    seen: Tensor
    x: Tensor | None
    x_mean: Tensor | None
    bank_theta: Tensor | None
    bank_x: Tensor | None
    bank_seen: Tensor | None
    pool: Tensor
    simulator: Callable[[Tensor], Tensor] | None = None
    rows: Tensor | None = None
    unlabelled: Tensor | None = None

    @property
    def summarised(self) -> BasePosterior:
        """The base posterior as a function of its own summary of the data."""
        return self.base.summarised()

    def __len__(self) -> int:
        return len(self.theta)


def build_problem(
    base: BasePosterior,
    simulator: CheckedSimulator | None,
    target_prior: Distribution,
    theta: Tensor,
    y: Tensor,
    x: Tensor | None,
    *,
    unlabelled: Tensor | None = None,
    given: tuple[Tensor, Tensor] | None = None,
    bank: int = 2000,
    pool: int = 4096,
    simulations: int = 16,
    show_progress_bars: bool = False,
) -> Problem:
    """Run the simulations that candidates need, with torch's global generator.

    There are `bank` simulations from the prior, without those that failed, or as many of the `given` ones, θ and x; and
    `simulations` at each θ_j, or the paired `x`, (N, ...). `pool` is a number of draws of the target prior. `unlabelled` are
    real observations without θ, (M, ...), without those of the pairs. Other arguments are those of `Problem`.
    """
    space, summarise = ParameterSpace.of(base.prior).to(y.device), base.summarised().summarise
    seen_x, x_mean = (None, None) if x is None else (summarise(x)[:, None], x)
    bank_theta = bank_x = kept = None
    at_pairs = simulations * len(theta) if simulator is not None and x is None else 0
    with Progress((bank if given is None else 0) + at_pairs, "simulating", show_progress_bars) as progress:
        if given is not None:
            rows = torch.randperm(len(given[0]))[:bank]
            bank_theta, bank_x = (each[rows].to(y.device) for each in given)
        elif simulator is not None:
            bank_theta = base.prior.sample((bank,)).to(y.device, torch.float32)
            with progress.part(bank):
                parts = [simulator.attempt(part, bank) for part in bank_theta.split(2000)]
            ok = torch.cat([part[1] for part in parts])
            bank_theta, bank_x = bank_theta[ok], torch.cat([part[0] for part in parts])[ok]
        if at_pairs:
            assert simulator is not None
            with progress.part(at_pairs):
                seen_x, x_mean, ok = _simulate_at(theta, simulator, summarise, simulations)
            if not bool(ok.all()):
                kept = ok.nonzero()[:, 0]
                theta, y, seen_x, x_mean = theta[kept], y[kept], seen_x[kept], x_mean[kept]
    draws = space.to_z_safely(target_prior.sample((pool,)).to(y.device, torch.float32))
    return Problem(
        base, space, target_prior, theta, space.to_z_safely(theta), y, summarise(y), seen_x, x_mean, bank_theta, bank_x,
        None if bank_x is None else summarise(bank_x), draws, simulator, kept,
        None if unlabelled is None else summarise(unlabelled),
    )  # fmt: skip


def _simulate_at(
    theta: Tensor,
    simulator: CheckedSimulator,
    summarise: Callable[[Tensor], Tensor],
    number: int,
    rows: int = 2000,
) -> tuple[Tensor, Tensor, Tensor]:
    """Summaries of simulations at each θ, (N, S, ...), the mean of the raw ones, (N, ...), and whether they succeeded, (N,).

    `rows` raw ones are held at a time.
    """
    summaries, means, succeeded = [], [], []
    for part in theta.split(max(1, rows // number)):
        raw, ok = simulator.insist(part.repeat_interleave(number, dim=0))
        summaries.append(summarise(raw).unflatten(0, (len(part), number)))
        means.append(raw.unflatten(0, (len(part), number)).mean(1))
        succeeded.append(ok.unflatten(0, (len(part), number)).all(1))
    return torch.cat(summaries), torch.cat(means), torch.cat(succeeded)


def groups_of(theta: Tensor) -> tuple[Tensor, int]:
    """Repeated measurements at one θ form a group: the group of each row, (N,), and the number of groups."""
    groups = torch.unique(theta, dim=0, return_inverse=True)[1]
    return groups, int(groups.max()) + 1


def one_of_each(theta: Tensor, seed: int | None) -> Tensor:
    """Rows of pairs with different θ; of several with the same θ, one at random."""
    with seeded(derive(seed, "one of each")):
        order = torch.randperm(len(theta), device=theta.device)
    groups = groups_of(theta)[0][order].cpu().numpy()
    first = np.unique(groups, return_index=True)[1]
    return order[torch.as_tensor(first, device=theta.device)]


def split_pairs(theta: Tensor, folds: int, repeats: int) -> Tensor:
    """Random K-fold splits: the fold of each pair in each repeat, (R, N).

    Pairs with the same θ stay together, and K is at most the number of distinct θ.
    """
    groups, distinct = groups_of(theta)
    number = min(folds, distinct)
    return torch.stack([(torch.randperm(distinct, device=theta.device) % number)[groups] for _ in range(repeats)])


def without_pairs(unlabelled: Tensor, y: Tensor) -> Tensor:
    """The rows of `unlabelled` (M, ...) that are no row of y (N, ...), number by number."""
    # by bytes; -0.0 + 0.0 has those of 0.0
    pairs, rows = ((each.flatten(1) + 0.0).cpu().contiguous().numpy() for each in (y, unlabelled))
    known = {row.tobytes() for row in pairs}
    return unlabelled[torch.tensor([row.tobytes() not in known for row in rows], dtype=torch.bool)]


def fingerprints(theta: Tensor, y: Tensor) -> tuple[int, ...]:
    """A checksum of each pair, by which it is recognised later."""
    rows = torch.cat([theta.flatten(1), y.flatten(1)], dim=1).cpu().contiguous().numpy()
    return tuple(zlib.crc32(row.tobytes()) for row in rows)
