"""A time limit for calls of user code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fmcpe import _turns
from fmcpe._ambient import user_code


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
