r"""Flow matching from a warm start: cross-fitted members of \( u_\Theta \).

Member k learns from the pairs outside fold k, each many times over with its own left-out draws of z_0, its own time and no
simulation: all that is random was drawn before, in one batch. The velocity starts at zero, so that an untrained flow
changes nothing, and all members stop where their left-out losses are lowest on average.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fmcpe.flow import matching_loss
from fmcpe.networks import VelocityField
from fmcpe.ode import Solver
from fmcpe.recipe import Recipe
from fmcpe.warm import draw_through

_LOOKS = 10


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
    looks = []
    for k in range(int(folds.max()) + 1):
        outside, inside = (folds != k).nonzero()[:, 0], (folds == k).nonzero()[:, 0]
        looks.append(_train(z0, z1, features, outside, inside, recipe))
    # losses of a fold, summed over its pairs, by look
    totals = torch.tensor([[loss for loss, _ in member] for member in looks]).sum(0)
    best = int(totals.argmin())
    members = [member[best][1] for member in looks]
    carried, solver = torch.empty_like(z0), Solver(recipe.solver, recipe.steps)
    for k, u in enumerate(members):
        inside = (folds == k).nonzero()[:, 0]
        rows = features[inside].repeat_interleave(z0.shape[1], dim=0)
        with torch.no_grad():
            carried[inside] = draw_through([u], z0[inside].flatten(0, 1), rows, solver).unflatten(
                0, z0[inside].shape[:2]
            )
    return members, carried


def _train(
    z0: Tensor, z1: Tensor, features: Tensor, outside: Tensor, inside: Tensor, recipe: Recipe
) -> list[tuple[float, VelocityField]]:
    """One member: its loss on the pairs inside its fold, and a copy of it, at every look."""
    u = VelocityField(z1.shape[1], nn.Identity(), features.shape[1], recipe.width(len(z1)), recipe.blocks).to(z1.device)
    nn.init.zeros_(u.last.weight)
    nn.init.zeros_(u.last.bias)
    optimiser = torch.optim.Adam(u.parameters(), lr=recipe.learning_rate, fused=True)
    seen = []
    for step in range(recipe.epochs + 1):
        if step % max(1, recipe.epochs // _LOOKS) == 0:
            seen.append((_held_out_loss(u, z0[inside], z1[inside], features[inside]), copy.deepcopy(u)))
        rows = outside[torch.randint(len(outside), (recipe.batch_size,), device=z1.device)]
        draw = torch.randint(z0.shape[1], (recipe.batch_size,), device=z1.device)
        loss = matching_loss(u, z0[rows, draw], z1[rows], u.embed(features[rows])).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(u.parameters(), recipe.clip)
        optimiser.step()
    return seen


@torch.no_grad()
def _held_out_loss(u: VelocityField, z0: Tensor, z1: Tensor, features: Tensor) -> float:
    """The matching loss summed over pairs, with times on a grid: the same for every look."""
    draws = z0.shape[1]
    t = ((torch.arange(draws, device=z0.device) + 0.5) / draws).repeat(z0.shape[0])[:, None]
    start, end = z0.flatten(0, 1), z1.repeat_interleave(draws, dim=0)
    context = u.embed(features).repeat_interleave(draws, dim=0)
    velocity = u(t, (1 - t) * start + t * end, context)
    return float((velocity - (end - start)).square().sum(-1).mean() * z0.shape[0])
