"""What a task is: prior p(θ), simulator x ~ S(θ), real process y ~ p(y|θ), and p(θ|y) where it is known.

Pairs come in blocks of `BLOCK` rows. Block k of a stream has a seed of its own, derived from
(seed, task, stream, k), so a smaller set is a prefix of a larger one and the calibration and test
streams never meet.
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
            NotImplementedError: If the posterior is known through draws alone.
        """
        ...


class Task(ABC):
    """A benchmark problem. A subclass says how to simulate and how to observe; pairs and checks are here.

    A task with measured data overrides `_pairs`, and lets `_observe` be a stand-in or raise.

    Attributes:
        name: What `fmcpe.tasks.get` calls it.
        theta_names: One label per parameter.
        x_shape: Shape of one observation.
        prior: The true prior, the one the pairs come from.
        real_side: What y is: a ``"process"`` that the task defines, a ``"stand-in"`` for measurements that are not at
            hand, or ``"measured"``. Tables, pictures and files say so, by `label` and `real_data`.
        simulator_is_noisy: Whether two simulations at one θ differ.
        data_label: What one number of the data is, with its unit.
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
        """The name, with what y is where the task does not define it: for titles and names of files."""
        return self.name if self.real_side == "process" else f"{self.name}-{self.real_side}"

    @property
    def real_data(self) -> str:
        """What y is, in words."""
        words = {"process": "real data", "stand-in": "a stand-in for real data", "measured": "measured data"}
        return words[self.real_side]

    @property
    def test_limit(self) -> int | None:
        """How many test pairs there are, where they were measured; None where there is no limit."""
        return None

    @property
    def simulation_prior(self) -> Distribution:
        """The prior that simulations are drawn from: the true one, unless the task is about its being wrong."""
        return self.prior

    def simulator(self, theta: Tensor) -> Tensor:
        """Simulate each row of ``theta`` ``(N, p)``, with fresh noise from torch's global generator."""
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
            n: How many.
            seed: Which stream.
            paired: Return ``(theta, y, x)``, with the simulation x that each y was built from, as
                ``FMCPE(base).fit(theta, y, x=x)`` takes it. Of the tasks, `gaussian-ci` alone builds y from x.
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
            raise ValueError(f"side={side!r} is not a side of a task; pass 'real' or 'simulator'.")
        return self._reference(self._checked_observation(y), side)

    def embedding_net(self) -> nn.Module | None:
        """A fresh network that summarises data for the base posterior, or None if vectors are fine as they are."""
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
            f"Task {self.name!r} has no reference posterior on the {side} side; "
            "score the posterior against theta of test_set(n, seed) instead."
        )

    def _observe_with_x(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Real data, and the simulations that they were built from."""
        raise NotImplementedError(
            f"paired=True was passed, but y of task {self.name!r} is not built from a simulation, so none belongs to it; "
            "leave paired out, and simulate with task.simulator(theta)."
        )

    def _pairs(self, n: int, stream: Stream, seed: int) -> tuple[Tensor, Tensor]:
        theta, y = self._stream(n, stream, seed, lambda theta: (self._observe(theta),))
        return theta, y

    def _stream(
        self, n: int, stream: Stream, seed: int, observe: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """The first ``n`` rows of θ and of what is observed at it."""
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
                f"theta has shape {tuple(theta.shape)}, but {self.name!r} expects (N, {p}), one row per run; "
                f"pass theta.reshape(-1, {p})."
            )
        if not torch.isfinite(theta).all():
            bad = int((~torch.isfinite(theta)).any(1).sum())
            raise ValueError(
                f"theta has {bad} rows with NaN or infinite values, but {self.name!r} expects finite ones; "
                "pass theta[theta.isfinite().all(1)]."
            )
        outside = ~self.prior.support.check(theta)  # type: ignore[union-attr]
        if outside.any():
            raise ValueError(
                f"theta has {int(outside.sum())} of {len(theta)} rows outside the prior's support, the first "
                f"{theta[outside][0].tolist()}, but {self.name!r} expects physical parameters inside it; map "
                "them back from the unconstrained space, or draw them with task.prior.sample((n,))."
            )
        return theta

    def _checked_observation(self, y: Tensor) -> Tensor:
        y = torch.as_tensor(y)
        if tuple(y.shape) not in (self.x_shape, (1, *self.x_shape)):
            raise ValueError(
                f"y has shape {tuple(y.shape)}, but the reference posterior of {self.name!r} expects one "
                f"observation of shape {self.x_shape}; pass one row, such as y[0]."
            )
        if not torch.isfinite(y).all():
            raise ValueError(
                "y has NaN or infinite values, but a reference posterior expects finite data; "
                "drop or repair that observation first."
            )
        return y.reshape(self.x_shape)


def pair_count(n: int) -> int:
    """`n`, if a set can have so many pairs."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(
            f"n={n!r} pairs were asked for, but a set holds a whole number of at least one; pass n=50, say."
        )
    return int(n)
