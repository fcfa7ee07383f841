r"""Flow matching from a warm start: cross-fitted members of \( u_\Theta \).

Member k learns from the pairs outside fold k, each many times over with its own left-out draws of z_0, its own time and no
simulation: all that is random was drawn before, in one batch. The velocity starts at zero, so that an untrained flow
changes nothing, and all members stop where their left-out losses are lowest on average.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fmcpe.flow import matching_loss
from fmcpe.networks import VelocityField
from fmcpe.ode import Solver
from fmcpe.recipe import Recipe
from fmcpe.stacked import Stacked
from fmcpe.warm import draw_through

_LOOKS, _PATIENCE = 10, 2
"""Looks at the left-out loss while the flows train, and how many in a row may find nothing better before it ends."""


def refine(
    z0: Tensor, z1: Tensor, features: Tensor, folds: Tensor, recipe: Recipe
) -> tuple[list[VelocityField], Tensor]:
    """Train a member for each fold.

    Args:
        z0: Left-out draws of the warm start, (N, S, p).
        z1: True parameters, (N, p).
        features: What describes y, (N, f).
        folds: The fold of each pair, (N,).
        recipe: Hyper-parameters.

    Returns:
        The members, and z0 carried by the member that has not seen the pair, (N, S, p).
    """
    members = _train(z0, z1, features, folds, recipe)
    carried, solver = torch.empty_like(z0), Solver(recipe.solver, recipe.steps)
    for k, u in enumerate(members):
        inside = (folds == k).nonzero()[:, 0]
        rows = features[inside].repeat_interleave(z0.shape[1], dim=0)
        with torch.no_grad():
            carried[inside] = draw_through([u], z0[inside].flatten(0, 1), rows, solver).unflatten(
                0, z0[inside].shape[:2]
            )
    return members, carried


def _train(z0: Tensor, z1: Tensor, features: Tensor, folds: Tensor, recipe: Recipe) -> list[VelocityField]:
    """All members together, as they are where they are best on average over the pairs that each has not seen."""
    number, size = int(folds.max()) + 1, (recipe.batch_size,)
    outside = [(folds != k).nonzero()[:, 0] for k in range(number)]
    untrained = [_untrained(z1.shape[1], features.shape[1], recipe).to(z1.device) for _ in outside]
    stacked = Stacked(untrained, natively=True)
    optimiser = torch.optim.Adam(stacked.weights.values(), lr=recipe.learning_rate, fused=True)
    lowest, best, waited = math.inf, stacked.snapshot(), 0
    for step in range(recipe.epochs + 1):
        if step % max(1, recipe.epochs // _LOOKS) == 0:
            loss, waited = _held_out_loss(stacked, z0, z1, features, folds), waited + 1
            if loss < lowest:
                lowest, best, waited = loss, stacked.snapshot(), 0
            if waited >= _PATIENCE:
                break
        rows = torch.stack([index[torch.randint(len(index), size, device=z1.device)] for index in outside])
        draw = torch.randint(z0.shape[1], rows.shape, device=z1.device)
        optimiser.zero_grad()
        stacked(z0[rows, draw], z1[rows], features[rows]).mean(1).sum().backward()
        stacked.clip(recipe.clip)
        optimiser.step()
    return [_velocity(module) for module in stacked.members(best)]


class _Matching(nn.Module):
    """The flow-matching loss of a velocity field as its forward pass: z_0, z_1 (B, p), features (B, f), t (B, 1) -> (B,)."""

    def __init__(self, u: VelocityField) -> None:
        super().__init__()
        self.u = u

    def forward(self, z0: Tensor, z1: Tensor, features: Tensor, t: Tensor | None = None) -> Tensor:
        return matching_loss(self.u, z0, z1, self.u.embed(features), t)


def _untrained(dim: int, features: int, recipe: Recipe) -> _Matching:
    u = VelocityField(dim, nn.Identity(), features, recipe.widths)
    nn.init.zeros_(u.last.weight)
    nn.init.zeros_(u.last.bias)
    return _Matching(u)


def _velocity(module: nn.Module) -> VelocityField:
    assert isinstance(module, _Matching)
    return module.u


@torch.no_grad()
def _held_out_loss(stacked: Stacked, z0: Tensor, z1: Tensor, features: Tensor, folds: Tensor) -> float:
    """The matching loss on pairs that each member has not seen, with times on a grid: the same at every look."""
    draws, total = z0.shape[1], 0.0
    for k in range(stacked.number):
        rows = (folds == k).nonzero()[:, 0]
        t = ((torch.arange(draws, device=z0.device) + 0.5) / draws).repeat(len(rows))[:, None]
        again = rows.repeat_interleave(draws)
        total += float(stacked.alone(k, z0[rows].flatten(0, 1), z1[again], features[again], t).sum()) / draws
    return total
