"""One training loop for every network that is fitted to rows of data: minibatches, a held-out part, the best weights kept.

`train_npe` runs it on one cycle of the learning rate, the baselines that see only a few pairs at a fixed one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm


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
    steps_per_epoch = max(1, len(rows) // training.training_batch_size)
    epochs, peak = training.max_num_epochs, training.learning_rate
    optimiser = torch.optim.Adam(module.parameters(), lr=peak, fused=True)
    schedule: torch.optim.lr_scheduler.LRScheduler = (
        torch.optim.lr_scheduler.OneCycleLR(
            # the rise of a cycle of five steps would have no length
            optimiser,
            peak,
            total_steps=max(10, epochs * steps_per_epoch),
            pct_start=0.2,
        )
        if training.one_cycle
        else torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)
    )

    def validate() -> float:
        module.eval()
        with torch.no_grad():
            return float(torch.cat([loss(part) for part in validation.split(2000)]).mean())

    history: dict[str, list[float]] = {"training_loss": [], "validation_loss": []}
    best, best_epoch, best_state = float("inf"), 0, {}
    if training.keep_start:
        best, best_state = validate(), copy.deepcopy(module.state_dict())
        history["start_loss"] = [best]
    bar = tqdm(range(epochs), desc=f"training {what}", delay=2, disable=not show_progress_bars, leave=False)
    for epoch in bar:
        module.train()
        shuffled, total = rows[torch.randperm(len(rows))], 0.0
        for batch in shuffled.tensor_split(steps_per_epoch):
            value = loss(batch).mean()
            optimiser.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(module.parameters(), training.clip_max_norm)
            optimiser.step()
            schedule.step()
            total += float(value.detach()) / steps_per_epoch
        validated = validate()
        history["training_loss"].append(total)
        history["validation_loss"].append(validated)
        bar.set_postfix_str(f"validation loss {validated:.3f}")
        if validated < best:
            best, best_epoch, best_state = validated, epoch, copy.deepcopy(module.state_dict())
        if epoch - best_epoch >= training.stop_after_epochs:
            break
    if not best_state or not math.isfinite(best):
        raise RuntimeError(
            f"training of {what} diverged: the validation loss was never finite. Lower the rate, e.g. "
            f"learning_rate={peak / 10:.0e}, and look for extreme values in the data."
        )
    module.load_state_dict(best_state)
    module.zero_grad(set_to_none=True)
    module.eval()
    return history
