"""The task interface: prior p(θ), simulator x ~ S(θ), real process y ~ p(y|θ), and p(θ|y) if it is known.

Pairs are generated in blocks of `BLOCK` rows. Block k of a stream has a seed derived from (seed, task, stream, k), so a
smaller set is a prefix of a larger one, and calibration and test streams are disjoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, overload

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._random import derive, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Side = Literal["real", "simulator"]
Stream = Literal["calibration", "test"]
RealSide = Literal["process", "stand-in", "measured"]
BLOCK = 256


class Reference(Protocol):
    """The true posterior of one observation."""

    def sample(self, sample_shape: Sequence[int] = (), seed: int | None = None) -> Tensor:
        """Draw physical θ, shape ``(*sample_shape, p)``."""
        ...

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density of each row of ``theta`` ``(N, p)``, shape ``(N,)``.

        Raises:
            NotImplementedError: If only draws of the posterior are available.
        """
        ...


class Task(ABC):
    """A benchmark problem. Subclasses implement the simulator and the real process; pairs and checks are here.

    A task with measured data overrides `_pairs`, and `_observe` is a stand-in or raises.

    Attributes:
        name: Name for `fmcpe.tasks.get`.
        theta_names: One label per parameter.
        x_shape: Shape of one observation.
        prior: The true prior, from which the pairs are drawn.
        real_side: Origin of y: a ``"process"`` that the task defines, a ``"stand-in"`` for measurements that are not
            available, or ``"measured"``. Shown in tables, figures and files through `label` and `real_data`.
        simulator_is_noisy: Whether the simulator is stochastic.
        data_label: Axis label of the data, with the unit.
    """

    name: ClassVar[str]
    simulator_is_noisy: ClassVar[bool] = True
    data_label: ClassVar[str] = "value"
    real_side: RealSide = "process"
    theta_names: tuple[str, ...]
    x_shape: tuple[int, ...]
    prior: Distribution

    @property
    def label(self) -> str:
        """The name, with the origin of y if it is not a process; for titles and file names."""
        return self.name if self.real_side == "process" else f"{self.name}-{self.real_side}"

    @property
    def real_data(self) -> str:
        """Description of y."""
        words = {"process": "real data", "stand-in": "a stand-in for real data", "measured": "measured data"}
        return words[self.real_side]

    @property
    def test_limit(self) -> int | None:
        """Number of measured test pairs; None if there is no limit."""
        return None

    @property
    def simulation_prior(self) -> Distribution:
        """The prior of the simulations: the true one, unless the task has a misspecified prior."""
        return self.prior

    def simulator(self, theta: Tensor) -> Tensor:
        """Simulate at each row of ``theta`` ``(N, p)``, with fresh noise from torch's global generator."""
        return self._simulate(self._checked_theta(theta))

    def observe(self, theta: Tensor) -> Tensor:
        """Run the real process at each row of ``theta`` ``(N, p)``: shapes and noise as in `simulator`."""
        return self._observe(self._checked_theta(theta))

    @overload
    def calibration_set(self, n: int, seed: int, *, paired: Literal[False] = False) -> tuple[Tensor, Tensor]: ...

    @overload
    def calibration_set(self, n: int, seed: int, *, paired: Literal[True]) -> tuple[Tensor, Tensor, Tensor]: ...

    def calibration_set(self, n: int, seed: int, *, paired: bool = False) -> tuple[Tensor, ...]:
        """The first ``n`` pairs ``(theta, y)`` of the calibration stream of ``seed``.

        Args:
            n: Number of pairs.
            seed: Seed of the stream.
            paired: Return ``(theta, y, x)``, with the simulation x that each y was built from, for
                ``FMCPE(base).fit(theta, y, x=x)``. Only `gaussian-ci` builds y from x.
        """
        n = pair_count(n)
        return (
            self._stream(n, "calibration", seed, self._observe_with_x)
            if paired
            else self._pairs(n, "calibration", seed)
        )

    def test_set(self, n: int, seed: int) -> tuple[Tensor, Tensor]:
        """The first ``n`` pairs ``(theta, y)`` of the test stream of ``seed``; none is a calibration pair."""
        return self._pairs(pair_count(n), "test", seed)

    def reference_posterior(self, y: Tensor, side: Side = "real") -> Reference:
        """The true posterior of one observation.

        Args:
            y: One observation, of shape ``x_shape`` or ``(1, *x_shape)``.
            side: ``"real"`` for p(θ|y) under the real process; ``"simulator"`` for the posterior that a
                perfectly trained base posterior would give for the same data.
        """
        if side not in ("real", "simulator"):
            raise ValueError(f"Expected 'real' or 'simulator', got side={side!r}. Pass side='real'.")
        return self._reference(self._checked_observation(y), side)

    def embedding_net(self) -> nn.Module | None:
        """A new embedding network for the base posterior, or None if the data are vectors."""
        return None

    def plot(self, seed: int = 0) -> Figure:
        """Simulated and real data side by side at the same θ; `figure.savefig("name.png")` writes it."""
        from fmcpe.tasks.plots import side_by_side

        return side_by_side(self, seed)

    @abstractmethod
    def _simulate(self, theta: Tensor) -> Tensor: ...

    @abstractmethod
    def _observe(self, theta: Tensor) -> Tensor: ...

    def _reference(self, y: Tensor, side: Side) -> Reference:
        raise NotImplementedError(
            f"Expected a task with a reference posterior, got {self.name!r}, which has no reference posterior on the {side} "
            "side. Score the posterior against theta of test_set(n, seed) instead."
        )

    def _observe_with_x(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Real data, and the simulations from which they were built."""
        raise NotImplementedError(
            f"Expected a task whose y is built from a simulation, got paired=True: y of task {self.name!r} is not built from "
            "a simulation. Leave paired out, and simulate with task.simulator(theta)."
        )

    def _pairs(self, n: int, stream: Stream, seed: int) -> tuple[Tensor, Tensor]:
        theta, y = self._stream(n, stream, seed, lambda theta: (self._observe(theta),))
        return theta, y

    def _stream(
        self, n: int, stream: Stream, seed: int, observe: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """The first ``n`` rows of θ, and of what is observed at them."""
        blocks = []
        for k in range(-(-n // BLOCK)):
            with seeded(derive(seed, self.name, stream, k)):
                theta = self.prior.sample(torch.Size((BLOCK,)))
                blocks.append((theta, *observe(theta)))
        return tuple(torch.cat(parts)[:n] for parts in zip(*blocks, strict=True))

    def _checked_theta(self, theta: Tensor) -> Tensor:
        theta = torch.as_tensor(theta, dtype=torch.float32)
        p = len(self.theta_names)
        if theta.ndim != 2 or theta.shape[1] != p:
            raise ValueError(
                f"Expected theta of shape (N, {p}) for {self.name!r}, got shape {tuple(theta.shape)}. "
                f"Pass one row per simulation, one column per parameter; one parameter vector as theta[None]."
            )
        if not torch.isfinite(theta).all():
            bad = int((~torch.isfinite(theta)).any(1).sum())
            raise ValueError(
                f"Expected finite theta for {self.name!r}, got {bad} rows with NaN or infinite values. "
                "Pass theta[theta.isfinite().all(1)]."
            )
        outside = ~self.prior.support.check(theta)  # type: ignore[union-attr]
        if outside.any():
            raise ValueError(
                f"Expected physical parameters inside the prior's support of {self.name!r}, got {int(outside.sum())} of "
                f"{len(theta)} rows outside the prior's support, the first {theta[outside][0].tolist()}. Map them back from "
                "the unconstrained space, or draw them with task.prior.sample((n,))."
            )
        return theta

    def _checked_observation(self, y: Tensor) -> Tensor:
        y = torch.as_tensor(y)
        if tuple(y.shape) not in (self.x_shape, (1, *self.x_shape)):
            raise ValueError(
                f"Expected one observation of shape {self.x_shape} for the reference posterior of {self.name!r}, got shape "
                f"{tuple(y.shape)}. Pass one row, such as y[0]."
            )
        if not torch.isfinite(y).all():
            raise ValueError(
                "Expected a finite observation for the reference posterior, got NaN or infinite values in y. "
                "Drop or repair that observation."
            )
        return y.reshape(self.x_shape)


def pair_count(n: int) -> int:
    """`n`, checked to be a valid number of pairs."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(f"Expected a whole number of at least one pair, got n={n!r}. Pass n=50, for example.")
    return int(n)
