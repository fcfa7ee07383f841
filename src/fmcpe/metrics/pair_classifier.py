"""The classifier of the joint C2ST, between `(θ_j, y_j)` and `(θ̂_j, y_j)`.

Folds, validation rows and batches consist of *observations*, with both pairs of each. Otherwise the classifier would
see the `y` of a test row in training with the other label, and score far below ½ on an exact posterior.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn


def grouped_accuracy(
    theta: Tensor,
    theta_hat: Tensor,
    y: Tensor,
    folds: int,
    embedding: nn.Module | Callable[[], nn.Module] | None = None,
) -> float:
    """Cross-validated accuracy on (N, p), (N, p), (N, ...); uses torch's global generator."""
    parts = [part.float() for part in (theta, theta_hat, y)]
    order = torch.randperm(len(theta))
    correct = 0.0
    for fold in range(folds):
        test = order[fold::folds]
        kept = order[torch.arange(len(order)) % folds != fold]
        classifier = _PairClassifier(theta.shape[1], parts[2][:2], embedding)
        _train(classifier, [part[kept] for part in parts])
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


def _train(classifier: _PairClassifier, parts: list[Tensor], epochs: int = 200, patience: int = 15) -> None:
    """AdamW on batches of observations; early stopping on a sixth of them, with the best weights restored."""

    def loss_of(rows: Tensor) -> Tensor:
        real, fake = classifier(*(part[rows] for part in parts))
        return nn.functional.softplus(-real).mean() + nn.functional.softplus(fake).mean()

    order = torch.randperm(len(parts[0]))
    held, kept = order[: max(1, len(order) // 6)], order[max(1, len(order) // 6) :]
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    best, waited, weights = float("inf"), 0, copy.deepcopy(classifier.state_dict())
    for _ in range(epochs):
        classifier.train()
        for rows in kept[torch.randperm(len(kept))].split(128):
            optimizer.zero_grad()
            loss_of(rows).backward()
            optimizer.step()
        classifier.eval()
        with torch.no_grad():
            loss = sum(loss_of(rows).item() * len(rows) for rows in held.split(256))
        waited += 1
        if loss < best:
            best, waited, weights = loss, 0, copy.deepcopy(classifier.state_dict())
        if waited >= patience:
            break
    classifier.load_state_dict(weights)
