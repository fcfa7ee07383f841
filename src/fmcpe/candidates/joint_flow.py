r"""The paper's algorithm: two velocity fields, learned jointly from the pairs (equations 3, 7 and 8, algorithms 1 and 2).

    x_1 ~ S(θ_1)                            a simulation at θ_1
    x_0 ~ N(y, σ² I)                        the source of the x-flow
    x̃   = ODE(u_X; x_0, y)                  no gradient flows through this
    z_0 ~ p̂(z | x̃)                          frozen
    t, τ ~ U[0, 1]
    loss = |u_X(t, (1-t) x_0 + t x_1, y) - (x_1 - x_0)|² + |u_Θ(τ, (1-τ) z_0 + τ z_1, y) - (z_1 - z_0)|²

x and y are standardised, z is θ freed of its bounds and standardised. `Paper` (`fmcpe.candidates.paper`) is this algorithm as
published, fitted once on all pairs. `JointFlow` is the same at a budget of seconds, for stacking: in the base posterior's
summary space where it has one, with few solver steps, all members as one batch of networks, and z_0 from a pool that is drawn
anew every few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fmcpe._random import seeded
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.candidates.base import (
    Candidate,
    Posterior,
    Shared,
    Transported,
    base_of,
    clipped,
    log_probs_of_sources,
    scale_of_simulations,
    split_rows,
    tiled,
    why_not_transported,
)
from fmcpe.flows.matching import Field, carry, matching_loss, members, unstacked
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
        u_x: Carries x_0 to x̃; None (``stages="theta-only"``) asks the base posterior about y itself.
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
        """What both fields know of raw observations, (B, *shape)."""
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

    @classmethod
    def sources(cls, group: Sequence[Transported], y: Tensor, counts: Sequence[int]) -> list[Tensor]:
        chains = _alike(group)
        if chains is None or chains[0].u_x is None:
            return super().sources(group, y, counts)
        most, conditions = max(counts), [chain.condition(y) for chain in chains]
        x0 = torch.stack([chain.draw_x0(c, most).flatten(0, 1) for chain, c in zip(chains, conditions, strict=True)])
        again = torch.stack(conditions).repeat_interleave(most, dim=1)
        u = Stacked([chain.u_x for chain in chains if chain.u_x is not None], natively=True)
        x = carry(u, x0, again, chains[0].solver).unflatten(1, (len(y), most))
        scaled = zip(chains, x, counts, strict=True)
        return [chain.x_scale.inverse(each[:, :n].unflatten(2, chain.x_scale.mean.shape)) for chain, each, n in scaled]

    @classmethod
    def pushes(cls, group: Sequence[Transported], z: Sequence[Tensor], y: Tensor) -> list[Tensor]:
        chains, counts = _alike(group), [part.shape[1] for part in z]
        if chains is None or chains[0].u_theta is None:
            return super().pushes(group, z, y)
        most = max(counts)
        z0 = torch.stack([nn.functional.pad(part, (0, 0, 0, most - part.shape[1])).flatten(0, 1) for part in z])
        u, again = cls._fields_of_theta(chains, y, most)
        pushed = carry(u, z0, again, chains[0].solver).unflatten(1, (len(y), most))
        return [each[:, :n] for each, n in zip(pushed, counts, strict=True)]

    @classmethod
    def log_prob_together(cls, members: Sequence[Posterior], z: Tensor, y: Tensor) -> list[Tensor]:
        chains = _alike(members)
        if chains is None or chains[0].u_theta is None:
            return super().log_prob_together(members, z, y)
        u, again = cls._fields_of_theta(chains, y, z.shape[1])
        z1 = z.flatten(0, 1).expand(len(chains), -1, -1)
        z0, log_det = chains[0].solver.invert_with_logdet(lambda t, v: u(t.expand(*v.shape[:-1], 1), v, again), z1)
        z0, log_det = z0.unflatten(1, z.shape[:2]), log_det.unflatten(1, z.shape[:2])
        return log_probs_of_sources(chains, list(z0), list(log_det), y)

    @staticmethod
    def _fields_of_theta(chains: Sequence[JointFlowed], y: Tensor, n: int) -> tuple[Stacked, Tensor]:
        """u_Θ of all members as one batch of networks, and their conditions, each n times: (K, B·n, f)."""
        fields = Stacked([chain.u_theta for chain in chains if chain.u_theta is not None], natively=True)
        return fields, torch.stack([chain.condition(y) for chain in chains]).repeat_interleave(n, dim=1)

    def to_config(self) -> dict[str, Any]:
        fields = {
            name: None if u is None else u.to_config() for name, u in (("u_x", self.u_x), ("u_theta", self.u_theta))
        }
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


def _alike(members: Sequence[Posterior]) -> list[JointFlowed] | None:
    """Members of one ensemble, whose networks can be evaluated as one batch; None if there is nothing to gain."""
    chains = [member for member in members if isinstance(member, JointFlowed)]
    flat = all(isinstance(chain.y_scale, FlatStandardiser) for chain in chains)
    return chains if flat and 1 < len(chains) == len(members) else None


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

    def skipped(self, problem: Problem) -> str | None:
        if not problem.base.amortised:
            return "the base posterior is not amortised, and tens of thousands of x̃ would be too slow"
        return why_not_transported(problem)

    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> list[JointFlowed]:
        assert problem.x is not None
        base, space, number, solver = problem.summarised, problem.space, len(subsets), Solver("midpoint", 4)
        rows = tiled(subsets)
        size, member = rows.shape[1], torch.arange(number)[:, None]
        x_scales = [scale_of_simulations(problem, index) for index in subsets]
        y_scales = [FlatStandardiser(problem.seen[index]) for index in subsets]
        y = torch.stack([scale(problem.seen[r]) for scale, r in zip(y_scales, rows, strict=True)])
        y = clipped(y)
        x1 = torch.stack([scale(problem.x[r]).flatten(2) for scale, r in zip(x_scales, rows, strict=True)])
        z1, dim = problem.z[rows], y.shape[2]
        u_x, u_theta = members(dim, dim, (64, 64), number), members(space.dim, dim, (64, 64), number)
        copies, pool = max(1, 2000 // (number * size)), torch.empty(0)
        places = [split_rows(torch.arange(len(index)), problem.theta[index], self.validation) for index in subsets]

        def draw_pool() -> Tensor:
            """z_0 for every row of every member, (K, n, copies, p), with u_X as it is now."""
            again = y.repeat_interleave(copies, dim=1)
            x = carry(u_x, again + self.sigma * torch.randn_like(again), again, solver)
            x = x.unflatten(2, problem.seen.shape[1:])
            x = torch.cat([scale.inverse(each) for scale, each in zip(x_scales, x, strict=True)])
            z0 = space.to_z_safely(base.sample(x, 1)[:, 0])
            return z0.reshape(number, size, copies, -1)

        def loss(step: int) -> Tensor:
            nonlocal pool
            if step % self.refresh == 0:
                pool = draw_pool()
            return joint_loss(torch.stack([t[torch.randint(len(t), (self.batch_size,))] for t, _ in places]))

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
            with seeded(0):  # the same noise and times at every look
                return joint_loss(held_out)

        held_out = tiled([v for _, v in places])
        held_out = held_out.repeat(1, -(-256 // held_out.shape[1]))
        pool = draw_pool()
        best = descend([u_x, u_theta], loss, self.steps, self.learning_rate, validate=validate, clip=1.0)
        parts = zip(x_scales, y_scales, unstacked(u_x, best[0]), unstacked(u_theta, best[1]), strict=True)
        return [JointFlowed(base, space, xs, ys, ux, ut, self.sigma, solver, True) for xs, ys, ux, ut in parts]
