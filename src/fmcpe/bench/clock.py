"""A profile of a fit: seconds in gradient steps, base draws, x-transport, simulation, closed forms and scoring.

The library's functions are wrapped during one fit, so that the method contains no timing code. Time counts for the innermost
wrapped function, except that "scoring" includes the calls inside it. The remainder is "other".
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PARTS = ("gradient steps", "base draws", "x-transport", "simulation", "closed forms", "scoring", "other")

_WRAPPED = (
    ("gradient steps", "torch", "Tensor.backward"),
    ("gradient steps", "torch.optim", "Adam.step"),
    ("gradient steps", "torch.optim", "AdamW.step"),
    ("gradient steps", "fmcpe.candidates.paper", "matching_loss"),
    ("gradient steps", "fmcpe.candidates.joint_flow", "descend"),
    ("gradient steps", "fmcpe.candidates.fine_tuned", "descend"),
    ("base draws", "fmcpe.base_posteriors.base", "BasePosterior.sample"),
    ("x-transport", "fmcpe.candidates.joint_flow", "JointFlowed.carry_x"),
    ("x-transport", "fmcpe.candidates.joint_flow", "carry"),
    ("closed forms", "fmcpe.candidates.synthetic_likelihood", "fit_conjugate"),
    ("closed forms", "fmcpe.candidates.synthetic_likelihood", "SyntheticPosterior.sample"),
    ("closed forms", "fmcpe.candidates.residual_shift", "fit_ridge"),
    ("scoring", "fmcpe.stacking", "Distances.of"),
    ("scoring", "fmcpe.stacking", "stack_weights"),
    ("scoring", "fmcpe.stacking", "recalibration"),
)
"""Functions of each part; names that this version does not have are skipped."""


class Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._stack, self._since = ["other"], time.perf_counter()

    def timed(self, part: str, function: Callable) -> Callable:
        """`function`, wrapped so that its time counts for `part`."""

        @functools.wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if "scoring" in self._stack:
                return function(*arguments, **options)
            self._switch()
            self._stack.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self._switch()
                self._stack.pop()

        return wrapper

    def _switch(self) -> None:
        now = time.perf_counter()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now


@contextmanager
def timed_parts() -> Iterator[Clock]:
    """Wrap the library's functions during the block; afterwards the clock holds the seconds."""
    clock, undo = Clock(), []
    try:
        for part, module, path in _WRAPPED:
            try:
                owner: Any = importlib.import_module(module)
            except ModuleNotFoundError:
                continue
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent, None)
            if owner is None or not hasattr(owner, name):
                continue
            inherited = isinstance(owner, type) and name not in vars(owner)
            undo.append((owner, name, None if inherited else getattr(owner, name)))
            setattr(owner, name, clock.timed(part, getattr(owner, name)))
        clock._since = time.perf_counter()  # exclude the imports above
        yield clock
    finally:
        clock._switch()
        for owner, name, function in reversed(undo):
            if function is None:
                delattr(owner, name)
            else:
                setattr(owner, name, function)
