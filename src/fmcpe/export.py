"""Outputs of a corrected posterior: files, reports, ArviZ, pandas, and simulations for a predictive check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from fmcpe._random import derive, seeded
from fmcpe.io.columns import Array
from fmcpe.io.draws import Draws, inference_data, variables

if TYPE_CHECKING:
    from fmcpe.diagnostics.predictive import PredictiveCheck
    from fmcpe.posterior import CorrectedPosterior


class Exports:
    """Methods of `CorrectedPosterior` for files, reports and other tools."""

    simulator: Callable[[Tensor], Any] | None = None
    """The simulator of the fit; files do not contain it."""

    def save(self, path: str | Path) -> Path:
        """Write one file that `fmcpe.load` reads; see `fmcpe.serialization.files`."""
        from fmcpe.serialization.files import save

        return save(cast("CorrectedPosterior", self), path)

    def report(self, path: str | Path, x: Any = None, *, learning_curve: Any = None, seed: int = 0) -> Path:
        """Write the trust report: one HTML file on how far to trust this posterior, and why, and a JSON file with its numbers.

        Args:
            path: The HTML file; the numbers go to the same name with ``.json``.
            x: Real observations to include, (B, ...).
            learning_curve: Result of `fmcpe.diagnostics.learning_curve`, if it was computed.
            seed: Seed of bootstrap, permutations and draws.
        """
        from fmcpe.diagnostics.report import write_report

        return write_report(cast("CorrectedPosterior", self), path, x, learning_curve, seed=seed)

    def _repr_html_(self) -> str:
        from fmcpe.diagnostics.report import short_html

        return short_html(cast("CorrectedPosterior", self))

    def draws(
        self, num_samples: int = 1000, x: Any = None, *, labels: Sequence[str] | None = None, seed: int | None = None
    ) -> Draws:
        """Draws with the parameters' names, for tables, files (csv, npz, netCDF), pandas and ArviZ.

        Args:
            num_samples: Draws for each observation.
            x: One real observation or a batch, (B, ...); the default one if None.
            labels: Labels of the observations; 1, 2, ... if None.
            seed: Makes the draws reproducible.
        """
        posterior = cast("CorrectedPosterior", self)
        return Draws.of(posterior, posterior._observations(x)[0], num_samples, labels, seed)

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
            simulator: ``theta (N, p) -> x (N, ...)``; by default the one of the fit, which files do not contain.
            num_samples: Number of draws, each with one simulation.
            seed: Seed of draws and simulations.
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
            labels: Labels of the observations; 1, 2, ... if None.
            seed: Makes the draws reproducible.
        """
        posterior = cast("CorrectedPosterior", self)
        y, one = posterior._observations(x)
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
        ``posterior_predictive`` on demand. Draws are independent; chains only divide them, so every R̂ is 1.

        Args:
            x: One real observation, or a batch (B, ...), which adds the dimension ``observation``; the default one if None.
            num_samples: Draws in each chain, for each observation.
            chains: Number of chains.
            predictive: Whether to simulate at each draw: True with the simulator of the fit, or a simulator.
            labels: Labels of the observations; 1, 2, ... if None.
            seed: Seed of all draws.
        """
        posterior = cast("CorrectedPosterior", self)
        y, one = posterior._observations(x)
        if chains < 1 or num_samples < 1:
            raise ValueError(
                f"Expected at least one chain and one draw, got {chains} and {num_samples}. Leave chains out."
            )
        draws = posterior.draws(chains * num_samples, y, labels=labels, seed=derive(seed, "posterior"))
        with seeded(derive(seed, "prior")):
            # one dimension, as sbi's priors of mixed families want it
            prior = posterior.shared.target_prior.sample(torch.Size((num_samples,)))[None].cpu().numpy()
        # (chain, draw, observation, p)
        theta = draws.theta.reshape(len(y), chains, num_samples, -1).transpose(1, 2, 0, 3)
        dims = ("chain", "draw") if one else ("chain", "draw", "observation")
        axes = [f"y_dim_{k}" for k in range(len(posterior.observation_shape))]
        observed, where = (y[0], axes) if one else (y, ["observation", *axes])
        groups: dict[str, dict[str, tuple[Any, ...]]] = {
            "posterior": variables(posterior.names, posterior.units, dims, theta[:, :, 0] if one else theta),
            "prior": variables(posterior.names, posterior.units, ("chain", "draw"), prior),
            "observed_data": {"y": (where, observed.cpu().numpy())},
        }
        if predictive is not False:
            simulations = _simulations(posterior, theta, None if predictive is True else predictive, seed)
            groups["posterior_predictive"] = {
                "y": (("chain", "draw", *where), simulations[:, :, 0] if one else simulations)
            }
        coords = {} if one else {"observation": draws.labels}
        return inference_data(groups, coords, {"method": posterior.method})


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
