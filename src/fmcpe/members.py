"""Copies of one density estimator that are trained together: their losses as one batch of networks.

What a member sees of data is asked of each embedding by itself, whatever it is; the flow on top of it, where it is one of
zuko's, is evaluated for all members at once, which halves the time of a step (`fmcpe.splines`).
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any, cast

import torch
from sbi.neural_nets.estimators import ZukoFlow
from torch import Tensor, nn

from fmcpe.roughen import roughness_of
from fmcpe.splines import natively
from fmcpe.stacked import Each, Stacked


def stack(estimator: nn.Module, number: int, level: float, matching: float = 0.0) -> Stacked:
    """So many copies of a density estimator, told that their data are so rough wherever nobody says otherwise.

    Args:
        estimator: The density estimator, an embedding and a flow.
        number: How many.
        level: How rough their data are.
        matching: Weight of the squared distance between what is seen of data and what should be.

    Returns:
        The loss of all copies, θ (K, B, p), x (K, B, ...), levels (K, B, 1) and targets (K, T, f), what should be seen of the
        first T rows, to (K, B).
    """
    # statistics of normalisation layers stay as they are, and nothing is dropped at random
    estimator = copy.deepcopy(estimator).eval()
    aware = roughness_of(estimator)
    if aware is not None:
        aware.level.fill_(level)
    net = natively(estimator.net) if isinstance(estimator, ZukoFlow) else None
    if net is None:
        return Stacked([_Loss(estimator, matching)] * number)
    return Stacked([_NativeLoss(estimator, net, matching)] * number, natively=True)


def unstacked(loss: nn.Module, estimator: nn.Module) -> nn.Module:
    """The density estimator of a member, whose loss is one of those that `stack` makes of an estimator."""
    if isinstance(loss, _Loss):
        return loss.estimator
    assert isinstance(loss, _NativeLoss)
    embedding = cast(_Seeing, loss.seeing.net).embedding
    alone = copy.deepcopy(cast(Any, estimator), {id(estimator.embedding_net): embedding}).eval()
    alone.net.load_state_dict(dict(loss.net.named_parameters()), strict=False)
    return cast(nn.Module, alone)


class _Loss(nn.Module):
    """The loss of any estimator as its forward pass, for one member."""

    def __init__(self, estimator: nn.Module, matching: float) -> None:
        super().__init__()
        self.estimator, self.matching = estimator, matching

    def forward(self, theta: Tensor, x: Tensor, levels: Tensor, targets: Tensor | None = None) -> Tensor:
        aware, estimator = roughness_of(self.estimator), cast(Any, self.estimator)
        with nullcontext() if aware is None else aware.at(levels):
            loss: Tensor = estimator.loss(theta, x)
        if targets is None:
            return loss
        number = len(targets)
        with nullcontext() if aware is None else aware.at(levels[:number]):
            seen = estimator.embedding_net(x[:number])
        return _with_distance(loss, seen, targets, self.matching)


class _NativeLoss(nn.Module):
    """The same for members whose flow takes stacked weights; data are looked at once, for both terms."""

    def __init__(self, estimator: nn.Module, net: nn.Module, matching: float) -> None:
        super().__init__()
        self.seeing, self.net, self.matching = Each(_Seeing(cast(Any, estimator).embedding_net)), net, matching

    def forward(self, theta: Tensor, x: Tensor, levels: Tensor, targets: Tensor | None = None) -> Tensor:
        seen = self.seeing(x, levels)
        loss: Tensor = -self.net(seen).log_prob(theta)
        return loss if targets is None else _with_distance(loss, seen, targets, self.matching)


class _Seeing(nn.Module):
    """An embedding, told how rough its input is if it wants to know."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: Tensor, levels: Tensor) -> Tensor:
        aware = roughness_of(self.embedding)
        with nullcontext() if aware is None else aware.at(levels):
            seen: Tensor = self.embedding(x)
        return seen


def _with_distance(loss: Tensor, seen: Tensor, targets: Tensor, matching: float) -> Tensor:
    """The loss (..., B) with the first T rows' distance of what is seen of them to targets (..., T, f)."""
    number = targets.shape[-2]
    off = (seen[..., :number, :] - targets).square().sum(-1)
    return torch.cat([loss[..., :number] + matching * off, loss[..., number:]], dim=-1)
