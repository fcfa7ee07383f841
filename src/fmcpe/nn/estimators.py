"""Ensembles of one density estimator: the losses of all members as one batch of networks.

The embedding is evaluated with `vmap`. A spline flow of zuko's takes stacked weights itself, which halves the time of a
step (`fmcpe.nn.splines`).
"""

from __future__ import annotations

import copy
from typing import Any, cast

from sbi.neural_nets.estimators import ZukoFlow
from torch import Tensor, nn

from fmcpe.nn.embeddings import at_levels, level_aware_part
from fmcpe.nn.ensemble import Each, Stacked
from fmcpe.nn.splines import natively


def stack(estimator: nn.Module, number: int, level: float) -> Stacked:
    """The losses of `number` copies of a density estimator: θ (K, B, p), x (K, B, ...), levels (K, B, 1) -> (K, B).

    `level` is the default level of domain randomisation of the copies.
    """
    # evaluation mode: fixed statistics in normalisation layers, no dropout
    estimator = copy.deepcopy(estimator).eval()
    aware = level_aware_part(estimator)
    if aware is not None:
        aware.level.fill_(level)
    net = natively(estimator.net) if isinstance(estimator, ZukoFlow) else None
    if net is None:
        return Stacked([_Loss(estimator)] * number)
    return Stacked([_NativeLoss(estimator, net)] * number, natively=True)


def unstacked(loss: nn.Module, estimator: nn.Module) -> nn.Module:
    """The density estimator of a member of ``stack(estimator, ...)``."""
    if isinstance(loss, _Loss):
        return loss.estimator
    assert isinstance(loss, _NativeLoss)
    embedding = cast(_Embedding, loss.embedding.net).net
    alone = copy.deepcopy(cast(Any, estimator), {id(estimator.embedding_net): embedding}).eval()
    alone.net.load_state_dict(dict(loss.net.named_parameters()), strict=False)
    return cast(nn.Module, alone)


class _Loss(nn.Module):
    """The loss of any estimator as a forward pass."""

    def __init__(self, estimator: nn.Module) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, theta: Tensor, x: Tensor, levels: Tensor) -> Tensor:
        with at_levels(self.estimator, levels):
            loss: Tensor = cast(Any, self.estimator).loss(theta, x)
        return loss


class _NativeLoss(nn.Module):
    """The same for a flow that takes stacked weights."""

    def __init__(self, estimator: nn.Module, net: nn.Module) -> None:
        super().__init__()
        self.embedding, self.net = Each(_Embedding(cast(Any, estimator).embedding_net)), net

    def forward(self, theta: Tensor, x: Tensor, levels: Tensor) -> Tensor:
        loss: Tensor = -self.net(self.embedding(x, levels)).log_prob(theta)
        return loss


class _Embedding(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, levels: Tensor) -> Tensor:
        with at_levels(self.net, levels):
            features: Tensor = self.net(x)
        return features
