"""The interface of candidates, and the posteriors that they return: fitted on some pairs and scored on others."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from typing_extensions import Self

from fmcpe._options import LARGEST, Limits, check_options
from fmcpe._random import derive, seeded
from fmcpe.base_posteriors.base import BasePosterior, Remembered
from fmcpe.problem import Problem, groups_of
from fmcpe.spaces import ParameterSpace


@dataclass(frozen=True)
class Shared:
    """Components shared by all parts of a posterior; a file stores them once.

    Args:
        base: The base posterior on raw data.
        space: Physical θ <-> z.
        target_prior: The distribution of θ in use.
        pool: Draws of it, in z, (L, p).
        embedding_net: A user's network that a file cannot describe.
    """

    base: BasePosterior
    space: ParameterSpace
    target_prior: Distribution
    pool: Tensor
    embedding_net: nn.Module | None = None


class Posterior(nn.Module, ABC):
    """A fitted p(z | y), in unconstrained, standardised parameters z.

    `to_config` and `from_config` describe its architecture; the numbers are its `state_dict`.
    """

    space: ParameterSpace
    """Physical θ <-> z. Members share it and a file stores it once, so it is not registered as a submodule."""

    components: int = 1
    """Draws of x̃ in its density, where that is a Monte-Carlo mixture."""

    transductive: ClassVar[bool] = False
    """Whether the answer for one observation depends on the others in its batch."""

    least: ClassVar[int] = 1
    """Fewest draws for each row, of which a call for fewer returns a part."""

    @abstractmethod
    def sample(self, y: Tensor, n: int) -> Tensor:
        """Draws for raw observations: (B, ...) -> (B, n, p)."""

    @abstractmethod
    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        """Log density in z: (B, n, p) and (B, ...) -> (B, n)."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """Key of the members that a mixture evaluates together."""
        return (type(self),)

    @classmethod
    def sample_together(cls, members: Sequence[Self], y: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """Draws of members of one kind, `counts` of each; a subclass shares work between them."""
        return [member.sample(y, n) for member, n in zip(members, counts, strict=True)]

    @classmethod
    def log_prob_together(cls, members: Sequence[Self], z: Tensor, y: Tensor) -> list[Tensor]:
        """Log densities of members of one kind; a subclass shares work between them."""
        return [member.log_prob(z, y) for member in members]

    @abstractmethod
    def to_config(self) -> dict[str, Any]:
        """Arguments of `from_config`, apart from the shared components, as JSON."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> Posterior:
        """A posterior of this architecture; its tensors are loaded afterwards."""


class Candidate(ABC):
    """A method that turns calibration pairs into a posterior.

    Everything that `fit` computes or tunes from pairs (standardisation, penalties, sizes, early stopping, recalibration) uses
    the rows it is given and no others.
    """

    name: ClassVar[str]
    uses_pairs: ClassVar[bool] = True
    """Whether the fit depends on the pairs. If not, there is a single member, and it is scored on all pairs."""
    preferred: ClassVar[bool] = False
    """Whether the preference β of `Stack` is for this candidate."""
    needs_unlabelled: ClassVar[bool] = False
    """Whether `Stack` passes over it where `fit` got no ``y_unlabelled=``."""
    effort: ClassVar[float] = 1.0
    """Approximate time of a fit relative to other candidates, for the progress bar."""

    limits: ClassVar[Mapping[str, Limits]] = {}
    """Limits of options (`check_options`); by default, integers are at least 1 and other numbers positive."""

    def __post_init__(self) -> None:
        if is_dataclass(self):
            check_options(self, self.limits, LARGEST)

    def skipped(self, problem: Problem) -> str | None:
        """The reason why this candidate cannot be fitted to a problem; None if it can."""
        return None

    @abstractmethod
    def fit_members(self, problem: Problem, subsets: Sequence[Tensor]) -> Sequence[Posterior]:
        """One posterior per set of row numbers, fitted on those rows alone; their networks are trained as one batch."""

    def fit(self, problem: Problem, rows: Tensor) -> Posterior:
        """The posterior fitted on these rows."""
        return self.fit_members(problem, [rows])[0]


class Transported(Posterior):
    r"""The base posterior between a transport of the data and a transport of the parameters.

        y -> x̃ ~ source(y),   z_0 ~ p̂(z | x̃),   z = push(z_0, y)

    A subclass overrides `source`, or `push` and `pull`, or both; this class itself is the uncorrected posterior. The density is
    \( \log p(z|y) = \log K^{-1} \sum_k \hat p(z_0 | \tilde x_k) - \log|\det \partial z / \partial z_0| \), a Monte-Carlo
    mixture over x̃.

    Args:
        base: The base posterior, conditioned on raw data or on its own summary of them.
        space: Physical θ <-> z.
    """

    is_random: bool = False
    """Whether x̃ is random; otherwise the mixture has a single component."""

    def __init__(self, base: BasePosterior, space: ParameterSpace) -> None:
        super().__init__()
        object.__setattr__(self, "space", space)
        self.base, self.components, self._last = base, base.components, Remembered()

    def source(self, y: Tensor, n: int) -> Tensor:
        """x̃ for raw observations, as the base posterior takes it: (B, ...) -> (B, n, *summary)."""
        seen = self.base.summarise(y)
        return seen[:, None].expand(-1, n, *seen.shape[1:])

    def push(self, z: Tensor, y: Tensor) -> Tensor:
        """Z of z_0, (B, n, p)."""
        return z

    def pull(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """z_0 of z, (B, n, p), and the log-determinant of `push` there, (B, n)."""
        return z, z.new_zeros(z.shape[:2])

    @torch.no_grad()
    def sample(self, y: Tensor, n: int) -> Tensor:
        if not self.is_random:
            theta = self.base.sample(self.source(y, 1)[:, 0], n)
        else:
            theta = self.base.sample(self.source(y, n).flatten(0, 1), 1)[:, 0].unflatten(0, (len(y), n))
        return self.push(self.space.to_z_safely(theta), y)

    @property
    def kind(self) -> tuple[Any, ...]:
        return type(self), id(self.base)

    @classmethod
    @torch.no_grad()
    def sample_together(cls, members: Sequence[Self], y: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """One call of the base posterior serves all members."""
        if len(members) == 1:
            return super().sample_together(members, y, counts)
        x = torch.cat([member.source(y, n) for member, n in zip(members, counts, strict=True)], dim=1)
        theta = members[0].base.sample(x.flatten(0, 1), 1)[:, 0]
        z = members[0].space.to_z_safely(theta).unflatten(0, x.shape[:2]).split(list(counts), dim=1)
        return [member.push(part, y) for member, part in zip(members, z, strict=True)]

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        z0, log_det = self.pull(z, y)
        return log_probs_of_sources([self], [z0], [log_det], y)[0]

    @classmethod
    def log_prob_together(cls, members: Sequence[Self], z: Tensor, y: Tensor) -> list[Tensor]:
        """One call of the shared base posterior serves all members."""
        pulled = [member.pull(z, y) for member in members]
        return log_probs_of_sources(members, [each[0] for each in pulled], [each[1] for each in pulled], y)

    def to_config(self) -> dict[str, Any]:
        return {"summarised": self.base.summarised() is self.base, "components": self.components}

    @classmethod
    def from_config(cls, config: dict[str, Any], shared: Shared) -> Transported:
        return cls(base_of(config, shared), shared.space)


def log_probs_of_sources(
    members: Sequence[Transported], z0: Sequence[Tensor], log_det: Sequence[Tensor], y: Tensor, rows: int = 20_000
) -> list[Tensor]:
    """Log density of members that share a base posterior, at the output of `pull` for each; at most `rows` θ per call."""
    fresh: list[tuple[Tensor, Tensor]] = []

    def component(k: int) -> tuple[Tensor, Tensor]:
        fresh.extend([] if fresh else _components(members, y))
        return fresh[k]

    mixtures = [member._last(y, partial(component, k)) for k, member in enumerate(members)]
    base, space, sizes = members[0].base, members[0].space, [x.shape[1] for x, _ in mixtures]
    at_once = max(1, rows // max(1, z0[0].shape[1] * max(sizes)))
    found: list[list[Tensor]] = [[] for _ in members]
    for b in range(len(y)):
        for start in range(0, len(members), at_once):
            some = range(start, min(start + at_once, len(members)))
            theta = {k: space.to_theta(z0[k][b]) for k in some}
            each = torch.cat([theta[k].expand(sizes[k], *theta[k].shape) for k in some])  # (Σ K, n, p)
            x, mass = (torch.cat([mixtures[k][i][b] for k in some]) for i in range(2))
            parts = base.log_prob(each, x, mass).split([sizes[k] for k in some])
            for k, density in zip(some, parts, strict=True):
                log_jacobian = space.log_abs_det(theta[k], z0[k][b]) + log_det[k][b]
                found[k].append(density.logsumexp(0) - math.log(sizes[k]) - log_jacobian)
    return [torch.stack(each) for each in found]


@torch.no_grad()
def _components(members: Sequence[Transported], y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """x̃ of each member's mixture, (B, K, ...), and the log mass of each inside the support; from fixed draws."""
    found = []
    with seeded(0):  # one stream for all members: with the same noise for each, their errors would not average out
        for member in members:
            found.append(member.source(y, member.components if member.is_random else 1))
    with seeded(0):
        mass = members[0].base.log_acceptance(torch.cat([x.flatten(0, 1) for x in found]))
    parts = mass.split([x.shape[0] * x.shape[1] for x in found])
    return [(x, part.unflatten(0, x.shape[:2])) for x, part in zip(found, parts, strict=True)]


def base_of(config: dict[str, Any], shared: Shared) -> BasePosterior:
    """The base posterior of a member, conditioned on its own summary or on raw data."""
    return shared.base.summarised() if config["summarised"] else shared.base


def clipped(features: Tensor, limit: float = 4.0) -> Tensor:
    """Standardised features, clipped to `limit` standard deviations to prevent extrapolation."""
    return features.clamp(-limit, limit)


def split_each(subsets: Sequence[Tensor], theta: Tensor, share: float) -> tuple[list[Tensor], list[Tensor]]:
    """Training and validation rows of each member; each split has a seed of its own, independent of other members."""
    seed = int(torch.randint(2**31, ()))
    splits = []
    for member, rows in enumerate(subsets):
        with seeded(derive(seed, member)):
            splits.append(split_rows(rows, theta, share))
    return [each[0] for each in splits], [each[1] for each in splits]


def tiled(subsets: Sequence[Tensor], size: int) -> Tensor:
    """Row numbers of all members as one matrix, (K, size): each repeats its own."""
    return torch.stack([rows.repeat(-(-size // len(rows)))[:size] for rows in subsets])


def number_held_out(number: int, share: float) -> int:
    """Size of the validation part of `number` rows: at least one, and at least one is left to train on."""
    return min(max(1, round(share * number)), max(1, number - 1))


def split_rows(rows: Tensor, theta: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Training and validation rows of one member; repeated θ stay together. A single θ is both."""
    groups, distinct = groups_of(theta[rows])
    if distinct == 1:
        return rows, rows
    chosen = torch.randperm(distinct, device=theta.device)[: number_held_out(distinct, share)]
    inside = torch.isin(groups, chosen)
    return rows[~inside], rows[inside]
