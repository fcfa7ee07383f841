"""Ways to start: closed forms, Bayes' rule, fine-tuning, each fitted on some of the pairs and asked about others.

What stands here knows the pairs, the simulator and the base posterior; which way is kept is decided in `fmcpe.crossfit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fmcpe.adapters import DensityProposal, SummaryProposal
from fmcpe.evidence import ENOUGH_PAIRS, PRIOR, SHARED, Evidence, left_out
from fmcpe.forward import Size, coordinates, fit_forward
from fmcpe.inversion import InvertedProposal, OfBase, draw_pool
from fmcpe.likeness import likely_distortions
from fmcpe.networks import VelocityField
from fmcpe.ode import Solver
from fmcpe.proposal import PriorProposal, Proposal
from fmcpe.recipe import Recipe
from fmcpe.roughen import on_a_baseline
from fmcpe.shift import fit_shift
from fmcpe.sizes import choose_size
from fmcpe.source import fit_move, fit_step
from fmcpe.spaces import ParameterSpace, Standardiser
from fmcpe.summary import TunedProposal, imitations, shifted, tune
from fmcpe.surface import PriorPool
from fmcpe.warm import FURTHEST, MANY_NUMBERS, LastRow, WarmChain, summary_for

MOST_DRAWS, FEWEST_DRAWS, ALL_DRAWS = 64, 8, 6_000
"""Left-out draws per pair, and of all pairs together: what evidence is made of, and where the flows start in training."""

DRAWS_TO_FIT = 3_000
"""Draws that a closed form is fitted on: means over few of them are noisy, which is taken account of (`fmcpe.source`)."""

_ROWS_AT_ONCE = 2000
"""Simulations held as raw data at a time."""

_MOST = 0.5
"""Share of the difference between data and simulations that a shift has to predict for members to be tuned behind it."""

_CANNOT_TELL = 1.0
"""Nats by which few pairs may be wrong about which of two regressions says more."""

_WIDER, _WIDEST = 4.0, 100.0
"""Factor of a regression's variance that is tried, and where there is no end to it."""

_COMPARED = 1024
"""Draws of the prior that regressions are compared by."""


class Starts:
    """The pairs of one fit, and what can be made of them.

    Args:
        proposal: The base posterior, on raw data.
        theta: Physical parameters of the pairs, (N, p).
        y: Real observations, (N, ...).
        x: Simulations at θ of the pairs, (N, ...), where they are given.
        simulator: What makes them where they are not, θ (N, p) -> x (N, ...).
        replay: Simulations from the prior, θ and x; None where there is no simulator.
        space: Physical θ <-> z.
        recipe: Hyper-parameters.
        show_progress_bars: Whether to show progress once it takes more than two seconds.
    """

    def __init__(
        self,
        proposal: Proposal,
        theta: Tensor,
        y: Tensor,
        x: Tensor | None,
        simulator: Callable[[Tensor], Tensor] | None,
        replay: tuple[Tensor, Tensor] | None,
        space: ParameterSpace,
        recipe: Recipe,
        show_progress_bars: bool,
    ) -> None:
        self.raw, self.proposal, self.recipe, self.space = proposal, proposal.summarised(), recipe, space
        self.theta, self.y, self.replay, self.show = theta, y, replay, show_progress_bars
        self.z = space.to_z_safely(theta)
        # a measured θ may lie on a bound, where the density of a flow over the support is nothing to learn from
        self.theta_inside = space.to_theta(self.z)

        summarise = self.proposal.summarise
        self.prepared = summarise(y)
        self.x: Tensor | None = None if x is None else summarise(x)[:, None]
        self.x_mean: Tensor | None = x
        self.simulations: Tensor | None = None if x is None else x[:, None]
        if simulator is not None:
            self.x, self.x_mean, self.simulations = self._simulate(simulator)
        flat = self.prepared[0].numel()
        self.can_move = self.x is not None and flat <= MANY_NUMBERS
        if replay is not None:
            self.x_scale = Standardiser(summarise(replay[1]))
        else:
            self.x_scale = Standardiser(self.prepared if self.x is None else self.x.flatten(0, 1))
        self.summary = summary_for(flat)
        self.y_scale = Standardiser(self.summary(self.prepared))
        self.features = self.y_scale(self.summary(self.prepared)).clamp(-FURTHEST, FURTHEST)
        self.groups, self.distinct = _groups(theta)
        order = torch.randperm(self.distinct, device=y.device)[self.groups]
        self.folds = order % min(recipe.folds, self.distinct)
        # closed forms are cheap: with few pairs, more folds leave out less
        self.small_folds = order % min(10, self.distinct) if self.distinct <= 100 else self.folds
        self.copies = max(FEWEST_DRAWS, min(MOST_DRAWS, self.proposal.components, ALL_DRAWS // len(theta)))
        self.adapted: dict[str, TunedProposal] = {}
        self.shift_helps = False
        self._pool: Tensor | None = None
        self._sizes: list[Size] = []

    def _simulate(self, simulator: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Simulations at θ of the pairs: summaries (N, S, ...), the mean of raw ones (N, ...), and these, if needed."""
        summaries, means, simulations, number = [], [], [], self.recipe.num_simulations
        keep = imitations(len(self.y), self.y[0].numel()) > 0
        for part in self.theta.split(max(1, _ROWS_AT_ONCE // number)):
            raw = simulator(part.repeat_interleave(number, dim=0)).unflatten(0, (len(part), number))
            summaries.append(self.proposal.summarise(raw.flatten(0, 1)).unflatten(0, (len(part), number)))
            means.append(raw.mean(1))
            simulations += [raw] if keep else []
        return torch.cat(summaries), torch.cat(means), torch.cat(simulations) if keep else None

    def start(self, name: str, rows: Tensor) -> WarmChain:
        """A warm start by name, fitted on some of the pairs."""
        if name == PRIOR:
            return self._chain(PriorProposal(self.raw.prior, self.y.shape[1:]))
        if name == "uncorrected":
            return self._chain(self.proposal)
        chain, features = self._chain(self.proposal), self.features[rows]
        copies = max(FEWEST_DRAWS, min(self.copies, DRAWS_TO_FIT // len(rows)))
        if name == "stepped":
            x = self.prepared[rows].repeat_interleave(copies, dim=0)
        else:
            assert self.x is not None
            y = self.x_scale(self.prepared[rows]).flatten(1)
            simulations = self.x_scale(self.x[rows]).flatten(2)
            chain.move, left_out_x = fit_move(features, y, simulations, copies)
            x = self.x_scale.inverse(left_out_x.unflatten(1, chain.shape))
        if name != "x-only":
            few = max(4, copies // 4)  # of these only a linear fit of their mean is wanted
            z0 = chain.draw_z0(self.prepared[rows], few).unflatten(0, (len(rows), few))
            z0_left_out = self.space.to_z_safely(self.proposal.sample(x)).unflatten(0, (len(rows), copies))
            chain.step = fit_step(features, z0, z0_left_out, self.z[rows])
        return chain

    def _chain(self, proposal: Proposal) -> WarmChain:
        solver = Solver(self.recipe.solver, self.recipe.steps)
        return WarmChain(proposal, self.space, self.summary, self.x_scale, self.y_scale, None, None, (), solver)

    def left_out_draws(self, name: str) -> Tensor:
        """z_0 for each pair from a start that was fitted without it: (N, S, p)."""
        draws = self._left_out_draws(name)
        return self._as_wide_as_they_should_be(draws) if name == "inverted" else draws

    def _as_wide_as_they_should_be(self, draws: Tensor) -> Tensor:
        """Left-out draws of Bayes' rule, of regressions with as much more variance as pairs do not speak against.

        In doubt, within a standard error of the best, the less sure, unless that hides what is known of one parameter. Which
        regression, and how wide, was chosen by its density at the truth, which is mostly about the directions that data tell
        well. What no polynomial describes may say nonsense, and far too surely, of those that they hardly tell.
        """
        sizes, best = self._sizes, self.evidence(draws)
        first, enough = best, self.distinct >= ENOUGH_PAIRS  # with few pairs, nearly everything is in doubt
        while self._sizes[0].widening < _WIDEST:
            self._sizes = [size._replace(widening=_WIDER * size.widening) for size in sizes]
            wider = self._left_out_draws("inverted")
            found = self.evidence(wider)
            in_doubt = enough and not best.beats(found) and not first.beats_in_one(found)
            if found.mean > best.mean and not in_doubt:
                break
            draws, sizes, best = wider, self._sizes, min(best, found, key=lambda evidence: evidence.mean)
        self._sizes = sizes
        return draws

    def _left_out_draws(self, name: str) -> Tensor:
        draws = self.z.new_empty(len(self.z), self.copies, self.z.shape[1])
        folds, y = self.small_folds, self.y
        if name == "tuned":
            folds, y = self.folds, self._tune()
        for k in range(int(folds.max()) + 1):
            inside, outside = (folds == k).nonzero()[:, 0], (folds != k).nonzero()[:, 0]
            if name == "tuned":
                z0 = self._draw(self.adapted[name].members[k], y[inside])
            elif name == "shifted":
                z0 = self._draw(self._shift(outside), y[inside])
            elif name == "inverted":
                z0 = self._draw(self._invert(outside), y[inside])
            else:
                z0 = self.start(name, outside).draw_z0(self.prepared[inside], self.copies)
            draws[inside] = z0.unflatten(0, (len(inside), self.copies))
        return draws

    def evidence(self, draws: Tensor) -> Evidence:
        """What left-out draws, (N, S, p), say."""
        return left_out(draws, self.z, self.groups)

    def draws_for_simulations(self) -> Tensor | None:
        """z_0 of the base posterior for a simulation at θ of each pair, (N, S, p), where there are simulations."""
        if self.x is None:
            return None
        draws = self.proposal.sample(self.x[:, 0].repeat_interleave(self.copies, dim=0))
        return self.space.to_z_safely(draws).unflatten(0, (len(self.x), self.copies))

    def _draw(self, proposal: Proposal, y: Tensor) -> Tensor:
        """z_0 for raw observations."""
        x = proposal.summarise(y).repeat_interleave(self.copies, dim=0)
        return self.space.to_z_safely(proposal.sample(x))

    def _invert(self, rows: Tensor, shared: bool = False, described: bool = False) -> InvertedProposal:
        """Bayes' rule for real data regressed on θ, by some of the pairs; `shared`, half of the draws are from shifted data.

        `described`, it tells flows what the base posterior sees.
        """
        assert self._pool is not None
        together: Proposal = self._shift(rows) if shared else self.proposal
        # regressions have equal shares of what they have together: all, or half
        for number, size in enumerate(self._sizes, len(self._sizes) + 1 if shared else 1):
            forward = fit_forward(self.theta_inside[rows], self._reduced[rows], self._where, size)
            together = InvertedProposal(forward, together, self._pool, 1 / number, asks_base=described)
        assert isinstance(together, InvertedProposal)
        return together

    def gain_of_inversion(self) -> float:
        """How many nats real data regressed on θ say of it; the regressions are chosen here, by all pairs.

        One on powers of θ, or one on θ and what the simulator shows there; where pairs are too few to tell, both.
        """
        self._pool = draw_pool(self.raw.prior, self.y.device)
        self._where = coordinates(self.y, self._pool, self.replay)
        self._reduced = self._where.reduce(self.y)
        few = PriorPool(self.raw.prior, self._pool[:_COMPARED])
        pairs = self.theta_inside, self._reduced, self._where, few, self.small_folds
        found = [choose_size(*pairs)]
        shown = 0 if self._where.shown is None else self._where.shown.shape[1]
        if shown and self.theta.shape[1] + shown < len(self.theta) - 2:
            found.append(choose_size(*pairs, shown=shown))
        found.sort(key=lambda each: -each[1])
        best = found[0][1]
        apart = _CANNOT_TELL if self.distinct < ENOUGH_PAIRS else 0.0
        self._sizes = [found[0][0], *(size for size, gain in found[1:] if gain > best - apart)]
        return best

    def _shift(self, rows: Tensor) -> TunedProposal:
        """The base posterior asked about shifted data, by some of the pairs."""
        assert isinstance(self.raw, DensityProposal) and self.x_mean is not None
        fit = fit_shift(self.y[rows], self.prepared[rows], self.x_mean[rows], FURTHEST)
        return shifted(self.raw, self.theta_inside[rows], fit.y, fit.shift)

    def _tune(self) -> Tensor:
        """Fine-tune members on all pairs, shifted where that is most of what is wrong; y as they see it comes back."""
        assert isinstance(self.raw, DensityProposal)
        shift, y = None, self.y
        if self.shift_helps and self.x_mean is not None:
            fit = fit_shift(y, self.prepared, self.x_mean, FURTHEST)
            if fit.explained > _MOST:
                shift, y = fit.shift, fit.y
        effort = self.recipe.epochs / Recipe.default().epochs
        targets = self.x.mean(1) if self.x is not None and isinstance(self.proposal, SummaryProposal) else None
        likely = None
        if (
            shift is None
            and self.simulations is not None
            and self.replay is not None
            and not on_a_baseline(self.replay[1])
        ):
            likely = likely_distortions(self.simulations, y, float(self.replay[1].std()))
        arguments = self.folds, self.replay, self.show, effort, shift, targets, likely
        self.adapted["tuned"] = tune(self.raw, self.theta_inside, y, *arguments)
        return y

    def final(self, kept: str, flows: Sequence[VelocityField]) -> WarmChain:
        """The warm start by name, fitted on all pairs, the tuned one as `left_out_draws` left it; and flows that refine it."""
        rows = torch.arange(len(self.theta), device=self.theta.device)
        if kept in ("inverted", SHARED):
            chain = self._chain(self._invert(rows, kept == SHARED, described=bool(flows)))
        elif kept in ("shifted", "tuned"):
            chain = self._chain(self._shift(rows) if kept == "shifted" else self.adapted[kept])
        else:
            chain = self.start(kept, rows)
        chain.summary = summary_of(chain.proposal, self.summary)
        chain.set_flows(flows)
        return chain


def summary_of(proposal: Proposal, summary: nn.Module) -> nn.Module:
    """What describes observations as this proposal sees them: `summary`, of what the base posterior sees of them."""
    if isinstance(proposal, InvertedProposal):
        return nn.Sequential(OfBase(proposal), summary_of(proposal.base, summary))
    return nn.Sequential(LastRow(), summary) if isinstance(proposal, TunedProposal) else summary


def _groups(theta: Tensor) -> tuple[Tensor, int]:
    """Pairs with the same θ, repeated measurements, are left out together: the group of each pair, and how many there are."""
    groups = torch.unique(theta, dim=0, return_inverse=True)[1]
    distinct = int(groups.max()) + 1
    if distinct == len(theta):
        return torch.arange(len(theta), device=theta.device), distinct
    return groups, distinct
