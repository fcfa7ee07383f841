"""Fitting the method of a unit: `fmcpe.bench.methods` with the unit's budget."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from fmcpe.bench.units import SIMULATION_TRAINED, Unit

if TYPE_CHECKING:
    from fmcpe import Paper, Stack
    from fmcpe.tasks import Task


def fitted(unit: Unit, task: Task, base: Any, wrap: Callable[[Callable], Callable] | None = None) -> Any:
    """Fit the unit's method to its calibration pairs and return the posterior.

    Args:
        unit: The unit.
        task: Its task.
        base: Its base posterior, if it has one.
        wrap: Applied to the simulator, to time it.
    """
    theta, y = task.calibration_set(unit.pairs, unit.set) if unit.pairs else (None, None)
    method = build(unit, task, base)
    if wrap is not None and getattr(method, "simulator", None) is not None:
        method.simulator = wrap(method.simulator)
    return method.fit(theta, y, seed=unit.seed, show_progress_bars=False)


def build(unit: Unit, task: Task, base: Any) -> Any:
    """The unfitted method."""
    from fmcpe import FMCPE
    from fmcpe._random import seeded
    from fmcpe.bench.methods import METHODS

    changed = dict(unit.recipe)
    if unit.method.startswith("fmcpe"):
        return FMCPE(base, task.simulator, task.prior, recipe=recipe_of(unit.method, changed), names=task.theta_names)
    if ":" in unit.method:
        return own_method(unit.method, base, task)
    if unit.method not in METHODS:
        raise ValueError(f"Expected one of {', '.join(METHODS)}, got method {unit.method!r}. Pass --method fmcpe.")
    with seeded(unit.seed):
        simulations = None
        if unit.method in SIMULATION_TRAINED and task.simulation_prior is not task.prior:
            theta = task.simulation_prior.sample((unit.simulations,))
            simulations = theta, task.simulator(theta)
        method: Any = METHODS[unit.method](base, task, simulations)
    if unit.method in SIMULATION_TRAINED:
        method.num_simulations, method.domain_randomisation = unit.simulations, unit.randomised
        method.training = replace(method.training, max_num_epochs=unit.epochs)
    elif "epochs" in changed and hasattr(method, "training"):
        method.training = replace(method.training, max_num_epochs=changed["epochs"])
    return method


def own_method(path: str, base: Any, task: Task) -> Any:
    """A user-defined method ``package.module:Name``, called with those of ``posterior``, ``simulator``, ``prior`` and
    ``embedding_net`` that it takes.
    """
    factory = own_factory(path)
    known = {"posterior": base, "simulator": task.simulator, "prior": task.prior, "embedding_net": task.embedding_net()}
    taken = inspect.signature(factory).parameters
    return _OwnMethod(factory(**{name: value for name, value in known.items() if name in taken}))


def own_factory(path: str) -> Callable[..., Any]:
    """The object that ``package.module:Name`` names."""
    module, _, name = path.partition(":")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"Expected package.module:Name that can be imported, got {path!r} ({error}). Check the spelling, and that the "
            "module is installed or in PYTHONPATH."
        ) from error
    return factory


class _OwnMethod:
    """Adapter of a method with ``fit(theta, y)`` to the benchmark's interface."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def fit(self, theta: Any, y: Any, *, seed: int | None = None, show_progress_bars: bool = True) -> Any:
        from fmcpe._random import seeded

        with seeded(seed):
            posterior = self.method.fit(theta, y)
        return posterior if hasattr(posterior, "sample_batched") else _OneByOne(posterior)


class _OneByOne:
    """Adapter of a posterior with ``sample(sample_shape, x=)``, called once per observation."""

    def __init__(self, posterior: Any) -> None:
        self.posterior = posterior

    def sample_batched(self, sample_shape: tuple[int, ...], x: Any, **_: Any) -> Any:
        import torch

        draws = [torch.as_tensor(self.posterior.sample(sample_shape, x=each), dtype=torch.float32) for each in x]
        return torch.stack(draws, dim=len(sample_shape))


def recipe_of(method: str, changed: dict[str, Any]) -> Stack | Paper:
    """The recipe of a method, and of a `Stack` its candidates, with fields changed; fields they do not have are ignored."""
    from fmcpe import Paper, Stack

    if method.startswith("fmcpe-paper"):
        stages: Any = method.removeprefix("fmcpe-paper").removeprefix("-") or "joint"
        return _changed(Paper(stages=stages), changed)
    stack = _changed(Stack(), changed)
    return replace(stack, candidates=tuple(_changed(candidate, changed) for candidate in stack.candidates))


def _changed(options: Any, changed: dict[str, Any]) -> Any:
    known = {field.name for field in fields(options)}
    return replace(options, **{name: value for name, value in changed.items() if name in known})
