"""The corrected posterior: an sbi `NeuralPosterior` whose ``x=`` is a real observation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from sbi.inference.posteriors.base_posterior import NeuralPosterior
from sbi.inference.potentials.base_potential import BasePotential
from torch import Tensor

from fmcpe._ambient import settled
from fmcpe._checks import (
    as_observation,
    as_observations,
    as_sample_shape,
    as_tensor,
    as_theta,
    check_prior_device,
    check_sbi_options,
)
from fmcpe._errors import FMCPEWarning
from fmcpe._names import default_names, in_order
from fmcpe._options import check_whole
from fmcpe._progress import Progress
from fmcpe._random import seeded
from fmcpe.candidates.base import Posterior, Shared
from fmcpe.export import Exports
from fmcpe.extrapolation import WithinRange
from fmcpe.in_range import RangeCheck
from fmcpe.intervals import WithIntervals
from fmcpe.record import HeldOut, Record
from fmcpe.search import cross_entropy_search


class CorrectedPosterior(Exports, WithIntervals, NeuralPosterior):
    """p(θ | y), as learned by `FMCPE.fit` or by a baseline. Every sbi tool that takes a posterior takes this one.

    Args:
        inner: The posterior in z.
        shared: Base posterior, prior and space.
        observation_shape: Shape of one real observation.
        record: What was fitted, and its scores on held-out pairs.
        held_out: The pairs and their cross-validated draws, for diagnostics; None without a stack.

    Example:
        >>> posterior.sample((1000,), x=y_obs, seed=0).shape, posterior.sample_batched((10,), x=y_test, seed=0).shape
        (torch.Size([1000, 1]), torch.Size([10, 50, 1]))
        >>> posterior.log_prob(theta_test, x=y_obs).shape
        torch.Size([50])
        >>> sum(posterior.weights.values())  # of the candidates
        1.0
    """

    max_numbers = 2_000_000
    """Resource limit: numbers of x̃ in memory while drawing."""

    def __init__(
        self,
        inner: Posterior,
        shared: Shared,
        observation_shape: Sequence[int],
        record: Record,
        held_out: HeldOut | None = None,
    ) -> None:
        self.inner, self.shared = inner.eval().requires_grad_(False), shared
        units = record.units or tuple(getattr(shared.base.prior, "units", ()))
        self.record = replace(record, names=record.names or shared.base.names or (), units=units)
        self.observation_shape = torch.Size(observation_shape)
        self.space, self.prior = shared.space, shared.space.prior
        self._best: Tensor | None = None
        self.held_out = held_out
        super().__init__(
            CorrectedPotential(self, self.prior),
            theta_transform=self.space.transform,
            device=str(self.space.standardiser.mean.device),
        )
        self._purpose = "It corrects a simulation-trained posterior with real measurements; x is a real observation."

    @property
    def weights(self) -> dict[str, float]:
        """Stacking weight of each candidate, the largest first; empty where nothing was stacked."""
        return dict(self.record.weights)

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names."""
        return self.record.names or default_names(self.space.dim)

    @property
    def units(self) -> tuple[str, ...]:
        """Units of the parameters, an empty string for none; empty if none were given."""
        return self.record.units

    @property
    def method(self) -> str:
        """Name of the method that fitted it."""
        return self.record.method

    def sample(
        self,
        sample_shape: Any = (),
        x: Any = None,
        show_progress_bars: bool = True,
        *,
        seed: int | None = None,
        max_sampling_batch_size: int | None = None,
        **sbi_options: Any,
    ) -> Tensor:
        """Draw from p(θ | y) for one observation.

        Args:
            sample_shape: ``()``, ``5``, ``(3, 4)``, a list or a `torch.Size`.
            x: The real observation; the default one if None.
            show_progress_bars: Show progress after two seconds.
            seed: Makes the draw reproducible; torch's generator is left as it was.
            max_sampling_batch_size: Draws made at once; limited by memory if None.
            **sbi_options: Options of sbi's rejection sampler; they have no effect.

        Returns:
            Physical θ inside the prior's support, (*sample_shape, p).
        """
        check_sbi_options(sbi_options)
        shape, y = as_sample_shape(sample_shape), self._x_else_default_x(x)
        self._warn_out_of_range(y)
        draws = self._draw(y, shape.numel(), seed, show_progress_bars, max_sampling_batch_size)
        return draws[0].reshape(*shape, self.space.dim)

    def sample_batched(
        self,
        sample_shape: Any,
        x: Any,
        show_progress_bars: bool = True,
        *,
        seed: int | None = None,
        max_sampling_batch_size: int | None = None,
        **sbi_options: Any,
    ) -> Tensor:
        """Draw for each of a batch of observations: (*sample_shape, B, p). Arguments as for `sample`."""
        check_sbi_options(sbi_options)
        shape, y = as_sample_shape(sample_shape), self._as_observations(x)
        self._warn_out_of_range(y)
        draws = self._draw(y, shape.numel(), seed, show_progress_bars, max_sampling_batch_size)
        return draws.movedim(0, 1).reshape(*shape, len(y), self.space.dim)

    @torch.no_grad()
    def _draw(self, y: Tensor, n: int, seed: int | None, show_progress_bars: bool, batch: int | None) -> Tensor:
        """Physical draws, (B, n, p), in chunks of bounded memory."""
        if batch is not None:
            check_whole("max_sampling_batch_size", batch, 1, None)
        if n == 0:
            return y.new_empty(len(y), 0, self.space.dim)
        limit = batch or min(100_000, max(1, self.max_numbers // self.observation_shape.numel()))
        with settled(self.observation_shape.numel()), seeded(seed):
            rows = len(y) if self.inner.transductive else max(1, limit // max(n, self.inner.least))
            z = _in_chunks(self.inner.sample, y, n, limit, rows, show_progress_bars)
        finite = torch.isfinite(z).all(-1)
        if not bool(finite.all()):
            raise RuntimeError(
                f"Expected finite draws, got {int((~finite).sum())} of {finite.numel()} that are not: the observation "
                "is far from the calibration data. Check its units, or refit with a lower learning rate."
            )
        return self.space.to_theta(z.flatten(0, 1)).reshape(z.shape)

    @torch.no_grad()
    def check(self, x: Any = None) -> RangeCheck:
        """Whether observations are like those that the posterior was fitted on: p-values for each of them.

        Args:
            x: One real observation or a batch, (B, ...); the default one if None.

        Example:
            >>> posterior.check(y_obs).pairs > 0.05, posterior.check(y_obs + 100).pairs < 0.001
            (tensor([True]), tensor([True]))
        """
        if not isinstance(self.inner, WithinRange):
            raise NotImplementedError(
                f"Expected a posterior of the default recipe or of a Stack, got one of {self.method} that keeps no pairs. Fit "
                'with FMCPE(..., recipe="default"), or compare y with the pairs yourself.'
            )
        with settled(self.observation_shape.numel()):
            return self.inner.check(self._observations(x)[0])

    def _warn_out_of_range(self, y: Tensor) -> None:
        """One warning for all observations that are out of range by the rule of `check`."""
        if not isinstance(self.inner, WithinRange):
            return
        with settled(self.observation_shape.numel()), torch.no_grad():
            out = self.inner.p_values(y) < RangeCheck.level
        if bool(out.any()):
            warnings.warn(
                f"Expected observations like {self.inner.described}, got {int(out.sum())} of {len(y)} out of range (p < 0.001; "
                f"about {len(y) / 1000:g} expected by chance): their answer moves towards the prior. posterior.check(x) says "
                "how far.",
                FMCPEWarning,
                stacklevel=3,
            )

    def log_prob(self, theta: Any, x: Any = None, track_gradients: bool = False, **sbi_options: Any) -> Tensor:
        """Log density of p(θ | y) at physical θ, for one observation.

        A Monte-Carlo mixture over x̃ uses the same draws of x̃ at every call.

        Args:
            theta: Physical parameters, (N, p) or (p,).
            x: The real observation; the default one if None.
            track_gradients: Keep the graph, for gradients with respect to `theta`.
            **sbi_options: sbi's options for leakage; they have no effect.

        Returns:
            (N,), -inf outside the prior's support.
        """
        check_sbi_options(sbi_options)
        theta, y = as_theta(theta, self.space.dim).to(self._device), self._x_else_default_x(x)
        self._warn_out_of_range(y)
        return self._log_prob(theta[None], y, track_gradients)[0]

    def log_prob_batched(self, theta: Any, x: Any, track_gradients: bool = False, **sbi_options: Any) -> Tensor:
        """Log density at θ (N, B, p), or (B, p), where column b belongs to observation b: (N, B)."""
        check_sbi_options(sbi_options)
        y, dim = self._as_observations(x), self.space.dim
        theta = theta if isinstance(theta, Tensor) else as_tensor(theta, "theta")
        if theta.ndim not in (2, 3) or theta.shape[-2:] != (len(y), dim):
            raise ValueError(
                f"Expected theta of shape (N, {len(y)}, {dim}) or ({len(y)}, {dim}) for {len(y)} observation(s), got "
                f"{tuple(theta.shape)}. Pass θ for observation b as theta[:, b]."
            )
        self._warn_out_of_range(y)
        theta = as_theta(theta.reshape(-1, dim), dim).to(self._device).reshape(-1, len(y), dim)
        return self._log_prob(theta.movedim(0, 1), y, track_gradients).T

    def _log_prob(self, theta: Tensor, y: Tensor, track_gradients: bool) -> Tensor:
        """(B, n, p) and (B, ...) -> (B, n)."""
        if not theta.numel():
            return theta.new_empty(theta.shape[:2])
        with settled(self.observation_shape.numel()), torch.set_grad_enabled(track_gradients):
            flat = theta.reshape(-1, theta.shape[-1])
            with torch.no_grad():  # on the bounds z is infinite
                inside = self.space.contains(flat) & torch.isfinite(self.space.to_z(flat)).all(-1)
            if not bool(inside.any()):
                return torch.full(theta.shape[:2], -torch.inf, device=theta.device)
            safe = torch.where(inside[:, None], flat, flat[inside][:1].detach())
            z = self.space.to_z(safe).reshape(theta.shape)
            # one by one, so that an observation has the same Monte-Carlo draws alone and in a batch
            rows = [(z, y)] if self.inner.transductive else zip(z.split(1), y.split(1), strict=True)
            inner = torch.cat([self.inner.log_prob(each, one) for each, one in rows])
            if bool(inner.isnan().any()):
                raise ValueError(
                    f"Expected log densities, got NaN for {int(inner.isnan().sum())} of {inner.numel()}: the observation is so "
                    "far from the calibration data that numbers overflow. Check its units."
                )
            density = inner + self.space.log_abs_det(safe, z.reshape(flat.shape)).reshape(theta.shape[:2])
            return torch.where(inside.reshape(theta.shape[:2]), density, -torch.inf)

    def map(
        self,
        x: Any = None,
        num_iter: int = 5,
        num_to_optimize: int = 50,
        num_init_samples: int = 150,
        show_progress_bars: bool = False,
        force_update: bool = False,
        *,
        seed: int | None = 0,
        **sbi_options: Any,
    ) -> Tensor:
        """The θ of highest density for one observation, (1, p).

        A cross-entropy search in unconstrained space. It needs few densities and no derivatives, which would have to be
        propagated through an ODE.

        Args:
            x: The real observation; the default one if None.
            num_iter: Rounds of the search.
            num_to_optimize: Points per round.
            num_init_samples: Draws of the posterior that start it.
            show_progress_bars: Show progress after two seconds.
            force_update: Search again although the answer for the default observation is known.
            seed: Seed of the search.
            **sbi_options: sbi's ``learning_rate``, ``init_method`` and ``save_best_every``; they have no effect.

        Example:
            >>> posterior.map(x=y_obs).shape
            torch.Size([1, 1])
        """
        check_sbi_options(sbi_options)
        check_whole("num_iter", num_iter, 0, 5)
        check_whole("num_to_optimize", num_to_optimize, 2, 50)
        check_whole("num_init_samples", num_init_samples, 2, 150)
        if num_init_samples < num_to_optimize:
            raise ValueError(
                f"Expected num_to_optimize of at most num_init_samples, got {num_to_optimize} of "
                f"{num_init_samples}. Try map(num_to_optimize=50, num_init_samples=150)."
            )
        if x is None and self._best is not None and not force_update:
            return self._best
        y = self._x_else_default_x(x)
        self._warn_out_of_range(y)

        def log_density(z: Tensor) -> Tensor:
            return self._log_prob(self.space.to_theta(z)[None], y, track_gradients=False)[0]

        with settled(self.observation_shape.numel()), seeded(seed):
            start = self.space.to_z_safely(self._draw(y, num_init_samples, None, False, None)[0])
            z = cross_entropy_search(log_density, start, num_to_optimize, num_iter, show_progress_bars)
        best = self.space.to_theta(z[None])
        if x is None:
            self._best = best
        return best

    def set_default_x(self, x: Any) -> CorrectedPosterior:
        """Fix the real observation that methods use when ``x=`` is not given."""
        self._x = as_observation(x, self.observation_shape).to(self._device)
        self._best = None
        return self

    def _x_else_default_x(self, x: Any) -> Tensor:
        if x is None:
            if self._x is None:
                raise ValueError("Expected an observation, got none. Pass x=, or call set_default_x(y_obs) first.")
            return self._x
        return as_observation(in_order(x, self.record.data_names, "x"), self.observation_shape).to(self._device)

    def _observations(self, x: Any) -> tuple[Tensor, bool]:
        """Observations (B, ...), the default one if None, and whether a single one was given."""
        if x is None:
            return self._x_else_default_x(None), True
        y = self._as_observations(x)
        return y, as_tensor(x, "x").shape in (self.observation_shape, ())

    def _as_observations(self, x: Any) -> Tensor:
        return as_observations(in_order(x, self.record.data_names, "x"), self.observation_shape).to(self._device)

    def to(self, device: str | torch.device) -> CorrectedPosterior:
        """Move to a device, in place: to that of the prior, which stays where it is."""
        check_prior_device(self.prior, device)
        self.inner.to(device)
        self.space.to(device)
        self.shared.base.to(device)
        self._device = str(device)
        self._x = None if self._x is None else self._x.to(device)
        self.conformal = None if self.conformal is None else self.conformal.to(device)
        self.potential_fn = CorrectedPotential(self, self.prior)
        return self

    def summary(self) -> str:
        """What was fitted, and its scores on held-out pairs, as text."""
        return self.record.text(self.space.dim, tuple(self.observation_shape))

    def __str__(self) -> str:
        """The first lines of the summary: pairs and weights."""
        return "\n".join(self.record.head(self.space.dim, tuple(self.observation_shape)))

    def __repr__(self) -> str:
        return (
            f"CorrectedPosterior(p={self.space.dim}, x_shape={tuple(self.observation_shape)}, "
            f"pairs={self.record.num_pairs}, method={self.method!r})"
        )


class CorrectedPotential(BasePotential):
    """log p(θ | y) with the interface of sbi's optimisers and samplers."""

    allow_iid_x = False

    def __init__(self, posterior: CorrectedPosterior, prior: Any) -> None:
        self._posterior, self._y = posterior, torch.empty(0)
        super().__init__(prior, x_o=None, device=str(posterior.space.standardiser.mean.device))

    def set_x(self, x_o: Tensor | None, x_is_iid: bool | None = False) -> None:
        super().set_x(x_o, x_is_iid=x_is_iid)
        if x_o is not None:
            self._y = self._posterior._x_else_default_x(x_o)

    def __call__(self, theta: Tensor, track_gradients: bool = True) -> Tensor:
        return self._posterior._log_prob(theta[None], self._y, track_gradients)[0]


def _in_chunks(
    draw: Callable[[Tensor, int], Tensor], y: Tensor, n: int, limit: int, rows: int, show_progress_bars: bool
) -> Tensor:
    """Draws for each row of y, (B, n, p), at most `limit` at a time, of at most `rows` observations."""
    spans = [min(limit, n - start) for start in range(0, n, limit)]
    chunks = []
    with Progress(len(y) * n, "drawing", show_progress_bars) as bar:
        for part in y.split(rows):
            parts = []
            for span in spans:
                parts.append(draw(part, span))
                bar.update(len(part) * span)
            chunks.append(torch.cat(parts, dim=1))
    return torch.cat(chunks)
