"""Several copies of one network, each with weights of its own, trained together for little more than the price of one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

Weights = dict[str, Tensor]
"""Parameters of all members by name, the member as the first dimension."""


class Linear(nn.Linear):
    """A linear layer whose weights may be those of several networks, (K, out, in), each for its own rows, (K, B, in)."""

    def forward(self, input: Tensor) -> Tensor:
        return self.linear(input, self.weight)

    def linear(self, input: Tensor, weight: Tensor) -> Tensor:
        """The layer with other weights than its own."""
        if weight.ndim == 2:
            return nn.functional.linear(input, weight, self.bias)
        return torch.baddbmm(self.bias[:, None], input, weight.mT)


class Stacked:
    """Members of one architecture, evaluated as one batch of networks.

    Args:
        modules: The members as they start: one module for each, alike but for their weights.
        natively: Whether the module itself takes stacked weights and rows (`Linear`), which is fastest; parts
            that do not go into an `Each`.
    """

    def __init__(self, modules: Sequence[nn.Module], natively: bool = False) -> None:
        self.number, self.skeleton = len(modules), copy.deepcopy(modules[0])
        stacked, self.buffers = stack_module_state(list(modules))
        self.weights: Weights = {name: value.detach().clone().requires_grad_() for name, value in stacked.items()}
        self._natively, self._by_itself = natively, _ByItself()
        names = list(self.skeleton.named_parameters(remove_duplicate=False))
        self._tied = len(names) > len(
            self.weights
        )  # whether one weight stands in two places, which takes time to look up

    def __call__(self, *rows: Tensor) -> Tensor:
        """Each member at its share of the rows: tensors (K, B, ...) -> (K, ...)."""
        if self._natively:
            out: Tensor = functional_call(self.skeleton, self.weights, rows, tie_weights=self._tied)
            return out
        return self._by_itself(self.skeleton, self.weights, self.buffers, *rows)

    def alone(self, index: int, *rows: Tensor) -> Tensor:
        """One member at rows of its own: tensors (B, ...) -> (...)."""
        return _apply(self.skeleton, _row(self.weights, index), _row(self.buffers, index), *rows)

    def snapshot(self) -> Weights:
        """The weights as they are now, to come back to."""
        return {name: value.detach().clone() for name, value in self.weights.items()}

    def keep(self, kept: Weights, better: Tensor) -> None:
        """Put the weights of those members that are better, (K,), into an earlier snapshot."""
        for name, value in self.weights.items():
            kept[name] = torch.where(better.reshape(-1, *([1] * (value.ndim - 1))), value.detach(), kept[name])

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


class Alone:
    """One network with the interface of a batch: its weights are trained in place.

    Args:
        module: The network.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.weights = module, dict(module.named_parameters())

    def snapshot(self) -> Weights:
        """The state as it is now, buffers included, to come back to."""
        return copy.deepcopy(self.module.state_dict())

    def keep(self, kept: Weights, better: Tensor) -> None:
        """Put the state as it is now into an earlier snapshot, if it is better."""
        if bool(better.any()):
            kept.update(self.snapshot())

    def clip(self, largest: float) -> None:
        """Bound the norm of the gradient."""
        nn.utils.clip_grad_norm_(self.weights.values(), largest)


class Each(nn.Module):
    """A part of a native network that itself knows nothing of stacked weights: each member's is asked about its own rows.

    Args:
        net: The part; its buffers are the same for all members.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self._by_itself = net, _ByItself()
        first = next(net.parameters(), None)
        self._ndim = 0 if first is None else first.ndim

    def forward(self, *rows: Tensor) -> Tensor:
        """Rows (K, B, ...) where the weights are stacked at the moment, (B, ...) otherwise."""
        weights: Weights = dict(self.net.named_parameters())
        if not weights:  # all members share it: their rows are one batch
            flat: Tensor = self.net(*(r.flatten(0, 1) for r in rows))
            return flat.unflatten(0, rows[0].shape[:2])
        if next(iter(weights.values())).ndim == self._ndim:
            out: Tensor = self.net(*rows)
            return out
        return self._by_itself(self.net, weights, {}, *rows)


class _ByItself:
    """One network with the weights of many, and rows of each; one after the other where a layer cannot be batched."""

    def __init__(self) -> None:
        self.together = True

    def __call__(self, module: nn.Module, weights: Weights, buffers: Weights, *rows: Tensor) -> Tensor:
        if self.together:
            try:
                return vmap(lambda *each: _apply(module, *each), randomness="different")(weights, buffers, *rows)
            except RuntimeError:  # a layer that cannot be batched over weights
                self.together = False
        return torch.stack(
            [_apply(module, _row(weights, k), _row(buffers, k), *(r[k] for r in rows)) for k in range(len(rows[0]))]
        )


def _apply(module: nn.Module, weights: Weights, buffers: Weights, *rows: Tensor) -> Tensor:
    out: Tensor = functional_call(module, (weights, buffers), rows)
    return out


def _row(stacked: Weights, index: int) -> Weights:
    return {name: value[index] for name, value in stacked.items()}
