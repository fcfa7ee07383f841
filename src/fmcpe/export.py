"""Exports of a corrected posterior: ArviZ, pandas, and simulations for a predictive check."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from fmcpe._checks import as_tensor
from fmcpe._random import derive, seeded
from fmcpe.io.draws import attributes_of
from fmcpe.io.tables import Array, optional

if TYPE_CHECKING:
    from fmcpe.diagnostics.predictive import PredictiveCheck
    from fmcpe.posterior import CorrectedPosterior


class Exports:
    """Methods of `CorrectedPosterior` for other tools."""

    simulator: Callable[[Tensor], Any] | None = None
    """That of the fit; files do not contain it."""

    def predictive(
        self,
        x: Any = None,
        simulator: Callable[[Tensor], Any] | None = None,
        *,
        num_samples: int = 500,
        seed: int | None = 0,
    ) -> PredictiveCheck:
        """Simulations at draws for one observation: a posterior predictive check, see `fmcpe.diagnostics.predictive`.

        Args:
            x: The real observation; the default one if None.
            simulator: ``theta (N, p) -> x (N, ...)``; by default that of the fit, which a file does not contain.
            num_samples: Draws, with one simulation at each.
            seed: Of draws and simulations.
        """
        from fmcpe.diagnostics.predictive import predictive

        return predictive(cast("CorrectedPosterior", self), x, simulator, num_samples=num_samples, seed=seed)

    def to_dataframe(
        self,
        x: Any = None,
        *,
        num_samples: int = 1000,
        labels: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Any:
        """Draws as a pandas DataFrame: a column per parameter; for a batch, also the columns observation and draw.

        Args:
            x: One real observation or a batch, (B, ...); the default one if None.
            num_samples: Draws for each observation.
            labels: Of the observations; 1, 2, ... if None.
            seed: Makes the draws reproducible.
        """
        posterior = cast("CorrectedPosterior", self)
        y, one = _observations(posterior, x)
        frame = posterior.draws(num_samples, y, labels=labels, seed=seed).to_dataframe()
        return frame[list(posterior.names)] if one else frame

    def to_arviz(
        self,
        x: Any = None,
        *,
        num_samples: int = 1000,
        chains: int = 4,
        predictive: bool | Callable[[Tensor], Any] = False,
        labels: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Any:
        """Draws for ArviZ: a DataTree since ArviZ 1, InferenceData before.

        Groups: ``posterior`` with a variable per parameter, ``prior`` (draws of the target prior), ``observed_data`` (y), and
        ``posterior_predictive`` on demand. Draws are independent, so that chains are only parts of them: every R̂ is 1.

        Args:
            x: One real observation, or a batch (B, ...), which adds the dimension ``observation``; the default one if None.
            num_samples: Draws in each chain, for each observation.
            chains: Number of chains.
            predictive: Whether to simulate at each draw: True with the simulator of the fit, or a simulator.
            labels: Of the observations; 1, 2, ... if None.
            seed: Of all draws.
        """
        posterior = cast("CorrectedPosterior", self)
        y, one = _observations(posterior, x)
        if chains < 1 or num_samples < 1:
            raise ValueError(
                f"Expected at least one chain and one draw, got {chains} and {num_samples}. Leave chains out."
            )
        draws = posterior.draws(chains * num_samples, y, labels=labels, seed=derive(seed, "posterior"))
        with seeded(derive(seed, "prior")):
            # one dimension, as sbi's priors of mixed families want it
            prior = posterior.shared.target_prior.sample(torch.Size((num_samples,)))[None].cpu().numpy()
        theta = draws.theta.reshape(len(y), chains, num_samples, -1).transpose(
            1, 2, 0, 3
        )  # (chain, draw, observation, p)
        dims = ("chain", "draw") if one else ("chain", "draw", "observation")
        axes = [f"y_dim_{k}" for k in range(len(posterior.observation_shape))]
        observed, where = (y[0], axes) if one else (y, ["observation", *axes])
        groups: dict[str, dict[str, tuple[Any, ...]]] = {
            "posterior": {
                n: (dims, theta[..., 0, k] if one else theta[..., k], attributes_of(posterior.units, k))
                for k, n in enumerate(posterior.names)
            },
            "prior": {
                n: (("chain", "draw"), prior[..., k], attributes_of(posterior.units, k))
                for k, n in enumerate(posterior.names)
            },
            "observed_data": {"y": (where, observed.cpu().numpy())},
        }
        if predictive is not False:
            simulations = _simulations(posterior, theta, None if predictive is True else predictive, seed)
            groups["posterior_predictive"] = {
                "y": (("chain", "draw", *where), simulations[:, :, 0] if one else simulations)
            }
        coords = {} if one else {"observation": draws.labels}
        return _tree(groups, coords, posterior.method)


def _simulations(
    posterior: CorrectedPosterior, theta: Array, simulator: Callable[[Tensor], Any] | None, seed: int | None
) -> Array:
    """A simulation at each θ of (chain, draw, observation, p): (chain, draw, observation, ...)."""
    from fmcpe._simulator import CheckedSimulator

    simulator = posterior.simulator if simulator is None else simulator
    if simulator is None:
        raise ValueError(
            "Expected a simulator, got none: a file does not contain it. Pass predictive=my_simulator, or leave it out."
        )
    flat = torch.as_tensor(theta).flatten(0, 2).to(posterior.space.standardiser.mean)
    with seeded(derive(seed, "simulator")):
        x = CheckedSimulator(simulator, posterior.observation_shape)(flat)
    return x.cpu().numpy().reshape(*theta.shape[:3], *posterior.observation_shape)


def _observations(posterior: CorrectedPosterior, x: Any) -> tuple[Tensor, bool]:
    """A batch of observations, and whether it was given as one."""
    if x is None:
        return posterior._x_else_default_x(None), True
    y = posterior._as_observations(x)
    return y, len(y) == 1 and as_tensor(x, "x").shape == posterior.observation_shape


def _tree(groups: dict[str, dict[str, Any]], coords: dict[str, Any], method: str) -> Any:
    """InferenceData where ArviZ has it, otherwise a DataTree."""
    from fmcpe import __version__

    xarray = optional("xarray", "ArviZ")
    attributes = {"inference_library": "fmcpe", "inference_library_version": __version__, "method": method}
    sets = {}
    for name, variables in groups.items():
        used = {dim for dims, *_ in variables.values() for dim in dims}
        sizes = {
            dim: size for dims, value, *_ in variables.values() for dim, size in zip(dims, value.shape, strict=True)
        }
        index = {dim: np.arange(sizes[dim]) for dim in ("chain", "draw") if dim in used}
        sets[name] = xarray.Dataset(variables, index | {k: v for k, v in coords.items() if k in used}, attributes)
    # without ArviZ, or since ArviZ 1, the tree is xarray's
    arviz = importlib.import_module("arviz") if importlib.util.find_spec("arviz") else None
    if hasattr(arviz, "InferenceData"):
        return cast(Any, arviz).InferenceData(**sets)
    return xarray.DataTree.from_dict(sets)
