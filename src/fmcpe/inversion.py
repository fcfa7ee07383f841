r"""Bayes' rule for a regression of data on θ: \( p(\theta | y) \propto p(y | \theta) p(\theta) \), drawn in a few steps.

    θ_0:       one of a pool of draws of the prior, each as likely as p(y|θ)^β says, β so small that many of them count
    uphill:    where β < 1, Newton's steps from several of them to where the posterior is high; θ_0 is then drawn from normals
               around these, by weight, so that each mode has its share
    Metropolis steps:  z' = z + γ (z_a - z_b), a and b two more of the pool, picked likewise, in turn with steps to a draw of
               the posterior of the regression made straight at z, or where that is wide a part of the way

The difference of two draws of the pool knows the posterior's shape, bent or correlated as it may be, and needs no tuning; where
the posterior is far narrower than the pool is fine, Newton's steps land in it at once. Where the pool is fine enough, β
is 1, and the draws are exact but for the pool's size. All rows take their steps at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal

from fmcpe._random import seeded
from fmcpe.drawing import Picker, kth_largest
from fmcpe.forward import Forward
from fmcpe.normals import Normals
from fmcpe.proposal import Proposal
from fmcpe.surface import PriorPool, Surface

POOL = 4096, 8192
"""Draws of the prior that every draw of the posterior starts from, for up to three parameters, and for more."""

_FEW_DRAWS, _SMALL_POOL, _FEW_ROWS = 8, 512, 1000
"""Where an observation has fewer draws than this, a part of the pool is asked, another one for every so many rows: looking
through all of it would be most of the work."""
_HOLDS, _ENOUGH, _FRESH = (0.0, 10.0), 0.8, 0.98
"""Rounds of Metropolis steps, by how firmly draws are held; after one without any hold they end, if of its steps the first
share was accepted, and the second of the rows have taken one."""
_CLIMBS, _PARTS, _LONGEST, _SHORTEST = 10, (1.0, 0.25, 0.05), 2.0, 1e-3
"""Steps uphill, the shares of one that are tried, and how long one is at most and at least."""
_CLIMBERS, _CLIMBERS_OF_LINE = (4, 48), (2, 8)
"""How many start at least for an observation that has few draws, and for one that has more, which are alike if they share few;
and likewise where data go straight with θ."""
_TRIED, _FITS, _HELD = 6, 0.01, 30.0
"""Draws around them for each that is wanted, the share of these that has to count, and how firmly every other is held."""
_COUNTED, _GAP = 32, 3.0
"""β: so many draws of the pool are within a factor of e to this of the most likely one."""
_ROWS = 2000
"""Rows at a time."""
_FOR_EVIDENCE, _WIDER = 512, 1.5
"""Draws that the evidence is estimated by, and how much wider the normals around them are."""


class InvertedProposal(Proposal):
    """The posterior of a regression of real data on θ.

    It is a function of what the regression sees of the data, and, if that is asked for, of what the base posterior sees of
    them: (q,) or (q + f,).

    Args:
        forward: The regression.
        base: The base posterior: its prior, what it sees of data (for the flows that may follow), and all draws but `share`.
        pool: Draws of the prior, physical, (M, p).
        share: Probability that a draw is of this posterior; all others are of `base`.
        asks_base: Whether what the base posterior sees is asked for: if it has a share, or if flows follow.
    """

    def __init__(
        self, forward: Forward, base: Proposal, pool: Tensor, share: float = 1.0, asks_base: bool = True
    ) -> None:
        self.forward, self.base, self.pool, self.share = forward, base, pool, share
        self.asks_base = asks_base or share < 1
        self._surface = Surface(forward, PriorPool(base.prior, pool))
        super().__init__(base.prior, None)

    @property
    def raw_shape(self) -> torch.Size | None:
        return self.base.raw_shape

    @torch.no_grad()
    def summarise(self, data: Tensor) -> Tensor:
        seen = self.forward.see(data)
        return torch.cat([seen, self.base.summarise(data).flatten(1)], dim=1) if self.asks_base else seen

    def _of_base(self, x: Tensor) -> Tensor:
        """What the base posterior sees of the data, as it takes it."""
        seen = x[:, self.forward.size.directions :]
        return seen if self.base.x_shape is None else seen.unflatten(1, self.base.x_shape)

    def _may_leak(self) -> bool:
        return self.share < 1 and self.base._may_leak()

    # ------------------------------------------------------------------ draws

    @torch.no_grad()
    def _draw(self, x: Tensor) -> Tensor:
        theta = self._draw_inverted(x)
        if self.share == 1:
            return theta
        # of all rows, as draws of one observation have to stay together
        others = self.base._draw(self._of_base(x))
        return torch.where(torch.rand(len(x), 1, device=x.device) < self.share, theta, others)

    def _draw_inverted(self, x: Tensor) -> Tensor:
        # draws of one observation come one after the other: what the pool says of it is asked once
        each, counts = torch.unique_consecutive(x[:, : self.forward.size.directions], dim=0, return_counts=True)
        z = x.new_empty(len(x), self._surface.space.dim)
        # data that are rounded repeat themselves: those that do so equally often are drawn together
        for copies in counts.unique().tolist():
            these = counts == copies
            z[these.repeat_interleave(counts)] = self._draw_all(each[these], copies)
        return self._surface.space.to_theta(z)

    def _draw_all(self, each: Tensor, copies: int) -> Tensor:
        """So many z for each observation, (U, q) -> (U * copies, p), some of them at a time."""
        if copies > _ROWS:
            parts = [min(_ROWS, copies - begun) for begun in range(0, copies, _ROWS)]
            return torch.cat([self._draw_z(one, part) for one in each.split(1) for part in parts])
        rows = _ROWS if copies >= _FEW_DRAWS else _FEW_ROWS
        return torch.cat([self._draw_z(some, copies) for some in each.split(max(1, rows // copies))])

    def _draw_z(self, each: Tensor, copies: int) -> Tensor:
        """So many z for each observation, (U, q) -> (U * copies, p)."""
        pool, (mean, factor) = self._surface.pool.z, self._surface.expected
        if copies < _FEW_DRAWS:  # another part at every call: what it lacks averages out
            part = torch.randperm(len(pool), device=pool.device)[:_SMALL_POOL]
            pool, mean, factor = pool[part], mean[part], factor[part]
        log_likelihood = self.forward.against_all((mean, factor), each)
        gap = log_likelihood.amax(1, keepdim=True) - kth_largest(log_likelihood, min(_COUNTED, len(pool)))
        start = (_GAP / gap.clamp_min(1e-12)).clamp_max(1.0)
        pick = Picker((start * log_likelihood).softmax(1))
        z, seen, start = pool[pick(copies)], each.repeat_interleave(copies, dim=0), start[:, 0]
        coarse = (start < 1).nonzero()[:, 0]
        if len(coarse):
            few, many = _CLIMBERS_OF_LINE if self.forward.is_straight else _CLIMBERS
            climbers = pool[pick(max(few, copies) if copies < _FEW_DRAWS else many)[coarse]]
            z[coarse] = self._near(climbers, each[coarse], copies)
        z, rounds = z.flatten(0, 1), len(_HOLDS)
        others = pool[pick(copies * 2 * rounds)].unflatten(1, (copies, 2 * rounds)).flatten(0, 1)
        reach = start.sqrt().repeat_interleave(copies)[:, None] * (2.38 / math.sqrt(2 * z.shape[1]))
        value = self._surface.values(z, seen)
        for turn, hold in enumerate(_HOLDS):
            moved = z + reach * (others[:, 2 * turn] - others[:, 2 * turn + 1])
            z, value, _ = _metropolis((z, value), (moved, self._surface.values(moved, seen)), 0.0)
            z, value, accepted = self._towards_normals(z, value, seen, hold)
            if hold == 0 and bool((accepted.any(0).float().mean() > _FRESH) & (accepted.float().mean() > _ENOUGH)):
                break  # then the posterior is nearly normal, and each row has come to a draw of its own
        return z

    def _near(self, climbers: Tensor, each: Tensor, copies: int) -> Tensor:
        """Draws from normals around where climbers (U, K, p) arrive, picked by weight: (U, copies, p).

        Each mode so has its share, however many climbers came to it.
        """
        number, seen = climbers.shape[1], each.repeat_interleave(climbers.shape[1], dim=0)
        tops = self._climb(climbers.flatten(0, 1), seen)
        around = self._surface.normals(tops, seen)
        every_other = torch.arange(len(tops), device=each.device) % 2 == 0
        root = torch.where(every_other[:, None, None], around.root, around.narrowed(_HELD).root) / _WIDER
        root, tops = root.unflatten(0, climbers.shape[:2]), tops.unflatten(0, climbers.shape[:2])
        tried = torch.arange(_TRIED * max(copies, number), device=each.device)
        of = tried % number
        drawn = (
            Normals(tops[:, of].flatten(0, 1), root[:, of].flatten(0, 1)).sample().unflatten(0, (len(each), len(tried)))
        )
        log_q = Normals(tops, root).log_prob_of_all(drawn).logsumexp(2)
        log_p = self._surface.values(drawn.flatten(0, 1), each.repeat_interleave(len(tried), dim=0)).unflatten(
            0, log_q.shape
        )
        weights = (log_p - log_q).softmax(1).nan_to_num(0.0).clamp_min(1e-30)
        # on the sharpest of bent ridges no draw of a straight normal counts: where climbers arrived is better then
        fits = 1 / weights.square().sum(1).clamp_min(1e-12) > _FITS * len(tried)
        index = torch.multinomial(torch.where(fits[:, None], weights, 1.0), copies, replacement=True)
        places = torch.where(fits[:, None, None], drawn, tops[:, of])
        return places.gather(1, index[:, :, None].expand(-1, -1, places.shape[2]))

    def _climb(self, z: Tensor, seen: Tensor) -> Tensor:
        """Newton's steps uphill, in each direction as far as draws lie and no further; shortened where they overshoot.

        Where the posterior is a long and bent ridge, rows so come to lie all along it. Far from all data Student's t is flat;
        the normal distribution that is taken in its place is not.
        """
        parts = torch.tensor(_PARTS, device=z.device)[:, None, None]
        out, rows, value = z.clone(), torch.arange(len(z), device=z.device), self._surface.values(z, seen)
        for _ in range(_CLIMBS):
            step = self._surface.normals(z, seen, normal_noise=True).nearest(z) - z
            length = step.norm(dim=1)
            on_the_way = length >= _SHORTEST  # the others have arrived
            if not bool(on_the_way.any()):
                break
            rows, z, value, seen = (part[on_the_way] for part in (rows, z, value, seen))
            step = step[on_the_way] * (_LONGEST / length[on_the_way].clamp_min(_LONGEST))[:, None]
            moved = z + parts * step  # all at once, the longest that leads up counts
            moved_value = self._surface.values(moved.flatten(0, 1), seen.repeat(len(parts), 1)).unflatten(
                0, moved.shape[:2]
            )
            higher = moved_value > value
            first = higher.int().argmax(0)
            up, index = higher.any(0), torch.arange(len(z), device=z.device)
            z = torch.where(up[:, None], moved[first, index], z)
            value = torch.where(up, moved_value[first, index], value)
            out[rows] = z
        return out

    def _towards_normals(self, z: Tensor, value: Tensor, seen: Tensor, hold: float) -> tuple[Tensor, Tensor, Tensor]:
        """Two Metropolis steps towards a draw of the posterior of the regression made straight at z, held there or not.

        Returns z, its values, and which rows were accepted, (2, B).
        """
        here, accepted = self._surface.normals(z, seen).held(z, hold), []
        for _ in range(2):
            moved = here.sample()
            moved_value, there = self._surface.values_and_normals(moved, seen)
            there = there.held(moved, hold)
            gain = there.log_prob(z) - here.log_prob(moved)
            z, value, taken = _metropolis((z, value), (moved, moved_value), gain)
            here = there.where(taken, here)
            accepted.append(taken)
        return z, value, torch.stack(accepted)

    # ------------------------------------------------------------------ density

    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        seen = x[:, : self.forward.size.directions]
        inside = self._inside(theta)
        safe = torch.where(inside[:, None], theta, self.pool[:1])
        prior = self.prior.log_prob(safe).to(theta)
        # in double: where noise is small, distances are small differences of large numbers
        mean, factor = (part.double() for part in self.forward.expect(safe))
        joint = self.forward.against_all((mean, factor), seen.double()).T.to(theta) + prior[:, None]
        inverted = joint - self.log_evidence(seen)
        if self.share == 1:
            return inverted
        other = self.base._log_density(theta, self._of_base(x))
        return torch.logaddexp(inverted + math.log(self.share), other + math.log(1 - self.share))

    @torch.no_grad()
    def log_evidence(self, seen: Tensor) -> Tensor:
        """Log of the likelihood's mean over the prior for each row of what is seen, (K, q) -> (K,): the same at every call.

        By importance sampling from normals around draws of the posterior, each as wide as the posterior made straight there.
        """
        with seeded(0):
            return torch.stack([self._log_evidence(row) for row in seen])

    def _log_evidence(self, seen: Tensor) -> Tensor:
        rows = seen.expand(_FOR_EVIDENCE, -1)
        z = self._draw_z(seen[None], _FOR_EVIDENCE)
        root = self._surface.normals(z, rows).root / _WIDER
        normals = MultivariateNormal(z.double(), precision_matrix=(root @ root.mT).double())
        drawn = normals.sample()
        log_q = normals.log_prob(drawn[:, None]).logsumexp(1) - math.log(_FOR_EVIDENCE)
        log_p = self._surface.values(drawn.to(z), rows).double()
        return ((log_p - log_q).logsumexp(0) - math.log(_FOR_EVIDENCE)).to(z)

    def to(self, device: str | torch.device) -> Proposal:
        self.forward.to(device)
        self.base.to(device)
        self.pool = self.pool.to(device)
        self._surface = Surface(self.forward, PriorPool(self.prior, self.pool))
        return self


def _metropolis(
    stayed: tuple[Tensor, Tensor], moved: tuple[Tensor, Tensor], log_factor: Tensor | float
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (B, p) and their values (B,), moved where chance accepts it, and where that was."""
    (z, value), (moved_z, moved_value) = stayed, moved
    accepted = torch.rand_like(value).log() < moved_value - value + log_factor
    return torch.where(accepted[:, None], moved_z, z), torch.where(accepted, moved_value, value), accepted


class OfBase(nn.Module):
    """Of what a regression and, after it, the base posterior see of y, (B, q + f), the base posterior's part.

    Args:
        proposal: Whose y it is.
    """

    def __init__(self, proposal: InvertedProposal) -> None:
        super().__init__()
        self._part = proposal._of_base

    def forward(self, y: Tensor) -> Tensor:
        return self._part(y)


def draw_pool(prior: Distribution, device: torch.device) -> Tensor:
    """A pool of draws of the prior."""
    few = prior.sample((POOL[0],)).to(device, torch.float32)
    return few if few.shape[1] <= 3 else torch.cat([few, prior.sample((POOL[1] - len(few),)).to(few)])
