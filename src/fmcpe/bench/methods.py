"""A method's name, and how it is fitted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from fmcpe.bench.units import Unit

if TYPE_CHECKING:
    from torch import Tensor

    from fmcpe.tasks import Task

Simulator = Callable[["Tensor"], "Tensor"]


def fitted(unit: Unit, task: Task, base: Any, simulator: Simulator | None = None) -> Any:
    """The posterior that the unit's method makes of its calibration pairs.

    Args:
        unit: What is asked for.
        task: Its task.
        base: Its base posterior.
        simulator: In place of the task's, where its time is taken.
    """
    theta, y = task.calibration_set(unit.pairs, unit.set) if unit.pairs else (None, None)
    method = build(unit, task, base, simulator or task.simulator)
    return method.fit(theta, y, seed=unit.seed, show_progress_bars=False)


def build(unit: Unit, task: Task, base: Any, simulator: Simulator) -> Any:
    """The unfitted method."""
    from fmcpe import FMCPE, baselines

    if unit.method.startswith("fmcpe"):
        name = unit.method.removeprefix("fmcpe").removeprefix("-paper").removeprefix("-")
        recipe = made_smaller("paper" if "-paper" in unit.method else "default", dict(unit.recipe))
        return FMCPE(base, simulator, task.prior, recipe=recipe, stages=name or "joint")  # type: ignore[arg-type]
    classes = {"npe": "NPE", "dpe": "DPE", "mf-npe": "MFNPE", "rope": "RoPE", "nnpe": "NNPE", "j-npe": "JNPE"}
    if unit.method not in classes:
        raise ValueError(f"there is no method named {unit.method!r}; see fmcpe.bench.plan.METHODS.")
    made = getattr(baselines, classes[unit.method], None)
    if made is None:
        raise NotImplementedError(f"fmcpe.baselines has no {classes[unit.method]} in this version.")
    return made(base, task.prior)


def made_smaller(name: str, changed: dict[str, Any]) -> Any:
    """A recipe with some fields changed; fields that this recipe does not have are left out."""
    from fmcpe import Recipe

    recipe = Recipe.paper() if name == "paper" else Recipe.default()
    known = {f.name for f in fields(recipe)}
    return replace(recipe, **{field: value for field, value in changed.items() if field in known})


def accepts(function: Callable, name: str) -> bool:
    """Whether a function has an argument of that name."""
    return name in inspect.signature(function).parameters
