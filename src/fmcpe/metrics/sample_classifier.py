"""The classifier of the C2ST, between rows of `a` and rows of `b`.

A network has two hidden layers of 10·d units, the architecture of the "mlp" of `sbi.utils.metrics.c2st`. The networks
of all folds of all comparisons are trained as one batch of matrices. Comparisons share their random numbers, so that
the result of one does not depend on the others.

Tensors are (networks, features, rows): matrix products with few features are fastest that way.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

Weights = list[Tensor]
"""Matrix (K, out, in) and bias (K, out, 1) of each of the three layers, of K networks."""


@torch.inference_mode(False)
@torch.enable_grad()
def accuracies(a: Tensor, b: Tensor, folds: int) -> Tensor:
    """Cross-validated accuracies, (B,), for `a` and `b` (B, N, d), standardised; uses torch's global generator."""
    comparisons, n, d = a.shape
    places = torch.arange(n)
    pairs = torch.stack([part[:, torch.randperm(n)].mT for part in (a, b)], 3).float()  # (B, d, N, 2)
    tested_by = places * folds // n  # folds are contiguous
    starts = [int((tested_by < fold).sum()) for fold in range(folds)]
    share = n - -(-n // folds)  # training rows, the same number for every fold
    kept = torch.stack([pairs.roll(-start, 2)[:, :, -share:] for start in starts], 1).flatten(0, 1)
    weights = _trained(_initial(d, folds, comparisons), kept)
    with torch.no_grad():
        parts = pairs.repeat_interleave(folds, 0).split(1000, 2)
        logits = torch.cat([_logits(weights, part) for part in parts], 1).unflatten(0, (comparisons, folds))
    # A logit of exactly zero is a guess: it counts half.
    right = torch.sign(logits[:, tested_by, places]).double() * torch.tensor([-1.0, 1.0])
    return 0.5 * (1 + right).mean((1, 2))


def _initial(d: int, folds: int, comparisons: int) -> Weights:
    """Glorot-uniform weights and biases, as in sklearn: different for each fold, the same for each comparison."""
    sizes, weights = (d, 10 * d, 10 * d, 1), []
    for into, out in pairwise(sizes):
        for columns in (into, 1):
            uniform = 2 * torch.rand(folds, out, columns, dtype=torch.float32) - 1
            weights.append((math.sqrt(6 / (into + out)) * uniform).repeat(comparisons, 1, 1).requires_grad_())
    return weights


def _logits(weights: Weights, pairs: Tensor) -> Tensor:
    """Log odds of `b` against `a` by each network, (K, d, n, 2) -> (K, n, 2)."""
    h = pairs.flatten(2)
    for layer in (0, 2):
        h = torch.baddbmm(weights[layer + 1], weights[layer], h).relu_()
    return torch.baddbmm(weights[5], weights[4], h)[:, 0].unflatten(1, (-1, 2))


def _losses(weights: Weights, pairs: Tensor) -> Tensor:
    """Cross-entropy of each network, (K,), on pairs (K, d, n, 2) of a row of `a` and a row of `b`."""
    logits = _logits(weights, pairs)
    return 0.5 * (nn.functional.softplus(logits[..., 0]) + nn.functional.softplus(-logits[..., 1])).mean(1)


def _trained(
    weights: Weights,
    pairs: Tensor,
    batch_size: int = 100,
    min_epochs: int = 40,
    min_steps: int = 200,
    learning_rate: float = 5e-3,
) -> Weights:
    """Adam with cosine decay on pairs (K, d, n, 2); early stopping of each network on a tenth of its rows.

    `batch_size` pairs are sklearn's 200 rows. Few rows need more epochs, hence `min_steps`.
    """
    held = -(-pairs.shape[2] // 10)
    valid, train = pairs[:, :, :held], pairs[:, :, held:]
    n = train.shape[2]
    steps = -(-n // batch_size)  # in an epoch
    epochs = max(min_epochs, -(-min_steps // steps))
    optimizer = torch.optim.Adam(weights, lr=learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    lowest = torch.full((len(pairs),), float("inf"))
    best = [w.detach().clone() for w in weights]
    for _ in range(epochs):
        for batch in train[:, :, torch.randperm(n)].tensor_split(steps, 2):
            optimizer.zero_grad()
            _losses(weights, batch).sum().backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            losses = _losses(weights, valid)
            better = losses < lowest
            lowest = torch.where(better, losses, lowest)
            best = [torch.where(better[:, None, None], w, kept) for w, kept in zip(weights, best, strict=True)]
    return best
