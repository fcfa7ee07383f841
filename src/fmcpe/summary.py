"""What the base posterior sees of y, moved by the pairs: fine-tuned members of the base posterior, cross-fitted.

Each member is a copy of the base posterior's network, embedding included, trained on the pairs outside its fold and, so that
nothing is forgotten, on (roughened) simulations beside them. All members take their steps together, as one batch of
networks, and stop together, where the pairs that each has not seen are most likely on average over all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from fmcpe.adapters import DensityProposal, EnsembleProposal
from fmcpe.calibrate import calibrate
from fmcpe.members import stack, unstacked
from fmcpe.proposal import Proposal
from fmcpe.roughen import Distortion, distort, draw_levels, roughness_of
from fmcpe.shift import Shift
from fmcpe.stacked import Stacked, Weights


class Manner(NamedTuple):
    """How a base posterior is fine-tuned."""

    level: float
    """How rough real data are taken to be, by a base posterior that knows of roughness."""
    rate: float
    """Learning rate, at its highest, with few and with many pairs."""
    rate_of_many: float
    half_believed: float
    """Pairs with which half of the miscalibration that is found is taken to be real."""
    steps: int
    """Gradient steps, unless more pairs bear more."""
    replays: bool
    """Whether simulations are replayed, so that nothing is forgotten."""
    matching: float
    """How much it counts that the summary of y is that of simulations at the same θ, in units of the latter's variance."""


BOLDLY = Manner(
    level=0.5,
    rate=5e-3,
    rate_of_many=2e-2,
    half_believed=20.0,
    steps=80,
    replays=True,
    matching=30.0,
)
"""Real data are unlike simulations: start from the posterior that knows rough data, and go far."""
GENTLY = Manner(
    level=0.0,
    rate=5e-4,
    rate_of_many=1e-3,
    half_believed=0.0,
    steps=100,
    replays=False,
    matching=0.0,
)
"""They are like simulations already, for they were shifted: start from the sharp posterior, and stay near it."""

_CLIP = 5.0
_LOOKS = 10
_MANY_PAIRS, _MANY_NUMBERS = 100, 1000
_IMITATED = 48
_STEPS_OF_FEW, _STEPS_PER_PAIR, _MOST_STEPS = 200, 0.4, 500


class TunedProposal(EnsembleProposal):
    """Adapted copies of one base posterior, fine-tuned or with their data shifted, a draw from any of them as likely.

    It is a function of what each copy sees of the data, and, last, of what the base posterior saw of them: (K + 1, features).
    The networks that see are so asked once for each observation, not once for each draw.

    Args:
        members: The copies.
        base: What they are copies of.
        shift: What is done to the data before the copies see them.
    """

    def __init__(self, members: Sequence[DensityProposal], base: DensityProposal, shift: Shift | None = None) -> None:
        self.base, self.shift = base.summarised(), shift
        super().__init__([member.summarised() for member in members], torch.ones(len(members)))
        assert self.base.x_shape is not None
        self.x_shape = torch.Size((len(members) + 1, *self.base.x_shape))

    @property
    def raw_shape(self) -> torch.Size | None:
        return self.base.raw_shape

    @torch.no_grad()
    def summarise(self, data: Tensor) -> Tensor:
        seen = self.base.summarise(data)
        shifted = data if self.shift is None else self.shift(data, seen)
        return torch.stack([*(member.summarise(shifted) for member in self.members), seen], dim=1)

    def _share(self, x: Tensor, index: int) -> Tensor:
        return x[:, index]

    def to(self, device: str | torch.device) -> Proposal:
        self.base.to(device)
        if self.shift is not None:
            self.shift.to(device)
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
    shift: Shift | None = None,
    targets: Tensor | None = None,
    likely: Distortion | None = None,
) -> TunedProposal:
    """Fine-tune a member for each fold on the pairs outside it.

    Args:
        proposal: The base posterior, on raw data.
        theta: Physical parameters of the pairs, (N, p).
        y: Real observations, (N, ...), shifted already if they are to be.
        folds: The fold of each pair, (N,), from 0 to K - 1.
        replay: Simulations (θ, x) to remember.
        show_progress_bars: Whether to show progress once it takes more than two seconds.
        effort: Factor of the number of gradient steps.
        shift: What new observations go through before the members see them.
        targets: The mean summary of simulations at θ of each pair, (N, f), for the summary of its y to come close to.
        likely: Distortions that make simulations look like y, some for each pair (`fmcpe.likeness`).

    Returns:
        All members as one posterior; member k has not seen fold k.
    """
    number, rough = int(folds.max()) + 1, roughness_of(proposal.estimator) is not None
    manner = BOLDLY if shift is None else GENTLY
    # with few pairs there is more noise in this than help
    targets = targets if manner.matching and len(theta) >= _MANY_PAIRS else None
    unit = 1.0 if targets is None else max(float(targets.var(0).sum()), 1e-12)
    members = stack(proposal.estimator, number, manner.level, manner.matching / unit)
    outside = [(folds != k).nonzero()[:, 0] for k in range(number)]
    inside = [(folds == k).nonzero()[:, 0] for k in range(number)]
    held_out = max(map(len, inside))
    steps, batch, replayed = _budget(len(theta), y[0].numel(), manner)
    steps = max(4, round(effort * steps))  # a cycle of the learning rate has a few
    scale = float(y.std() if replay is None else replay[1].std())
    replay = replay if manner.replays else None
    imitated = 0 if likely is None or replay is None else imitations(len(theta), y[0].numel())

    def draw_batch() -> tuple[Tensor, ...]:
        rows = _picked(outside, batch)
        thetas, data = [theta[rows]], [y[rows]]
        levels = [torch.full((number, batch + imitated, 1), manner.level, device=y.device)]
        matched = () if targets is None else (targets[rows],)
        if replay is not None:
            again = torch.randint(len(replay[0]), (number, imitated + replayed), device=y.device)
            old_levels = draw_levels(number * replayed, y.device)
            like, old = replay[1][again].split([imitated, replayed], dim=1)
            if likely is not None and imitated:  # each member by pairs that it may see
                which = torch.randint(likely.noise.shape[1], (number * imitated,), device=y.device)
                like = likely.rows((_picked(outside, imitated).flatten(), which))(like.flatten(0, 1))
                data.append(like.unflatten(0, (number, imitated)))
            if rough:
                old = distort(old.flatten(0, 1), old_levels, scale).unflatten(0, (number, replayed))
            thetas.append(replay[0][again])
            data.append(old)
            levels.append(old_levels.unflatten(0, (number, replayed)))
        return torch.cat(thetas, dim=1), torch.cat(data, dim=1), torch.cat(levels, dim=1), *matched

    # folds differ by one pair at most: the shorter ones are filled up with a row that does not count
    rows = torch.stack([torch.cat([index, index[:1].expand(held_out - len(index))]) for index in inside])
    counts = torch.stack([torch.arange(held_out, device=y.device) < len(index) for index in inside])
    levels = torch.full((number, held_out, 1), manner.level, device=y.device)

    @torch.no_grad()
    def left_out_loss() -> float:
        return float(members(theta[rows], y[rows], levels)[counts].mean())

    rate = manner.rate if len(theta) < _MANY_PAIRS else manner.rate_of_many
    # imitations keep members from learning few pairs by heart, and of what these say early on of stopping, most is luck
    best = _descend(members, draw_batch, left_out_loss, steps, rate, show_progress_bars, patient=imitated > 0)
    tuned = [proposal.with_estimator(unstacked(member, proposal.estimator)) for member in members.members(best)]
    together = TunedProposal(tuned, proposal, shift)
    calibrate(together.members, theta, y, inside, manner.half_believed)
    return together


def shifted(proposal: DensityProposal, theta: Tensor, y: Tensor, shift: Shift) -> TunedProposal:
    """The base posterior itself, asked about shifted data, and as sure as it should be of them.

    Args:
        proposal: The base posterior, on raw data.
        theta: Physical parameters of the pairs, (N, p).
        y: Their observations, (N, ...), each shifted without having been seen.
        shift: What new observations go through.
    """
    alone = TunedProposal([proposal.with_estimator(copy.deepcopy(proposal.estimator))], proposal, shift)
    calibrate(alone.members, theta, y, [torch.arange(len(y), device=y.device)], GENTLY.half_believed)
    return alone


def _picked(rows: Sequence[Tensor], number: int) -> Tensor:
    """So many of each member's rows, at random, (K, number)."""
    return torch.stack([index[torch.randint(len(index), (number,))] for index in rows])


def _descend(
    members: Stacked,
    draw_batch: Callable[[], tuple[Tensor, ...]],
    left_out_loss: Callable[[], float],
    steps: int,
    rate: float,
    show_progress_bars: bool,
    patient: bool,
) -> Weights:
    """One cycle of the learning rate; weights come back that are best on left-out pairs, if `patient` in its second half."""
    weights = list(members.weights.values())
    optimiser = torch.optim.Adam(weights, lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=0.1)
    lowest, best = torch.inf if patient else left_out_loss(), members.snapshot()
    bar = tqdm(range(steps), desc="moving the summary", delay=2, disable=not show_progress_bars, leave=False)
    for step in bar:
        optimiser.zero_grad()
        members(*draw_batch()).mean(1).sum().backward()
        members.clip(_CLIP)
        optimiser.step()
        schedule.step()
        if (step + 1) % max(1, steps // _LOOKS) == 0 and (not patient or 2 * step >= steps):
            validated = left_out_loss()
            if validated < lowest:
                lowest, best = validated, members.snapshot()
    return best


def imitations(pairs: int, numbers: int) -> int:
    """How many imitations of real data a step learns from, of pairs with so many numbers: none where pairs are enough."""
    return _IMITATED if pairs < _MANY_PAIRS and numbers <= _MANY_NUMBERS else 0


def _budget(pairs: int, numbers: int, manner: Manner) -> tuple[int, int, int]:
    """Gradient steps, and pairs and simulations per step: more pairs bear more training; images cost more per step."""
    steps = min(_MOST_STEPS, max(manner.steps, round(_STEPS_PER_PAIR * pairs)))
    if numbers > _MANY_NUMBERS:
        return steps, 24, 24
    if pairs < _MANY_PAIRS:
        return _STEPS_OF_FEW, 16 if pairs < 30 else 32, 16
    return steps, 48 if pairs < 500 else 64, 8
