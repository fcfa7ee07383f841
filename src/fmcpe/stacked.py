"""Several copies of one network, each with weights of its own, trained together for little more than the price of one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

Weights = dict[str, Tensor]
"""Parameters of all members by name, the member as the first dimension."""


class Stacked:
    """Members of one architecture, evaluated as one batch of networks.

    Args:
        modules: The members as they start: one module for each, alike but for their weights.
        natively: Whether the module itself takes stacked weights and rows (`fmcpe.networks.Linear`), which is fastest.
    """

    def __init__(self, modules: Sequence[nn.Module], natively: bool = False) -> None:
        self.number, self.skeleton = len(modules), copy.deepcopy(modules[0])
        stacked, self.buffers = stack_module_state(list(modules))
        self.weights: Weights = {name: value.detach().clone().requires_grad_() for name, value in stacked.items()}
        self._natively, self._together = natively, True

    def __call__(self, *rows: Tensor) -> Tensor:
        """Each member at its share of the rows: tensors (K, B, ...) -> (K, ...)."""
        if self._natively:
            return self._one(self.weights, {}, *rows)
        if self._together:
            try:
                return vmap(self._one, randomness="different")(self.weights, self.buffers, *rows)
            except RuntimeError:  # a layer that cannot be batched over weights
                self._together = False
        return torch.stack([self.alone(k, *(r[k] for r in rows)) for k in range(self.number)])

    def alone(self, index: int, *rows: Tensor) -> Tensor:
        """One member at rows of its own: tensors (B, ...) -> (...)."""
        return self._one(_row(self.weights, index), _row(self.buffers, index), *rows)

    def _one(self, weights: Weights, buffers: Weights, *rows: Tensor) -> Tensor:
        out: Tensor = functional_call(self.skeleton, (weights, buffers), rows)
        return out

    def snapshot(self) -> Weights:
        """The weights as they are now, to come back to."""
        return {name: value.detach().clone() for name, value in self.weights.items()}

    def members(self, weights: Weights) -> Iterator[nn.Module]:
        """Each member as a module of its own, with its share of a `snapshot`."""
        for k in range(self.number):
            member = copy.deepcopy(self.skeleton)
            member.load_state_dict(_row(weights, k), strict=False)
            yield member

    def clip(self, largest: float) -> None:
        """Bound the norm of each member's gradient by itself."""
        gradients = [w.grad for w in self.weights.values() if w.grad is not None]
        norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
        factor = (largest / norm.clamp_min(1e-12)).clamp_max(1.0)
        for g in gradients:
            g.mul_(factor.reshape(self.number, *([1] * (g.ndim - 1))))


def _row(stacked: Weights, index: int) -> Weights:
    return {name: value[index] for name, value in stacked.items()}
