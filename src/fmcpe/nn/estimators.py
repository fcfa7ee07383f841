"""Copies of one density estimator that are trained together: their losses as one batch of networks.

The embedding of each member is evaluated by itself, whatever it is; the flow on top of it, where it is one of zuko's, for all
members at once, which halves the time of a step (`fmcpe.nn.splines`).
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any, cast

from sbi.neural_nets.estimators import ZukoFlow
from torch import Tensor, nn

from fmcpe.nn.embeddings import level_aware_part
from fmcpe.nn.ensemble import Each, Stacked
from fmcpe.nn.splines import natively


def stack(estimator: nn.Module, number: int, level: float) -> Stacked:
    """So many copies of a density estimator.

    Args:
        estimator: The density estimator, an embedding and a flow.
        number: How many.
        level: Level of domain randomisation that they are told, where nobody says otherwise.

    Returns:
        The loss of all copies: θ (K, B, p), x (K, B, ...) and levels (K, B, 1) to (K, B).
    """
    # statistics of normalisation layers stay as they are, and nothing is dropped at random
    estimator = copy.deepcopy(estimator).eval()
    aware = level_aware_part(estimator)
    if aware is not None:
        aware.level.fill_(level)
    net = natively(estimator.net) if isinstance(estimator, ZukoFlow) else None
    if net is None:
        return Stacked([_Loss(estimator)] * number)
    return Stacked([_NativeLoss(estimator, net)] * number, natively=True)


def unstacked(loss: nn.Module, estimator: nn.Module) -> nn.Module:
    """The density estimator of a member, whose loss is one of those that `stack` makes of an estimator."""
    if isinstance(loss, _Loss):
        return loss.estimator
    assert isinstance(loss, _NativeLoss)
    embedding = cast(_Embedding, loss.embedding.net).net
    alone = copy.deepcopy(cast(Any, estimator), {id(estimator.embedding_net): embedding}).eval()
    alone.net.load_state_dict(dict(loss.net.named_parameters()), strict=False)
    return cast(nn.Module, alone)


class _Loss(nn.Module):
    """The loss of any estimator as its forward pass, for one member."""

    def __init__(self, estimator: nn.Module) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, theta: Tensor, x: Tensor, levels: Tensor) -> Tensor:
        aware = level_aware_part(self.estimator)
        with nullcontext() if aware is None else aware.at(levels):
            loss: Tensor = cast(Any, self.estimator).loss(theta, x)
        return loss


class _NativeLoss(nn.Module):
    """The same for members whose flow takes stacked weights."""

    def __init__(self, estimator: nn.Module, net: nn.Module) -> None:
        super().__init__()
        self.embedding, self.net = Each(_Embedding(cast(Any, estimator).embedding_net)), net

    def forward(self, theta: Tensor, x: Tensor, levels: Tensor) -> Tensor:
        loss: Tensor = -self.net(self.embedding(x, levels)).log_prob(theta)
        return loss


class _Embedding(nn.Module):
    """An embedding, told the level of its input if it wants to know."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, levels: Tensor) -> Tensor:
        aware = level_aware_part(self.net)
        with nullcontext() if aware is None else aware.at(levels):
            seen: Tensor = self.net(x)
        return seen
