"""The classifiers of the C2ST, between rows `a` and `b`, and of the joint C2ST, between `(θ_j, y_j)` and `(θ̂_j, y_j)`.

`accuracies` is of the C2ST. A network has two hidden layers of 10·d units, the architecture of the "mlp" of
`sbi.utils.metrics.c2st`. The networks of all folds of all comparisons are trained as one batch of matrices. Comparisons share
their random numbers, so that the result of one does not depend on the others. Tensors are (networks, features, rows): matrix
products with few features are fastest that way.

`grouped_accuracy` is of the joint C2ST. Folds, validation rows and batches consist of *observations*, with both pairs of each.
Otherwise the classifier would see the `y` of a test row in training with the other label, and score far below ½ on an exact
posterior.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from fmcpe.nn.ensemble import Stacked
from fmcpe.nn.training import Training, descend, train


@torch.inference_mode(False)
def accuracies(a: Tensor, b: Tensor, folds: int) -> Tensor:
    """Cross-validated accuracies, (B,), for `a` and `b` (B, N, d), standardised; uses torch's global generator."""
    comparisons, n, d = a.shape
    places = torch.arange(n)
    pairs = torch.stack([part[:, torch.randperm(n)].mT for part in (a, b)], 3).float()  # (B, d, N, 2)
    tested_by = places * folds // n  # folds are contiguous
    starts = [int((tested_by < fold).sum()) for fold in range(folds)]
    share = n - -(-n // folds)  # training rows, the same number for every fold
    kept = torch.stack([pairs.roll(-start, 2)[:, :, -share:] for start in starts], 1).flatten(0, 1)
    classifiers = _untrained(d, folds, comparisons)
    _train_rows(classifiers, kept)
    with torch.no_grad():
        parts = pairs.repeat_interleave(folds, 0).split(1000, 2)
        logits = torch.cat([classifiers(part) for part in parts], 1).unflatten(0, (comparisons, folds))
    # A logit of exactly zero is a guess: it counts half.
    right = torch.sign(logits[:, tested_by, places]).double() * torch.tensor([-1.0, 1.0])
    return 0.5 * (1 + right).mean((1, 2))


class _RowClassifier(nn.Module):
    """Log odds of `b` against `a`; `Stacked` evaluates K networks: pairs (K, d, n, 2) of rows of `a` and `b` -> (K, n, 2).

    Args:
        weights: Matrix (out, in) and bias (out, 1) of each of the three layers.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weights)

    def forward(self, pairs: Tensor) -> Tensor:
        w1, b1, w2, b2, w3, b3 = self.weights
        h = torch.baddbmm(b1, w1, pairs.flatten(2)).relu_()
        h = torch.baddbmm(b2, w2, h).relu_()
        return torch.baddbmm(b3, w3, h)[:, 0].unflatten(1, (-1, 2))


def _untrained(d: int, folds: int, comparisons: int) -> Stacked:
    """Glorot-uniform weights and biases, as in sklearn: different for each fold, the same for each comparison."""
    sizes, weights = (d, 10 * d, 10 * d, 1), []
    for into, out in pairwise(sizes):
        for columns in (into, 1):
            uniform = 2 * torch.rand(folds, out, columns, dtype=torch.float32) - 1
            weights.append(math.sqrt(6 / (into + out)) * uniform)
    return Stacked([_RowClassifier(each) for each in zip(*weights, strict=True)] * comparisons, natively=True)


def _losses(classifiers: Stacked, pairs: Tensor) -> Tensor:
    """Cross-entropy of each network, (K,), on pairs (K, d, n, 2)."""
    logits = classifiers(pairs)
    return 0.5 * (nn.functional.softplus(logits[..., 0]) + nn.functional.softplus(-logits[..., 1])).mean(1)


def _train_rows(
    classifiers: Stacked,
    pairs: Tensor,
    batch_size: int = 100,
    min_epochs: int = 40,
    min_steps: int = 200,
    learning_rate: float = 5e-3,
) -> None:
    """Adam with cosine decay on pairs (K, d, n, 2); early stopping of each network on a tenth of its rows.

    `batch_size` pairs are sklearn's 200 rows. Few rows need more epochs, hence `min_steps`.
    """
    held = -(-pairs.shape[2] // 10)
    valid, training = pairs[:, :, :held], pairs[:, :, held:]
    n = training.shape[2]
    per_epoch = -(-n // batch_size)
    steps = per_epoch * max(min_epochs, -(-min_steps // per_epoch))
    batches: list[Tensor] = []

    def loss(step: int) -> Tensor:
        if step % per_epoch == 0:
            batches[:] = training[:, :, torch.randperm(n)].tensor_split(per_epoch, 2)
        return _losses(classifiers, batches[step % per_epoch])

    @torch.no_grad()
    def validate() -> Tensor:
        return _losses(classifiers, valid)

    (best,) = descend(
        [classifiers], loss, steps, learning_rate, partial(CosineAnnealingLR, T_max=steps), validate, every=per_epoch,
        clip=torch.inf, keep_start=False,
    )  # fmt: skip
    classifiers.weights = best


def grouped_accuracy(
    theta: Tensor,
    theta_hat: Tensor,
    y: Tensor,
    folds: int,
    embedding: nn.Module | Callable[[], nn.Module] | None = None,
) -> float:
    """Cross-validated accuracy on (N, p), (N, p), (N, ...); uses torch's global generator."""
    parts = [part.float() for part in (theta, theta_hat, y)]
    # early stopping on a sixth of the observations, with the best weights restored
    training = Training(200, 128, 1e-3, 1 / 6, stop_after_epochs=15, one_cycle=False)
    order = torch.randperm(len(theta))
    correct = 0.0
    for fold in range(folds):
        test, kept = order[fold::folds], order[torch.arange(len(order)) % folds != fold]
        classifier = _PairClassifier(theta.shape[1], parts[2][:2], embedding)
        seen = [part[kept] for part in parts]
        train(classifier, partial(classifier.losses, seen), len(kept), training, "the classifier of the joint C2ST")
        with torch.no_grad():
            for rows in test.split(256):
                real, fake = classifier(*(part[rows] for part in parts))
                # A logit of exactly zero is a guess: it counts half.
                correct += 0.5 * (1 + torch.sign(torch.cat([real, -fake]))).sum().item()
    return correct / (2 * len(theta))


class _PairClassifier(nn.Module):
    """Logits of being a true pair for `(θ, y)` and `(θ̂, y)`; y is embedded once for both."""

    def __init__(self, p: int, y: Tensor, embedding: nn.Module | Callable[[], nn.Module] | None):
        super().__init__()
        embedding = nn.Identity() if embedding is None else embedding
        self.embedding = (copy.deepcopy(embedding) if isinstance(embedding, nn.Module) else embedding()).eval()
        with torch.no_grad():
            features = self.embedding(y).flatten(1).shape[1]
        width = 128
        self.head = nn.Sequential(
            nn.Linear(p + features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, theta: Tensor, theta_hat: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.embedding(y).flatten(1)
        both = torch.cat([torch.cat([theta, seen], 1), torch.cat([theta_hat, seen], 1)])
        real, fake = self.head(both).squeeze(1).chunk(2)
        return real, fake

    def losses(self, parts: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Cross-entropy of both pairs of some observations, (B,)."""
        real, fake = self(*(part[rows] for part in parts))
        return nn.functional.softplus(-real) + nn.functional.softplus(fake)
