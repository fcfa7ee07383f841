r"""The paper's algorithm: two velocity fields, learned jointly from the pairs (equations 3, 7 and 8, algorithms 1 and 2).

    x_1 ~ S(θ_1)                            a simulation at θ_1
    x_0 ~ N(y, σ² I)                        the source of the x-flow
    x̃   = ODE(u_X; x_0, y)                  no gradient flows through this
    z_0 ~ p̂(z | x̃)                          frozen
    t, τ ~ U[0, 1]
    loss = |u_X(t, (1-t) x_0 + t x_1, y) - (x_1 - x_0)|² + |u_Θ(τ, (1-τ) z_0 + τ z_1, y) - (z_1 - z_0)|²

x and y are standardised, z is θ freed of its bounds and standardised. `Paper` (`fmcpe.candidates.paper`) is this algorithm as
published, fitted once on all pairs. `JointFlow` is the same at a budget of seconds, for stacking: in the base posterior's
summary space where it has one, with few solver steps, all members as one batch of networks, and z_0 from a pool that is redrawn
every few steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from fmcpe._options import SHARE, Limits
from fmcpe._random import seeded
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import (
    Candidate,
    Shared,
    Transported,
    base_of,
    clipped,
    log_probs_of_sources,
    split_each,
    tiled,
)
from fmcpe.flows.matching import Field, at, carry, matching_loss, unstacked, untrained_fields
from fmcpe.flows.solvers import Solver
from fmcpe.nn.ensemble import Stacked
from fmcpe.nn.training import descend
from fmcpe.problem import Problem
from fmcpe.spaces import FlatStandardiser, ParameterSpace, Standardiser


class JointFlowed(Transported):
    """The trained chain y -> x_0 -> x̃ -> z_0 -> z.

    Args:
        base: The base posterior, on raw data or on its summary.
        space: Physical θ <-> z.
        x_scale: Standardises simulations.
        y_scale: Standardises real observations.
        u_x: Carries x_0 to x̃; None (``stages="theta-only"``) evaluates the base posterior at y itself.
        u_theta: Carries z_0 to z; None (``stages="x-only"``) stops at z_0.
        sigma: Standard deviation of the x-source around the standardised y; None for the source N(0, I).
        solver: How both are integrated.
        clips: Whether the condition is clipped, to prevent extrapolation.
    """

    def __init__(
        self,
        base: BasePosterior,
        space: ParameterSpace,
        x_scale: Standardiser,
        y_scale: Standardiser,
        u_x: Field | None,
        u_theta: Field | None,
        sigma: float | None,
        solver: Solver,
        clips: bool = False,
    ) -> None:
        super().__init__(base, space)
        self.x_scale, self.y_scale, self.u_x, self.u_theta = x_scale, y_scale, u_x, u_theta
        self.sigma, self.solver, self.clips, self.is_random = sigma, solver, clips, u_x is not None

    def condition(self, y: Tensor) -> Tensor:
        """The condition of both fields, from raw observations: (B, *shape)."""
        seen = self.y_scale(self.base.summarise(y))
        return clipped(seen) if self.clips else seen

    def draw_x0(self, condition: Tensor, n: int) -> Tensor:
        """x_0 ~ N(y, σ² I), or N(0, I): (B, n, d)."""
        centre = condition.flatten(1)[:, None]
        noise = torch.randn(len(condition), n, centre.shape[2], device=centre.device)
        return noise if self.sigma is None else centre + self.sigma * noise

    def source(self, y: Tensor, n: int) -> Tensor:
        if self.u_x is None:
            return super().source(y, n)
        condition = self.condition(y)
        return self.carry_x(self.draw_x0(condition, n), condition)

    def carry_x(self, x0: Tensor, condition: Tensor) -> Tensor:
        """x̃ of x_0 (B, n, d), in the units of the base posterior's data: (B, n, *shape)."""
        assert self.u_x is not None
        x = self.u_x.push(x0, condition, self.solver)
        return self.x_scale.inverse(x.unflatten(2, self.x_scale.mean.shape))

    def push(self, z: Tensor, y: Tensor) -> Tensor:
        return z if self.u_theta is None else self.u_theta.push(z, self.condition(y), self.solver)

    def pull(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return super().pull(z, y) if self.u_theta is None else self.u_theta.pull(z, self.condition(y), self.solver)

    @property
    def kind(self) -> tuple[Any, ...]:
        # fields of `JointFlow`, conditioned on vectors, can be evaluated as one batch of networks; those of `Paper` cannot
        return super().kind if isinstance(self.y_scale, FlatStandardiser) else (type(self), id(self))

    @classmethod
    @torch.no_grad()
    def sample_together(cls, members: Sequence[Self], y: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """As many draws of each member as the largest count asks for, K chains of B·n rows, cut to the counts."""
        if len(members) == 1:
            return super().sample_together(members, y, counts)
        first, n = members[0], max(counts)
        conditions = [member.condition(y) for member in members]
        again = torch.stack(conditions).repeat_interleave(n, dim=1)  # (K, B·n, f)
        starts = zip(members, conditions, strict=True)
        x = torch.stack([member.draw_x0(condition, n).flatten(0, 1) for member, condition in starts])
        x = carry(_stacked("u_x", members), again, x, first.solver).unflatten(2, first.x_scale.mean.shape)
        x = torch.cat([member.x_scale.inverse(each) for member, each in zip(members, x, strict=True)])
        z = first.space.to_z_safely(first.base.sample(x, 1)[:, 0]).unflatten(0, again.shape[:2])
        z = carry(_stacked("u_theta", members), again, z, first.solver).unflatten(1, (len(y), n))
        return [each[:, :count] for each, count in zip(z, counts, strict=True)]

    @classmethod
    def log_prob_together(cls, members: Sequence[Self], z: Tensor, y: Tensor) -> list[Tensor]:
        if len(members) == 1:
            return super().log_prob_together(members, z, y)
        again = torch.stack([member.condition(y) for member in members]).repeat_interleave(z.shape[1], dim=1)
        field, z1 = at(_stacked("u_theta", members), again), z.flatten(0, 1).expand(len(members), -1, -1)
        z0, log_det = (each.unflatten(1, z.shape[:2]) for each in members[0].solver.invert_with_logdet(field, z1))
        return log_probs_of_sources(members, list(z0), list(log_det), y)

    def to_config(self) -> dict[str, Any]:
        both = {"u_x": self.u_x, "u_theta": self.u_theta}
        fields = {name: None if u is None else u.to_config() for name, u in both.items()}
        flat = isinstance(self.y_scale, FlatStandardiser)
        rest = {"sigma": self.sigma, "solver": asdict(self.solver), "clips": self.clips, "flat": flat}
        return super().to_config() | fields | rest | {"shape": list(self.x_scale.mean.shape)}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> JointFlowed:
        empty = torch.zeros(2, *config["shape"])
        y_scale = FlatStandardiser(empty) if config["flat"] else Standardiser(empty)

        def field(name: str) -> Field | None:
            return None if config[name] is None else Field.from_config(config[name], shared.embedding_net)

        return cls(
            base_of(config, shared), shared.space, Standardiser(empty), y_scale, field("u_x"), field("u_theta"),
            config["sigma"], Solver(**config["solver"]), config["clips"],
        )  # fmt: skip


def _stacked(name: str, members: Sequence[JointFlowed]) -> Stacked:
    """A field of all members as one batch of networks."""
    return Stacked([getattr(member, name) for member in members], natively=True)


@dataclass(frozen=True)
class JointFlow(Candidate):
    """The paper's joint flow matching.

    Args:
        steps: Gradient steps.
        learning_rate: Peak of one cycle.
        batch_size: Pairs per step, with repetition.
        sigma: Standard deviation of the x-source, in standardised data.
        refresh: Steps between two draws of the pool of z_0.
        validation: Share of a member's rows that stop it early.
    """

    steps: int = 300
    learning_rate: float = 3e-3
    batch_size: int = 64
    sigma: float = 0.5
    refresh: int = 15
    validation: float = 0.2

    name = "joint_flow"
    effort = 15.0
    limits: ClassVar[Mapping[str, Limits]] = {"validation": SHARE}

    def skipped(self, problem: Problem) -> str | None:
        if not problem.base.amortised:
            return "the base posterior is not amortised, and tens of thousands of x̃ would be too slow"
        if problem.x is None:
            return "it needs a simulator, or simulations paired with the pairs"
        if problem.seen[0].numel() > 500:  # a flow of that many dimensions takes more than seconds
            return "data have more than 500 numbers and the base posterior has no summary of them"
        return None

    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> list[JointFlowed]:
        assert problem.x is not None
        base, space, number, solver = problem.summarised, problem.space, len(subsets), Solver("midpoint", 4)
        rows, size = tiled(subsets, len(problem)), len(problem)
        member = torch.arange(number)[:, None]
        bank, x = problem.bank_seen, problem.x
        x_scales = [Standardiser(x[index].flatten(0, 1) if bank is None else bank) for index in subsets]
        y_scales = [FlatStandardiser(problem.seen[index]) for index in subsets]
        y = clipped(torch.stack([scale(problem.seen[r]) for scale, r in zip(y_scales, rows, strict=True)]))
        x1 = torch.stack([scale(x[r]).flatten(2) for scale, r in zip(x_scales, rows, strict=True)])
        z1, dim = problem.z[rows], y.shape[2]
        u_x, u_theta = (untrained_fields(moved, dim, (64, 64), number, y.device) for moved in (dim, space.dim))
        copies, pool = max(1, 2000 // (number * size)), torch.empty(0)
        training, validation = (  # as places in each member's rows
            [(index == each[:, None]).nonzero()[:, 1] for index, each in zip(subsets, part, strict=True)]
            for part in split_each(subsets, problem.theta, self.validation)
        )

        def draw_pool() -> Tensor:
            """z_0 for every row of every member, (K, n, copies, p), with u_X as it is now."""
            again = y.repeat_interleave(copies, dim=1)
            moved = carry(u_x, again, again + self.sigma * torch.randn_like(again), solver)
            scaled = zip(x_scales, moved.unflatten(2, problem.seen.shape[1:]), strict=True)
            drawn = base.sample_each([scale.inverse(each) for scale, each in scaled], 1)
            return space.to_z_safely(torch.cat(drawn)[:, 0]).reshape(number, size, copies, -1)

        def loss(step: int) -> Tensor:
            nonlocal pool
            if step % self.refresh == 0:
                pool = draw_pool()
            return joint_loss(torch.stack([t[torch.randint(len(t), (self.batch_size,))] for t in training]))

        def joint_loss(picked: Tensor) -> Tensor:
            """Of some rows of each member, (K, B) -> (K,)."""
            seen = y[member, picked]
            x0 = seen + self.sigma * torch.randn_like(seen)
            z0 = pool[member, picked, torch.randint(copies, picked.shape)]
            simulated = x1[member, picked, torch.randint(x1.shape[2], picked.shape)]
            both = matching_loss(u_x, x0, simulated, seen) + matching_loss(u_theta, z0, z1[member, picked], seen)
            return both.mean(1)

        @torch.no_grad()
        def validate() -> Tensor:
            with seeded(0):  # common random numbers: the same noise and times at every validation
                return joint_loss(held_out)

        held_out = tiled(validation, max(256, math.ceil(self.validation * size)))
        pool = draw_pool()
        best = descend([u_x, u_theta], loss, self.steps, self.learning_rate, validate=validate, clip=1.0)
        parts = zip(x_scales, y_scales, unstacked(u_x, best[0]), unstacked(u_theta, best[1]), strict=True)
        return [JointFlowed(base, space, xs, ys, ux, ut, self.sigma, solver, True) for xs, ys, ux, ut in parts]
