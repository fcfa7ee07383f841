"""What the base posterior sees of y, moved by the pairs: fine-tuned members of the base posterior, cross-fitted.

Each member is a copy of the base posterior's network, embedding included, trained on the pairs outside its fold and, so that
nothing is forgotten, on (roughened) simulations beside them. All members take their steps together, as one batch of
networks, and stop together, where the pairs that each has not seen are most likely on average over all of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from fmcpe.adapters import DensityProposal, EnsembleProposal
from fmcpe.proposal import Proposal
from fmcpe.roughen import distort, draw_levels, roughness_of
from fmcpe.stacked import Stacked, Weights

LEVEL = 0.5
"""How rough real data are taken to be, by a base posterior that knows of roughness."""

_LIGHTLY = 0.1
_LEARNING_RATE = 3e-3
_CLIP = 5.0
_LOOKS = 20
_CENTRAL = 0.8
_HALF_BELIEVED = 100
"""Pairs with which half of the miscalibration that is found is taken to be real."""
_ASKED = 200
"""Observations that members are compared on."""


class _Loss(nn.Module):
    """The estimator's loss as its forward pass: θ (B, p), x (B, ...) and how rough x is (B, 1) -> (B,)."""

    def __init__(self, estimator: nn.Module) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, theta: Tensor, x: Tensor, levels: Tensor) -> Tensor:
        aware = roughness_of(self.estimator)
        with nullcontext() if aware is None else aware.at(levels):
            loss: Tensor = cast(Any, self.estimator).loss(theta, x)
        return loss


def stack(estimator: nn.Module, number: int) -> Stacked:
    """So many copies of a density estimator, told that their data are `LEVEL` rough wherever nobody says otherwise."""
    # statistics of normalisation layers stay as they are, and nothing is dropped at random
    estimator = copy.deepcopy(estimator).eval()
    aware = roughness_of(estimator)
    if aware is not None:
        aware.level.fill_(LEVEL)
    return Stacked([_Loss(estimator)] * number)


class TunedProposal(EnsembleProposal):
    """Fine-tuned copies of one base posterior, a draw from any of them as likely.

    It is a function of what each copy sees of the data, and, last, of what the base posterior saw of them: (K + 1, features).
    The networks that see are so asked once for each observation, not once for each draw.

    Args:
        members: The copies.
        base: What they are copies of.
    """

    def __init__(self, members: Sequence[DensityProposal], base: DensityProposal) -> None:
        self.base = base.summarised()
        super().__init__([member.summarised() for member in members], torch.ones(len(members)))
        assert self.base.x_shape is not None
        self.x_shape = torch.Size((len(members) + 1, *self.base.x_shape))

    @property
    def raw_shape(self) -> torch.Size | None:
        return self.base.raw_shape

    def summarise(self, data: Tensor) -> Tensor:
        return torch.stack([each.summarise(data) for each in (*self.members, self.base)], dim=1)

    def _share(self, x: Tensor, index: int) -> Tensor:
        return x[:, index]

    def to(self, device: str | torch.device) -> Proposal:
        self.base.to(device)
        return super().to(device)


def can_be_tuned(proposal: Proposal) -> bool:
    """Whether there is a trained summary of the data to move: not for vectors that go straight into a flow."""
    return isinstance(proposal, DensityProposal) and proposal.embedding is not None


def tune(
    proposal: DensityProposal,
    theta: Tensor,
    y: Tensor,
    folds: Tensor,
    replay: tuple[Tensor, Tensor] | None,
    show_progress_bars: bool,
    effort: float = 1.0,
) -> TunedProposal:
    """Fine-tune a member for each fold on the pairs outside it.

    Args:
        proposal: The base posterior, on raw data.
        theta: Physical parameters of the pairs, (N, p).
        y: Real observations, (N, ...).
        folds: The fold of each pair, (N,), from 0 to K - 1.
        replay: Simulations (θ, x) to remember.
        show_progress_bars: Whether to show progress once it takes more than two seconds.
        effort: Factor of the number of gradient steps.

    Returns:
        All members as one posterior; member k has not seen fold k.
    """
    number, rough = int(folds.max()) + 1, roughness_of(proposal.estimator) is not None
    members = stack(proposal.estimator, number)
    outside = [(folds != k).nonzero()[:, 0] for k in range(number)]
    inside = [(folds == k).nonzero()[:, 0] for k in range(number)]
    held_out = max(map(len, inside))
    steps, batch, replayed = _budget(len(theta), y[0].numel())
    steps = max(4, round(effort * steps))  # a cycle of the learning rate has a few
    scale = float(y.std() if replay is None else replay[1].std())

    def draw_batch() -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.stack([index[torch.randint(len(index), (batch,))] for index in outside])
        thetas, data = theta[rows], y[rows]
        levels = torch.full((number, batch, 1), LEVEL, device=y.device)
        if rough:
            lightly = _LIGHTLY * torch.rand(number * batch, 1, device=y.device)
            data = distort(data.flatten(0, 1), lightly, scale).unflatten(0, (number, batch))
        if replay is None:
            return thetas, data, levels
        rows = torch.randint(len(replay[0]), (number, replayed), device=y.device)
        old, old_levels = replay[1][rows], draw_levels(number * replayed, y.device)
        if rough:
            old = distort(old.flatten(0, 1), old_levels, scale).unflatten(0, (number, replayed))
        old_levels = old_levels.unflatten(0, (number, replayed))
        return (
            torch.cat([thetas, replay[0][rows]], dim=1),
            torch.cat([data, old], dim=1),
            torch.cat([levels, old_levels], dim=1),
        )

    # folds differ by one pair at most: the shorter ones are filled up with a row that does not count
    rows = torch.stack([torch.cat([index, index[:1].expand(held_out - len(index))]) for index in inside])
    counts = torch.stack([torch.arange(held_out, device=y.device) < len(index) for index in inside])
    levels = torch.full((number, held_out, 1), LEVEL, device=y.device)

    @torch.no_grad()
    def left_out_loss() -> float:
        return float(members(theta[rows], y[rows], levels)[counts].mean())

    best = _descend(members, draw_batch, left_out_loss, steps, show_progress_bars)
    tuned: list[DensityProposal] = []
    for member in members.members(best):
        posterior = copy.deepcopy(proposal.posterior)  # of sbi's posteriors, a shallow copy shares the network
        posterior.posterior_estimator = cast(_Loss, member).estimator
        tuned.append(DensityProposal(posterior, proposal.prior))
    together = TunedProposal(tuned, proposal)
    _calibrate([m for m in together.members if isinstance(m, DensityProposal) and m.has_latent], theta, y, inside)
    return together


def _calibrate(members: Sequence[DensityProposal], theta: Tensor, y: Tensor, inside: Sequence[Tensor]) -> None:
    r"""Widen or narrow all members so that together they are as sure as they should be.

    In units of its latent numbers a member's spread is 1, and the left-out truth lies at a spread of e. The mean of all members
    is closer to the truth by what they disagree, b, while their mixture is wider by it: \( (e^2 - b) / (1 + b) \) is the
    factor of the variance. It is believed the more, the more pairs there are.
    """
    if not members:
        return
    left_out = [m.latent(theta[rows], m.summarise(y[rows])) for m, rows in zip(members, inside, strict=True)]
    wanted = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor((1 + _CENTRAL) / 2))
    spread = torch.cat(left_out).abs().nan_to_num(nan=1.0).quantile(_CENTRAL, dim=0) / wanted.to(y)
    apart = _disagreement(members, y[torch.randperm(len(y), device=y.device)[:_ASKED]])
    factor = ((spread.square() - apart).clamp_min(0.0) / (1 + apart)).sqrt().clamp(0.5, 2.0)
    for member in members:
        member.widen(1 + len(theta) / (len(theta) + _HALF_BELIEVED) * (factor - 1))


def _disagreement(members: Sequence[DensityProposal], y: Tensor, copies: int = 32) -> Tensor:
    """Variance between the means of members over the variance within them, for each latent number: (p,)."""
    first, means, within = members[0].summarise(y).repeat_interleave(copies, dim=0), [], []
    for member in members:
        theta = member.sample(member.summarise(y).repeat_interleave(copies, dim=0))
        latent = members[0].latent(theta, first).unflatten(0, (len(y), copies))
        means.append(latent.mean(1))
        within.append(latent.var(1))
    variance = torch.stack(within).mean(0)
    between = torch.stack(means).var(0) - variance / copies
    return (between / variance).nan_to_num(nan=0.0).median(0).values.clamp_min(0.0)


def _descend(
    members: Stacked,
    draw_batch: Callable[[], tuple[Tensor, Tensor, Tensor]],
    left_out_loss: Callable[[], float],
    steps: int,
    show_progress_bars: bool,
) -> Weights:
    """One cycle of the learning rate; the weights that are best on left-out pairs come back."""
    weights = list(members.weights.values())
    optimiser = torch.optim.Adam(weights, lr=_LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _LEARNING_RATE, total_steps=steps, pct_start=0.1)
    lowest, best = left_out_loss(), members.snapshot()
    bar = tqdm(range(steps), desc="moving the summary", delay=2, disable=not show_progress_bars, leave=False)
    for step in bar:
        optimiser.zero_grad()
        members(*draw_batch()).mean(1).sum().backward()
        members.clip(_CLIP)
        optimiser.step()
        schedule.step()
        if (step + 1) % max(1, steps // _LOOKS) == 0:
            validated = left_out_loss()
            if validated < lowest:
                lowest, best = validated, members.snapshot()
    return best


def _budget(pairs: int, numbers: int) -> tuple[int, int, int]:
    """Gradient steps, and pairs and simulations per step: more pairs bear more training; images cost more per step."""
    steps = round(70 + 130 * math.log10(pairs))
    if numbers > 1000:
        return steps // 2, 24, 24
    return (steps, 64, 128) if pairs < 500 else (steps, 128, 64)
