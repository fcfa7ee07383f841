"""Zuko's autoregressive spline flows, with stacked weights (K, ...) and fewer operations.

The splines are those of `zuko.transforms.MonotonicRQSTransform` (Durkan et al., 2019). With small networks and
batches, the number of operations determines the time: on one core, a gradient step takes 0.6 to 0.9 of zuko's time.
Sampling is two to four times as fast, because it computes the knots of one parameter at a time, not of all.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from zuko.flows.autoregressive import MaskedAutoregressiveTransform
from zuko.nn import MaskedLinear
from zuko.transforms import MonotonicRQSTransform

from fmcpe.nn.embeddings import has_weights
from fmcpe.nn.ensemble import Linear


def natively(flow: nn.Module, own_weights: bool = True) -> nn.Module | None:
    """A copy of zuko's spline flow that takes stacked weights (K, ...) and rows (K, B, ...); None for other flows.

    With ``own_weights=False`` it shares the weights of `flow`.
    """
    flow = copy.deepcopy(flow) if own_weights else flow
    splines = [m for m in flow.modules() if isinstance(m, MaskedAutoregressiveTransform) and _are_splines(m)]
    known = {id(part) for module in splines for part in module.modules()}
    others = [m for m in flow.modules() if id(m) not in known and has_weights(m, recurse=False)]
    if others or not splines:
        return None
    # deepcopy takes what is in memo for a copy: the splines are replaced, buffers are shared
    memo: dict[int, Any] = {id(module): _Splines(module) for module in splines}
    return copy.deepcopy(flow, memo | {id(buffer): buffer for buffer in flow.buffers()})


def _are_splines(transform: MaskedAutoregressiveTransform) -> bool:
    univariate = transform.univariate
    return (
        isinstance(univariate, partial)
        and univariate.func is MonotonicRQSTransform
        and set(univariate.keywords) <= {"slope"}
        and not univariate.args
        and transform.order is not None
        and all(isinstance(m, MaskedLinear) and m.bias is not None for m in transform.hyper if has_weights(m))
    )


class _MaskedLinear(Linear):
    """Zuko's masked linear layer, with stacked weights or not."""

    mask: Tensor

    def __init__(self, layer: MaskedLinear) -> None:
        super().__init__(layer.in_features, layer.out_features, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("mask", layer.mask.to(layer.weight))

    def forward(self, input: Tensor) -> Tensor:
        return self.linear(input, self.mask * self.weight)

    def some(self, input: Tensor, rows: slice) -> Tensor:
        """Some of the outputs, for weights that are not stacked."""
        return nn.functional.linear(input, self.mask[rows] * self.weight[rows], self.bias[rows])


class _Splines(nn.Module):
    """An autoregressive layer: a spline for each of p variables, with knots from the preceding ones and the context."""

    bound = 5.0
    """Zuko's splines are the identity beyond it."""

    def __init__(self, transform: MaskedAutoregressiveTransform) -> None:
        super().__init__()
        layers = (_MaskedLinear(layer) if isinstance(layer, MaskedLinear) else layer for layer in transform.hyper)
        self.hyper = nn.Sequential(*layers)
        self.bins, self.numbers = int(transform.shapes[0][0]), int(transform.total)
        self.log_slope = math.log(transform.univariate.keywords.get("slope", 1e-3))
        # variables with the same predecessors are drawn together
        self.turns = [(transform.order == turn).nonzero()[:, 0].tolist() for turn in range(transform.passes)]

    def forward(self, context: Tensor) -> Transform:
        return _SplineTransform(self, context)

    def call_and_ladj(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """The transformed variables and their log derivatives, both (..., p)."""
        context = context.expand(*x.shape[:-1], context.shape[-1])
        sizes, ends, slopes = self._bins(self.hyper(torch.cat([x, context], dim=-1)).unflatten(-1, (-1, self.numbers)))
        place = x / (2 * self.bound) + 0.5
        inside, width, height, right, top, d0, d1 = _bin_of(place, 0, sizes, ends, slopes)
        s, z = height / width, torch.where(inside, 1 - (right - place) / width, 0.5)
        rest = z * (1 - z)
        below = s + (d0 + d1 - 2 * s) * rest
        y = top - height + height * (s * z.square() + d0 * rest) / below
        jacobian = s.square() * (2 * s * rest + d0 * (1 - z).square() + d1 * z.square()) / below.square()
        return torch.where(inside, (2 * y - 1) * self.bound, x), jacobian.log() * inside

    def inverse(self, y: Tensor, context: Tensor) -> Tensor:
        """The inverse at y, (..., p), for weights that are not stacked."""
        context, x = context.expand(*y.shape[:-1], context.shape[-1]), torch.zeros_like(y)
        *layers, last = (cast(Any, layer) for layer in self.hyper)
        for turn in self.turns:
            seen = torch.cat([x, context], dim=-1)
            for layer in layers:
                seen = layer(seen)
            x = x.clone()  # autograd has saved x
            for i in turn:
                knots = last.some(seen, slice(i * self.numbers, (i + 1) * self.numbers))
                x[..., i] = self._inverse_of_one(y[..., i], knots)
        return x

    def _inverse_of_one(self, y: Tensor, knots: Tensor) -> Tensor:
        """The inverse of one variable at y, (...), for knots (..., numbers)."""
        place = y / (2 * self.bound) + 0.5
        inside, width, height, right, top, d0, d1 = _bin_of(place, 1, *self._bins(knots))
        s, above = height / width, torch.where(inside, height - (top - place), 0.0)
        bent = above * (d0 + d1 - 2 * s)
        a, b, c = height * (s - d0) + bent, height * d0 - bent, -s * above
        z = 2 * c / (-b - (b.square() - 4 * a * c).clamp_min(0.0).sqrt())
        return torch.where(inside, (2 * (right - width + z * width) - 1) * self.bound, y)

    def _bins(self, knots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Relative widths and heights of bins and their cumulative sums, (..., 2, bins), and slopes at the knots."""
        sizes = knots[..., : 2 * self.bins].unflatten(-1, (2, self.bins))
        sizes = (sizes / (1 + (sizes * (2 / self.log_slope)).abs())).exp()  # bounded, cannot overflow
        ends = sizes.cumsum(-1)
        whole = ends[..., -1:]
        slopes = knots[..., 2 * self.bins :]
        slopes = slopes / (1 + (slopes * (1 / self.log_slope)).abs())
        return sizes / whole, ends / whole, nn.functional.pad(slopes, (1, 1)).exp()


def _bin_of(place: Tensor, axis: int, sizes: Tensor, ends: Tensor, slopes: Tensor) -> tuple[Tensor, ...]:
    """The bin of each place along an axis, 0 for x or 1 for y: whether inside, width, height, right, top, slopes."""
    with torch.no_grad():
        inside = (place > 0) & (place < ends[..., axis, -1])
        k = (ends[..., axis, :-1] < place[..., None]).sum(-1, keepdim=True)
    both = k[..., None, :].expand(*k.shape[:-1], 2, 1)
    (width, height), (right, top) = (t.gather(-1, both).squeeze(-1).unbind(-1) for t in (sizes, ends))
    d0, d1 = slopes.gather(-1, torch.cat([k, k + 1], dim=-1)).unbind(-1)
    return inside, width, height, right, top, d0, d1


class _SplineTransform(Transform):
    """`_Splines` for a context, with the interface of zuko's transforms."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, splines: _Splines, context: Tensor) -> None:
        super().__init__()
        self.splines, self.context = splines, context

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, each = self.splines.call_and_ladj(x, self.context)
        return y, each.sum(-1)

    def __call__(self, x: Tensor) -> Any:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return self.splines.inverse(y, self.context)
