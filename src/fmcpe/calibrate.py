"""Members of the default recipe made as sure as they should be, by pairs that they have not seen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fmcpe.adapters import DensityProposal
from fmcpe.proposal import Proposal

_CENTRAL = 0.8
_FACTORS = 0.5, 4.0
_FURTHEST_APART = 2.0
_ASKED = 100
"""Observations that members are compared on."""


def calibrate(
    members: Sequence[Proposal], theta: Tensor, y: Tensor, inside: Sequence[Tensor], half_believed: float
) -> None:
    r"""Widen or narrow all members so that together they are as sure as they should be.

    In units of its latent numbers a member's spread is 1, and the left-out truth lies at a spread of e. The mean of all members
    is closer to the truth by what they disagree, b, while their mixture is wider by it: \( (e^2 - b) / (1 + b) \) is the
    factor of the variance. It is believed the more, the more pairs there are: half of it with `half_believed` of them.
    """
    able = [member for member in members if isinstance(member, DensityProposal) and member.has_latent]
    if len(able) < len(members):
        return
    left_out = [m.latent(theta[rows], m.summarise(y[rows])) for m, rows in zip(able, inside, strict=True)]
    wanted = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor((1 + _CENTRAL) / 2))
    spread = torch.cat(left_out).abs().nan_to_num(nan=1.0).quantile(_CENTRAL, dim=0) / wanted.to(y)
    apart = disagreement(able, y[torch.randperm(len(y), device=y.device)[:_ASKED]])
    factor = ((spread.square() - apart).clamp_min(0.0) / (1 + apart)).sqrt().clamp(*_FACTORS)
    for member in able:
        member.widen(1 + len(theta) / (len(theta) + half_believed) * (factor - 1))


def disagreement(members: Sequence[DensityProposal], y: Tensor, copies: int = 24) -> Tensor:
    """Variance between the means of members over the variance within them, for each latent number: (p,)."""
    if len(members) == 1:
        return y.new_zeros(())
    first, means, within = members[0].summarise(y).repeat_interleave(copies, dim=0), [], []
    for member in members:
        theta = member.sample(member.summarise(y).repeat_interleave(copies, dim=0))
        latent = members[0].latent(theta, first).unflatten(0, (len(y), copies))
        means.append(latent.mean(1))
        within.append(latent.var(1))
    variance = torch.stack(within).mean(0)
    between = torch.stack(means).var(0) - variance / copies
    # by chance, some are less than nothing apart: only on average is that impossible
    apart = (between / variance).nan_to_num(nan=0.0).clamp(-_FURTHEST_APART, _FURTHEST_APART)
    return apart.mean(0).clamp_min(0.0)
