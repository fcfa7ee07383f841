"""The classifier of the joint C2ST, between `(θ_j, y_j)` and `(θ̂_j, y_j)`.

Folds, validation rows and batches consist of *observations*, with both pairs of each. Otherwise the classifier would
see the `y` of a test row in training with the other label, and score far below ½ on an exact posterior.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fmcpe.nn.training import Training, train


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
