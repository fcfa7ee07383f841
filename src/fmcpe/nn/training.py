"""The one training loop, `descend`: gradient steps with clipping and early stopping, for one network or a batch of them.

Candidates train the members of all folds together on one cycle of the learning rate. `train` goes through rows of data in
minibatches and keeps the weights that validate best: `train_npe` on one cycle, baselines that see few pairs at a fixed rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, OneCycleLR
from tqdm.auto import tqdm

from fmcpe.nn.ensemble import Alone, Stacked, Weights

Schedule = Callable[[torch.optim.Optimizer], LRScheduler]
CONSTANT: Schedule = partial(ConstantLR, factor=1.0)


def one_cycle(learning_rate: float, steps: int, rise: float) -> Schedule:
    """Up to the peak over a share of the steps, and down to zero; a rise of one step would have no length."""
    length = max(math.ceil(2 / rise), steps)
    return lambda optimiser: OneCycleLR(optimiser, learning_rate, total_steps=length, pct_start=rise)


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
    """Train networks with Adam, each of K members; their weights end where the last step left them.

    Args:
        networks: What is trained together, of K members each.
        loss: Step number to the loss of each member, (K,).
        steps: Gradient steps.
        learning_rate: Of Adam; the peak of a cycle.
        schedule: Of the learning rate; one cycle if None.
        validate: Validation loss of each member, (K,).
        every: Steps between two validations; a twentieth of all if None.
        clip: Largest gradient norm of each member of each network.
        keep_start: Whether the weights as they came compete with the trained ones.
        patience: Validations without a better loss of any member after which training ends.
        bar: What a progress bar says once training takes more than two seconds; none if None.

    Returns:
        The weights of each network at its best validation loss, member by member, or the last ones without validation.
    """
    optimiser = torch.optim.Adam([w for each in networks for w in each.weights.values()], lr=learning_rate, fused=True)
    scheduler = (schedule or one_cycle(learning_rate, steps, 0.1))(optimiser)
    every, waited = every or max(1, steps // 20), 0
    best = [each.snapshot() for each in networks]
    lowest = validate() if validate is not None and keep_start else torch.tensor(torch.inf)
    for step in tqdm(range(steps), desc=bar, delay=2, disable=bar is None, leave=False):
        optimiser.zero_grad()
        loss(step).sum().backward()
        for each in networks:
            each.clip(clip)
        optimiser.step()
        scheduler.step()
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
    """How a network is trained.

    Args:
        max_num_epochs: Passes over the training rows; the length of the cycle where there is one.
        training_batch_size: Rows per gradient step.
        learning_rate: Of Adam; the peak where there is a cycle.
        validation_fraction: Share of the rows that picks the best weights and is not trained on.
        stop_after_epochs: Epochs without a better validation loss after which training ends early.
        clip_max_norm: Largest gradient norm.
        one_cycle: Whether the rate rises to its peak and falls to zero; it is constant otherwise.
        keep_start: Whether the weights as they came compete with the trained ones, as they should when they were trained
            before.
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
        for name in ("max_num_epochs", "training_batch_size", "stop_after_epochs"):
            value = getattr(self, name)
            self._require(name, isinstance(value, Integral) and int(value) >= 1, "a whole number of at least 1")
        for name in ("learning_rate", "clip_max_norm", "validation_fraction"):
            value = getattr(self, name)
            self._require(name, isinstance(value, Real) and 0 < float(value) < math.inf, "a positive number")
        self._require("validation_fraction", self.validation_fraction < 1, "a number between 0 and 1")

    def _require(self, name: str, ok: bool, expected: str) -> None:
        if not ok:
            default = Training.__dataclass_fields__[name].default
            raise ValueError(f"{name}={getattr(self, name)!r} came; {expected} was expected. Try {name}={default}.")


def train(
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    number: int,
    training: Training,
    what: str,
    show_progress_bars: bool = False,
) -> dict[str, list[float]]:
    """Minimise the mean of `loss` over rows; `module` ends with the weights that validate best, in evaluation mode.

    Args:
        module: What is trained.
        loss: Row numbers (B,) to the loss of each, (B,).
        number: How many rows there are.
        training: The settings.
        what: What is trained, for the progress bar and for errors.
        show_progress_bars: Whether to show progress once training takes more than two seconds.

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
            f"training of {what} diverged: the validation loss was never finite. Lower the rate, e.g. "
            f"learning_rate={peak / 10:.0e}, and look for extreme values in the data."
        )
    module.load_state_dict(best)
    module.zero_grad(set_to_none=True)
    module.eval()
    return history
