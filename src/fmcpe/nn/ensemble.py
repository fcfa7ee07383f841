"""Ensembles of one architecture, trained and evaluated as one batch of networks.

K is the number of members. Stacked weights have shape (K, ...), and each member has its own rows, (K, B, ...).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

Weights = dict[str, Tensor]
"""Parameters of all members by name, each (K, ...)."""


class Linear(nn.Linear):
    """A linear layer that also takes stacked weights (K, out, in) with rows (K, B, in)."""

    def forward(self, input: Tensor) -> Tensor:
        return self.linear(input, self.weight)

    def linear(self, input: Tensor, weight: Tensor) -> Tensor:
        """The layer with `weight` in place of its own."""
        if weight.ndim == 2:
            return nn.functional.linear(input, weight, self.bias)
        return torch.baddbmm(self.bias[:, None], input, weight.mT)


class Stacked:
    """Members of one architecture, evaluated as one batch of networks.

    Args:
        modules: The members, with their initial weights.
        natively: Whether the module itself takes stacked weights and rows, which is fastest: its layers are `Linear`,
            or wrapped in `Each`.
    """

    def __init__(self, modules: Sequence[nn.Module], natively: bool = False) -> None:
        self.number, self.skeleton = len(modules), copy.deepcopy(modules[0])
        stacked, self.buffers = stack_module_state(list(modules))
        self.weights: Weights = {name: value.detach().clone().requires_grad_() for name, value in stacked.items()}
        self._natively, self._vmapped = natively, _Vmapped()
        # only if a weight is shared by two layers does functional_call need to look for ties, which takes time
        self._tied = len(list(self.skeleton.named_parameters(remove_duplicate=False))) > len(self.weights)

    def __call__(self, *rows: Tensor) -> Tensor:
        """Each member evaluated at its own rows: tensors (K, B, ...) -> (K, ...)."""
        if self._natively:
            out: Tensor = functional_call(self.skeleton, self.weights, rows, tie_weights=self._tied)
            return out
        return self._vmapped(self.skeleton, self.weights, self.buffers, *rows)

    def snapshot(self) -> Weights:
        """A copy of the current weights."""
        return {name: value.detach().clone() for name, value in self.weights.items()}

    def keep(self, kept: Weights, better: Tensor) -> None:
        """Update a snapshot with the current weights of the members that are `better`, (K,)."""
        for name, value in self.weights.items():
            kept[name] = torch.where(better.reshape(-1, *([1] * (value.ndim - 1))), value.detach(), kept[name])

    def members(self, weights: Weights) -> Iterator[nn.Module]:
        """Each member as a separate module, with its weights of a snapshot."""
        for k in range(self.number):
            member = copy.deepcopy(self.skeleton)
            member.load_state_dict(_row(weights, k), strict=False)
            yield member

    def clip(self, max_norm: float) -> None:
        """Clip the gradient norm of each member."""
        gradients = [w.grad for w in self.weights.values() if w.grad is not None]
        norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
        factor = (max_norm / norm.clamp_min(1e-12)).clamp_max(1.0)
        for g in gradients:
            g.mul_(factor.reshape(self.number, *([1] * (g.ndim - 1))))


class Alone:
    """One network, trained in place, with the interface of `Stacked`."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.weights = module, dict(module.named_parameters())

    def snapshot(self) -> Weights:
        """A copy of the current state, buffers included."""
        return copy.deepcopy(self.module.state_dict())

    def keep(self, kept: Weights, better: Tensor) -> None:
        """Update a snapshot with the current state if it is `better`."""
        if bool(better.any()):
            kept.update(self.snapshot())

    def clip(self, max_norm: float) -> None:
        """Clip the gradient norm."""
        nn.utils.clip_grad_norm_(self.weights.values(), max_norm)


class Each(nn.Module):
    """Wraps any network as a layer of a module that takes stacked weights; members share its buffers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self._vmapped = net, _Vmapped()
        first = next(net.parameters(), None)
        self._ndim = 0 if first is None else first.ndim

    def forward(self, *rows: Tensor) -> Tensor:
        """Rows (K, B, ...) if the weights are stacked at the moment, (B, ...) otherwise."""
        weights: Weights = dict(self.net.named_parameters())
        if not weights:  # members do not differ: their rows are one batch
            flat: Tensor = self.net(*(r.flatten(0, 1) for r in rows))
            return flat.unflatten(0, rows[0].shape[:2])
        if next(iter(weights.values())).ndim == self._ndim:
            out: Tensor = self.net(*rows)
            return out
        return self._vmapped(self.net, weights, {}, *rows)


class _Vmapped:
    """`vmap` of a network over stacked weights and rows; a loop for layers that `vmap` does not support."""

    def __init__(self) -> None:
        self.supported = True

    def __call__(self, module: nn.Module, weights: Weights, buffers: Weights, *rows: Tensor) -> Tensor:
        def call(weights: Weights, buffers: Weights, *rows: Tensor) -> Tensor:
            out: Tensor = functional_call(module, (weights, buffers), rows)
            return out

        if self.supported:
            try:
                return vmap(call, randomness="different")(weights, buffers, *rows)
            except RuntimeError:
                self.supported = False
        members = range(len(rows[0]))
        return torch.stack([call(_row(weights, k), _row(buffers, k), *(r[k] for r in rows)) for k in members])


def _row(stacked: Weights, index: int) -> Weights:
    return {name: value[index] for name, value in stacked.items()}
