"""The training loop: `descend` takes gradient steps with clipping and early stopping, on one network or an ensemble.

`train` runs it on minibatches of rows with a validation split.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, OneCycleLR

from fmcpe._errors import FMCPEWarning
from fmcpe._options import SHARE, check_options
from fmcpe._progress import Progress
from fmcpe.nn.ensemble import Alone, Stacked, Weights

Schedule = Callable[[torch.optim.Optimizer], LRScheduler]
CONSTANT: Schedule = partial(ConstantLR, factor=1.0)


def one_cycle(learning_rate: float, steps: int, rise: float) -> Schedule:
    """One cycle: up to the peak over the share `rise` of the steps, then down to zero."""
    length = max(math.ceil(2 / rise), steps)  # torch needs at least two steps of rise
    return lambda optimiser: OneCycleLR(optimiser, learning_rate, total_steps=length, pct_start=rise)


@torch.enable_grad()  # import bayesflow switches gradients off for the whole process
def descend(
    networks: Sequence[Stacked | Alone],
    loss: Callable[[int], Tensor],
    steps: int,
    learning_rate: float,
    schedule: Schedule | None = None,
    validate: Callable[[], Tensor] | None = None,
    *,
    every: int | None = None,
    clip: float = 5.0,
    keep_start: bool = True,
    patience: int | None = None,
    bar: str | None = None,
) -> list[Weights]:
    """Train networks of K members each with Adam, in place.

    Args:
        networks: Networks with a common loss.
        loss: Maps the step to the loss of each member, (K,).
        steps: Gradient steps.
        learning_rate: Learning rate of Adam; the peak of a cycle.
        schedule: Schedule of the learning rate; one cycle if None.
        validate: Validation loss of each member, (K,).
        every: Steps between two validations; a twentieth of all if None.
        clip: Maximum gradient norm of each member of each network.
        keep_start: Whether the initial weights take part in early stopping.
        patience: Validations without improvement of any member before training stops.
        bar: Label of the progress bar; no bar if None.

    Returns:
        The weights of each network, for each member those of its best validation loss; the last ones without
        validation.
    """
    optimiser = torch.optim.Adam([w for each in networks for w in each.weights.values()], lr=learning_rate, fused=True)
    scheduler = (schedule or one_cycle(learning_rate, steps, 0.1))(optimiser)
    every, waited = every or max(1, steps // 20), 0
    best = [each.snapshot() for each in networks]
    lowest = validate() if validate is not None and keep_start else torch.tensor(torch.inf)
    with Progress(steps, bar or "", bar is not None) as progress:
        for step in range(steps):
            optimiser.zero_grad()
            loss(step).sum().backward()
            for each in networks:
                each.clip(clip)
            optimiser.step()
            scheduler.step()
            progress.update()
            if validate is None or ((step + 1) % every and step + 1 < steps):
                continue
            now = validate()
            better, lowest = now < lowest, torch.fmin(now, lowest)
            for kept, each in zip(best, networks, strict=True):
                each.keep(kept, better)
            waited = 0 if bool(better.any()) else waited + 1
            if patience is not None and waited >= patience:
                break
    return best if validate is not None else [each.snapshot() for each in networks]


@dataclass(frozen=True)
class Training:
    """Settings of `train`.

    Args:
        max_num_epochs: Passes over the training rows.
        training_batch_size: Rows per gradient step.
        learning_rate: Learning rate of Adam; the peak of the cycle with `one_cycle`.
        validation_fraction: Share of the rows held out for early stopping.
        stop_after_epochs: Epochs without improvement before training stops early.
        clip_max_norm: Maximum gradient norm.
        one_cycle: One cycle of the learning rate; constant otherwise.
        keep_start: Whether the initial weights take part in early stopping, e.g. pretrained ones.
    """

    max_num_epochs: int = 20
    training_batch_size: int = 512
    learning_rate: float = 5e-3
    validation_fraction: float = 0.05
    stop_after_epochs: int = 10
    clip_max_norm: float = 5.0
    one_cycle: bool = True
    keep_start: bool = False

    def __post_init__(self) -> None:
        check_options(self, {"validation_fraction": SHARE})


def train(
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    number: int,
    training: Training,
    what: str,
    show_progress_bars: bool = False,
) -> dict[str, list[float]]:
    """Minimise the mean of `loss` over rows; `module` ends in evaluation mode, with the best weights.

    Args:
        module: The network.
        loss: Maps indices of rows, (B,), to their losses, (B,).
        number: Number of rows.
        training: The settings.
        what: Name of the network in the progress bar and in errors.
        show_progress_bars: Show progress after two seconds.

    Returns:
        Training and validation losses by epoch.
    """
    order = torch.randperm(number)
    num_validation = max(1, round(training.validation_fraction * number))
    validation, rows = order[:num_validation], order[num_validation:]
    per_epoch, peak = max(1, len(rows) // training.training_batch_size), training.learning_rate
    steps = training.max_num_epochs * per_epoch
    history: dict[str, list[float]] = {"training_loss": [], "validation_loss": []}
    batches: list[Tensor] = []

    def step_loss(step: int) -> Tensor:
        if step % per_epoch == 0:
            module.train()
            batches[:] = rows[torch.randperm(len(rows))].tensor_split(per_epoch)
            history["training_loss"].append(0.0)
        value = loss(batches[step % per_epoch]).mean()
        history["training_loss"][-1] += float(value.detach()) / per_epoch
        return value

    @torch.no_grad()
    def validate() -> Tensor:
        module.eval()
        value = torch.cat([loss(part) for part in validation.split(2000)]).mean()
        history.setdefault("validation_loss" if history["training_loss"] else "start_loss", []).append(float(value))
        return value

    schedule = one_cycle(peak, steps, 0.2) if training.one_cycle else CONSTANT
    (best,) = descend(
        [Alone(module)], step_loss, steps, peak, schedule, validate, every=per_epoch, clip=training.clip_max_norm,
        keep_start=training.keep_start, patience=training.stop_after_epochs,
        bar=f"training {what}" if show_progress_bars else None,
    )  # fmt: skip
    losses = history["validation_loss"] + history.get("start_loss", [])
    if not any(map(math.isfinite, losses)):
        raise RuntimeError(
            f"Expected a finite validation loss in the training of {what}, got none: it diverged. Lower the rate, e.g. "
            f"learning_rate={peak / 10:.0e}, and look for extreme values in the data."
        )
    if not math.isfinite(history["training_loss"][-1]):
        warnings.warn(
            f"Expected a finite loss in the training of {what}, got {history['training_loss'][-1]} in epoch "
            f"{len(history['training_loss'])}: the weights of the best epoch before are kept. Lower the rate, e.g. "
            f"learning_rate={peak / 10:.0e}.",
            FMCPEWarning,
            stacklevel=2,
        )
    module.load_state_dict(best)
    module.zero_grad(set_to_none=True)
    module.eval()
    return history
