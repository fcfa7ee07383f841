"""A user's simulator, checked: shapes, numbers, and rows at which it fails."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fmcpe import _turns
from fmcpe._ambient import user_code
from fmcpe._arrays import returned_numbers
from fmcpe._checks import finite_rows
from fmcpe._errors import FMCPEWarning
from fmcpe._options import SHARE, check_whole, is_number, is_positive
from fmcpe._progress import advance


class CheckedSimulator:
    """A user's simulator; every batch that it returns is checked.

    A row fails if the simulator returns NaN or an infinite value for it, or raises an arithmetic, value or run-time error
    when called with it: a batch that raises is halved until the rows concerned are found. All other errors pass through.

    Args:
        simulator: ``theta (N, p) -> x (N, *shape)``, torch or numpy; ``(N,)`` is taken for ``(N, 1)``.
        shape: Shape of one observation, if known.
        max_failed: Share of the rows of `attempt` that may fail.
        batch_size: Rows per call; all at once if None.
        timeout: Seconds that one call may take; no limit if None.

    It gets a copy of θ, so it may modify its argument, and runs with the caller's default dtype and threads.

    Attributes:
        tried: Number of rows simulated by `attempt`.
        failed: Number of these that failed.
        first: θ of the first failure, and its reason.
    """

    retries = 20
    """Attempts to repeat a failed row where a simulation is needed."""
    patience = 50
    """Failed rows without a success after which the simulator is taken to fail everywhere."""

    def __init__(
        self,
        simulator: Callable[[Tensor], Any],
        shape: torch.Size | None,
        max_failed: float = 0.1,
        batch_size: int | None = None,
        timeout: float | None = None,
    ) -> None:
        if not callable(simulator):
            kind, hint = type(simulator).__name__, "Pass simulator=my_function."
            if hasattr(simulator, "log_prob"):
                hint = "That is a distribution: call FMCPE(posterior, simulator, prior) or train_npe(simulator, prior)."
            raise TypeError(
                f"Expected simulator to be a function from theta (N, p) to data (N, ...), got a {kind}. {hint}"
            )
        if batch_size is not None:
            check_whole("simulation_batch_size", batch_size, 1, 100)
            batch_size = int(batch_size)
        if not is_number(max_failed, 0, SHARE[1]):
            raise ValueError(f"Expected max_failed of at least 0 and below 1, got {max_failed!r}. Try max_failed=0.1.")
        if timeout is not None and not is_positive(timeout):
            raise ValueError(f"Expected simulation_timeout to be a positive number, got {timeout!r}. Leave it out.")
        self.simulator, self.shape, self.max_failed, self.batch_size = simulator, shape, max_failed, batch_size
        self.timeout = timeout
        self.tried, self.failed, self.first = 0, 0, ""

    def __call__(self, theta: Tensor) -> Tensor:
        """A finite simulation for every row of θ; rows that fail are simulated again."""
        x, ok = self.insist(theta)
        if not bool(ok.all()):
            raise ValueError(
                f"Expected finite simulations, got NaN or infinite values for {int((~ok).sum())} of {len(theta)} rows, "
                f"{self.retries + 1} times each (first: theta={theta[~ok][0].tolist()}). Mend the simulator there, narrow the "
                "prior, or leave pairs at such θ out."
            )
        return x

    def insist(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Simulations (N, ...), those that fail tried again, and which rows succeeded in the end, (N,)."""
        x, ok = self.try_each(theta)
        for _ in range(self.retries):
            if bool(ok.all()):
                break
            x[~ok], ok[~ok] = self.try_each(theta[~ok], x.shape[1:])
        return x, ok

    def attempt(self, theta: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
        """Simulations (N, ...), tried once, and which rows succeeded, (N,); the others are NaN.

        `total` is the number of rows of all calls: more failures than its share `max_failed` are an error.
        """
        x, ok = self.try_each(theta)
        self.add(len(ok), int((~ok).sum()), self.first, total)
        return x, ok

    def add(self, tried: int, failed: int, first: str, total: int | None = None) -> None:
        """Count rows, and raise if too many failed; arguments as for `attempt` and the attributes."""
        self.tried, self.failed, self.first = self.tried + tried, self.failed + failed, self.first or first
        total = max(total or 0, self.tried)
        if self.failed > self.max_failed * total:
            raise ValueError(
                f"Expected a simulator that fails for at most {self.max_failed:.0%} of {total} rows, got {self.failed} with an "
                f"error, NaN or infinite values (first: {self.first}). Mend the simulator there, narrow the prior, or allow "
                f"more with max_failed={min(0.9, 2 * self.max_failed or 0.1):.2g}."
            )

    def warn(self, what: str = "simulations", stacklevel: int = 3) -> None:
        """Warn of the number of rows of `attempt` that failed, if any."""
        if self.failed:
            warnings.warn(
                f"Expected finite simulations, got {self.failed} of {self.tried} {what} that failed (first: {self.first}). "
                "They are dropped: the posterior takes θ at which the simulator fails for less likely. Mend it there, or "
                "narrow the prior, if that is not meant.",
                FMCPEWarning,
                stacklevel=stacklevel,
            )

    def shape_of_one(self, theta: Tensor) -> torch.Size:
        """Shape of one observation, from as few of these rows as it takes."""
        for rows in theta[: self.patience].split(2):
            x, ok = self.try_each(rows)
            if bool(ok.any()):
                return x.shape[1:]
        raise ValueError(self._always())

    def _always(self) -> str:
        return (
            f"Expected a simulator that runs at draws of the prior, got one that fails at all that were tried (first: "
            f"{self.first}). It is given a torch tensor (N, p), one row per simulation; call it yourself: "
            "simulator(prior.sample((2,)))."
        )

    def try_each(self, theta: Tensor, shape: torch.Size | None = None) -> tuple[Tensor, Tensor]:
        """Simulations, NaN where they failed, and which did not."""
        parts: list[tuple[int, Tensor | None]] = []
        for rows in theta.split(self.batch_size or max(1, len(theta))):
            parts += self._rows(rows, any(x is not None for _, x in parts))
            advance(len(rows))
        found = next((x.shape[1:] for _, x in parts if x is not None), shape or self.shape)
        if found is None:
            found = torch.Size((1,))
        filled = [torch.full((n, *found), torch.nan, device=theta.device) if x is None else x for n, x in parts]
        x = filled[0] if len(filled) == 1 else torch.cat(filled)
        ok = finite_rows(x)
        if not bool(ok.all()):
            self.first = self.first or f"theta={theta[~ok][0].tolist()}: NaN or infinite"
            x = x.clone()
            x[~ok] = torch.nan
        return x, ok

    def _rows(self, theta: Tensor, works: bool) -> list[tuple[int, Tensor | None]]:
        """Simulations of consecutive rows; None for a row at which the simulator raises."""
        try:
            with user_code() as running:
                out = within(self.timeout, self.simulator, theta.clone(), running)
        except NotImplementedError:
            raise
        except (ArithmeticError, ValueError, RuntimeError) as error:
            if len(theta) == 1:
                self.first = self.first or f"theta={theta[0].tolist()}: {type(error).__name__}: {error}"
                return [(1, None)]
            return self._halves(theta, works, error)
        return [(len(theta), self._checked(out, theta))]

    def _halves(self, theta: Tensor, works: bool, error: Exception) -> list[tuple[int, Tensor | None]]:
        parts: list[tuple[int, Tensor | None]] = []
        for half in theta.split(-(-len(theta) // 2)):
            parts += self._rows(half, works or any(x is not None for _, x in parts))
            if not works and len(parts) > self.patience and all(x is None for _, x in parts):
                raise ValueError(self._always()) from error
        return parts

    def _checked(self, out: Any, theta: Tensor) -> Tensor:
        """The output of the simulator as a tensor (N, ...)."""
        number = theta.shape[0]
        if out is None:
            raise TypeError(
                "Expected the simulator to return a tensor or array of numbers, got None. End it with return x."
            )
        # a copy: simulators may return the same buffer again and again
        x = returned_numbers(out, "the simulator", theta.device, rows=20)
        if x.shape == (number,):
            x = x[:, None]
        fits = x.ndim >= 2 if self.shape is None else x.shape[1:] == self.shape
        if not fits or x.shape[0] != number:
            shape = f"({number}, ...)" if self.shape is None else (number, *self.shape)
            raise ValueError(
                f"Expected the simulator to return shape {shape}, one row per row of theta, got {tuple(x.shape)} for "
                f"theta of shape {tuple(theta.shape)}. Wrap a simulator of one parameter vector: lambda theta: "
                "torch.stack([torch.as_tensor(simulate_one(row)) for row in theta])."
            )
        self.shape = x.shape[1:]  # it must not change between calls
        return x


def within(seconds: float | None, function: Callable[[Tensor], Any], theta: Tensor, running: user_code) -> Any:
    """``function(theta)``; a `TimeoutError` if it takes longer.

    With a limit it runs in a thread of its own, which Python cannot end: after a `TimeoutError` it goes on until it returns.
    """
    if seconds is None:
        return function(theta)
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        _turns.join(running.turn)
        try:
            with torch.no_grad():
                found.append(function(theta))
        except BaseException as error:
            failed.append(error)
        finally:
            _turns.leave(running.turn)

    thread = threading.Thread(target=run, daemon=True, name="fmcpe simulator")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(
            f"Expected the simulator to return within {seconds:g} s, got nothing for {len(theta)} row(s) (first: "
            f"theta={theta[0].tolist()}). Raise simulation_timeout, or lower simulation_batch_size."
        )
    if failed:
        raise failed[0]
    return found[0]
