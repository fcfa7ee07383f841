"""The corrected posterior: an sbi `NeuralPosterior` whose ``x=`` is a real observation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sbi.inference.posteriors.base_posterior import NeuralPosterior
from torch import Tensor

from fmcpe._checks import as_observation, as_observations, as_sample_shape, as_tensor, as_theta, check_sbi_options
from fmcpe._random import seeded
from fmcpe.chain import Chain
from fmcpe.drawing import in_chunks, rows_at_once
from fmcpe.potential import CorrectedPotential
from fmcpe.recipe import Recipe
from fmcpe.search import cross_entropy_search
from fmcpe.words import in_words


class CorrectedPosterior(NeuralPosterior):
    """p(θ | y), as learned by `FMCPE.fit` or by a baseline. Every sbi tool that takes a posterior takes this one.

    Args:
        corrector: The trained chain.
        recipe: The hyper-parameters it was trained with.
        stages: Which stages it has.
        history: Losses by epoch, or the evidence for each way to answer; seconds.
        num_pairs: How many calibration pairs it has seen.
        method: The name of the method that made it.
    """

    def __init__(
        self,
        corrector: Chain,
        recipe: Recipe,
        stages: str,
        history: dict[str, list[float]],
        num_pairs: int,
        method: str = "FMCPE",
    ) -> None:
        self.corrector, self.recipe, self.stages = corrector, recipe, stages
        self.history, self.num_pairs, self.method = history, num_pairs, method
        self._best: Tensor | None = None
        self.prior = corrector.space.prior
        super().__init__(
            CorrectedPotential(self, self.prior),
            theta_transform=corrector.space.transform,
            device=str(corrector.space.standardiser.mean.device),
        )
        self._purpose = "It corrects a simulation-trained posterior with real measurements; x is a real observation."

    # ------------------------------------------------------------------ drawing

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
            show_progress_bars: Whether to show progress once it takes more than two seconds.
            seed: Makes the draw reproducible and leaves torch's generator as it was.
            max_sampling_batch_size: Rows drawn at once; chosen by memory if None.
            **sbi_options: Options of sbi's rejection sampler, which have no meaning here.

        Returns:
            Physical θ inside the prior's support, (*sample_shape, p).
        """
        check_sbi_options(sbi_options)
        shape, y = as_sample_shape(sample_shape), self._observation(x)
        rows = self._draw("draw_theta", y, shape.numel(), seed, show_progress_bars, max_sampling_batch_size)
        return rows.reshape(*shape, self.corrector.space.dim)

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
        shape, y = as_sample_shape(sample_shape), self._observations(x)
        rows = self._draw("draw_theta", y, shape.numel(), seed, show_progress_bars, max_sampling_batch_size)
        return (
            rows.reshape(y.shape[0], shape.numel(), rows.shape[1])
            .movedim(0, 1)
            .reshape(*shape, y.shape[0], rows.shape[1])
        )

    def sample_source(self, sample_shape: Any = (), x: Any = None, *, seed: int | None = None) -> Tensor:
        """Draw θ_0, what the θ-flow starts from, for one observation: physical, (*sample_shape, p)."""
        shape, y = as_sample_shape(sample_shape), self._observation(x)
        z = self._draw("draw_z0", y, shape.numel(), seed, False, None)
        return self.corrector.space.to_theta(z).reshape(*shape, self.corrector.space.dim)

    def _draw(
        self, what: str, y: Tensor, copies: int, seed: int | None, show_progress_bars: bool, batch: int | None
    ) -> Tensor:
        """`copies` consecutive rows for each row of y, in chunks of bounded memory."""
        if copies == 0:
            return y.new_empty(0, self.corrector.space.dim)
        if batch is not None and batch < 1:
            raise ValueError(f"max_sampling_batch_size={batch} came; at least 1 was expected. Leave it out.")
        limit = batch or rows_at_once(self.corrector.shape.numel())
        with seeded(seed):
            out = in_chunks(getattr(self.corrector, what), y, copies, limit, show_progress_bars)
        if not bool(torch.isfinite(out).all()):
            bad = int((~torch.isfinite(out)).any(-1).sum())
            raise RuntimeError(
                f"{bad} of {out.shape[0]} draws are not finite: the flow diverges for this observation, which is far from "
                "all calibration data. Check its units, or refit with a lower learning rate."
            )
        return out

    # ------------------------------------------------------------------ density

    def log_prob(
        self,
        theta: Any,
        x: Any = None,
        track_gradients: bool = False,
        *,
        num_source_samples: int | None = None,
        seed: int | None = 0,
        **sbi_options: Any,
    ) -> Tensor:
        """Log density of p(θ | y) at physical θ, for one observation.

        The source density is a Monte-Carlo mixture over x̃. Its draws are fixed by `seed`, so that repeated calls agree;
        another seed shows how much the estimate varies.

        Args:
            theta: Physical parameters, (N, p) or (p,).
            x: The real observation; the default one if None.
            track_gradients: Whether gradients with respect to `theta` are wanted.
            num_source_samples: Draws of x̃ in the mixture; RoPE's is summed, not drawn.
            seed: Of these draws.
            **sbi_options: sbi's options for leakage, which have no meaning here.

        Returns:
            (N,), -inf outside the prior's support.
        """
        check_sbi_options(sbi_options)
        theta, y = as_theta(theta, self.corrector.space.dim).to(self._device), self._observation(x)
        return self._log_prob(theta, y, self._source(y, num_source_samples, seed), track_gradients)

    def log_prob_batched(
        self,
        theta: Any,
        x: Any,
        track_gradients: bool = False,
        *,
        num_source_samples: int | None = None,
        seed: int | None = 0,
        **sbi_options: Any,
    ) -> Tensor:
        """Log density at θ (N, B, p), or (B, p), where column b belongs to observation b: (N, B)."""
        check_sbi_options(sbi_options)
        y, dim = as_observations(x, self.observation_shape), self.corrector.space.dim
        theta = theta if isinstance(theta, Tensor) else as_tensor(theta, "theta")
        if theta.ndim not in (2, 3) or theta.shape[-2:] != (y.shape[0], dim):
            raise ValueError(
                f"theta has shape {tuple(theta.shape)} for {y.shape[0]} observation(s); (N, {y.shape[0]}, {dim}) or "
                f"({y.shape[0]}, {dim}) was expected: θ number n for observation b at theta[n, b]."
            )
        theta = as_theta(theta.reshape(-1, dim), dim).to(self._device).reshape(-1, y.shape[0], dim)
        columns = [
            self._log_prob(theta[:, b], row, self._source(row, num_source_samples, seed), track_gradients)
            for b, row in enumerate(self._prepared(y).split(1))
        ]
        return torch.stack(columns, dim=1)

    def _source(self, y: Tensor, num_source_samples: int | None, seed: int | None) -> tuple[Tensor, Tensor]:
        """The components x̃ of the mixture that `log_prob` is made of, for one prepared observation."""
        num_source_samples = self.corrector.proposal.components if num_source_samples is None else num_source_samples
        if num_source_samples < 1:
            raise ValueError(f"num_source_samples={num_source_samples} came; at least 1 was expected. Try 256.")
        with seeded(seed):
            return self.corrector.source(y, num_source_samples)

    def _log_prob(self, theta: Tensor, y: Tensor, source: tuple[Tensor, Tensor], track_gradients: bool) -> Tensor:
        inside = self.corrector.space.contains(theta)
        # rows on or outside the bounds have no finite z; they are answered without being transported
        inside = inside & torch.isfinite(self.corrector.space.to_z(theta.detach())).all(-1)
        out = torch.full((theta.shape[0],), -torch.inf, device=theta.device)
        with torch.set_grad_enabled(track_gradients):
            rows = inside.nonzero()[:, 0]
            if len(rows) == 0:
                return out
            chunk = max(1, 200_000 // source[0].shape[0])
            parts = [self.corrector.log_prob(theta[index], y, *source) for index in rows.split(chunk)]
            return out.index_put((rows,), torch.cat(parts))

    def map(
        self,
        x: Any = None,
        num_iter: int = 12,
        num_to_optimize: int = 20,
        num_init_samples: int = 200,
        show_progress_bars: bool = False,
        force_update: bool = False,
        *,
        seed: int | None = 0,
        **sbi_options: Any,
    ) -> Tensor:
        """The θ of highest density for one observation, (1, p).

        A cross-entropy search in unconstrained space, from draws of the posterior: it needs no derivatives, which here
        would go through an ODE and back.

        Args:
            x: The real observation; the default one if None.
            num_iter: Rounds.
            num_to_optimize: How many of the best points a round is fitted to.
            num_init_samples: Points per round.
            show_progress_bars: Whether to show progress once it takes more than two seconds.
            force_update: Search again although the answer for the default observation is known.
            seed: Of the search.
            **sbi_options: sbi's ``learning_rate``, ``init_method`` and ``save_best_every``, which have no meaning here.
        """
        check_sbi_options(sbi_options)
        if num_to_optimize < 2 or num_init_samples < num_to_optimize:
            raise ValueError(
                f"num_to_optimize={num_to_optimize} of num_init_samples={num_init_samples} came; at least 2, and no more than "
                "there are samples, was expected. Try map(num_to_optimize=20, num_init_samples=200)."
            )
        if x is None and self._best is not None and not force_update:
            return self._best
        y, space = self._observation(x), self.corrector.space
        mixture = self._source(y, None, seed=0)

        def log_density(z: Tensor) -> Tensor:
            return self._log_prob(space.to_theta(z), y, mixture, track_gradients=False)

        with seeded(seed):
            start = space.to_z_safely(self._draw("draw_theta", y, num_init_samples, None, False, None))
            z = cross_entropy_search(log_density, start, num_iter, num_to_optimize, show_progress_bars)
        best = space.to_theta(z[None])
        if x is None:
            self._best = best
        return best

    # ------------------------------------------------------------------ the rest of sbi's interface

    def set_default_x(self, x: Any) -> CorrectedPosterior:
        """Fix the real observation that methods use when ``x=`` is not given."""
        self._x = as_observation(x, self.observation_shape).to(self._device)
        self._best = None
        return self

    @property
    def observation_shape(self) -> torch.Size:
        """Shape of one real observation."""
        return self.corrector.observation_shape

    def _x_else_default_x(self, x: Any) -> Tensor:
        if x is None:
            if self._x is None:
                raise ValueError("no observation came and none is set; pass x=, or call set_default_x(y_obs) first.")
            return self._x
        return as_observation(x, self.observation_shape).to(self._device)

    def _observation(self, x: Any) -> Tensor:
        """One observation, checked, as the chain sees it."""
        return self._prepared(self._x_else_default_x(x))

    def _observations(self, x: Any) -> Tensor:
        return self._prepared(as_observations(x, self.observation_shape))

    def _prepared(self, y: Tensor) -> Tensor:
        with torch.no_grad():
            return self.corrector.prepare(y.to(self._device))

    def to(self, device: str | torch.device) -> CorrectedPosterior:
        """Move to a device, in place."""
        self.corrector.to(device)
        self.corrector.proposal.to(device)
        self._device = str(device)
        self._x = None if self._x is None else self._x.to(device)
        self.potential_fn = CorrectedPotential(self, self.prior)
        return self

    def save(self, path: str | Path) -> Path:
        """Write one file that `fmcpe.load` reads; see `fmcpe.io`."""
        from fmcpe.io import save

        return save(self, path)

    def summary(self) -> str:
        """What was fitted and what was kept, in words."""
        return in_words(self)

    def __repr__(self) -> str:
        return (
            f"CorrectedPosterior(p={self.corrector.space.dim}, x_shape={tuple(self.observation_shape)}, "
            f"pairs={self.num_pairs}, method={self.method!r}, stages={self.stages!r})"
        )
