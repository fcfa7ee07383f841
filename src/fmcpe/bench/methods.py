"""A method's name, and how it is fitted."""

from __future__ import annotations

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
    from fmcpe import FMCPE

    if unit.method.startswith("fmcpe"):
        name = unit.method.removeprefix("fmcpe").removeprefix("-paper").removeprefix("-")
        recipe = made_smaller("paper" if "-paper" in unit.method else "default", dict(unit.recipe))
        return FMCPE(base, simulator, task.prior, recipe=recipe, stages=name or "joint")  # type: ignore[arg-type]
    return _baseline(unit, task, base, simulator)


def _baseline(unit: Unit, task: Task, base: Any, simulator: Simulator) -> Any:
    from fmcpe import baselines
    from fmcpe._random import seeded

    with seeded(unit.seed):
        embedding_net = task.embedding_net()
        pool = None
        if task.simulation_prior is not task.prior:  # the pool is of simulations, and those come from the wrong prior
            theta = task.simulation_prior.sample((5000,))
            pool = theta, simulator(theta)
    few = dict(unit.recipe)  # of a smoke test: fewer epochs than each baseline's own
    training = {} if "epochs" not in few else {"training": _shortened(unit.method, few["epochs"])}
    own = {"training": _shortened(unit.method, unit.epochs)}
    if unit.method == "npe":
        return baselines.NPE(base, task.prior)
    if unit.method == "dpe":
        return baselines.DPE(task.prior, embedding_net, **training)
    if unit.method == "mf-npe":
        return baselines.MFNPE(base, task.prior, **training)
    if unit.method == "rope":
        return baselines.RoPE(base, simulator, task.prior, simulations=pool, **training)
    if unit.method == "nnpe":
        return baselines.NNPE(simulator, task.simulation_prior, unit.simulations, embedding_net, **own)
    if unit.method == "j-npe":
        return baselines.JNPE(simulator, task.simulation_prior, unit.simulations, embedding_net, **own)
    raise ValueError(f"there is no method named {unit.method!r}; see fmcpe.bench.plan.METHODS.")


def _shortened(method: str, epochs: int) -> Any:
    """A baseline's own training with another number of epochs."""
    from fmcpe.baselines import dpe, mfnpe, rope
    from fmcpe.training import Training

    own = {"dpe": dpe.FEW_PAIRS, "mf-npe": mfnpe.FINE_TUNING, "rope": rope.MATCHING}.get(method, Training())
    return replace(own, max_num_epochs=epochs)


def made_smaller(name: str, changed: dict[str, Any]) -> Any:
    """A recipe with some fields changed; fields that this recipe does not have are left out."""
    from fmcpe import Recipe

    recipe = Recipe.paper() if name == "paper" else Recipe.default()
    known = {f.name for f in fields(recipe)}
    return replace(recipe, **{field: value for field, value in changed.items() if field in known})
