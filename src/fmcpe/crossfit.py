r"""The default recipe: a warm start in closed form or by fine-tuning, chosen by evidence, and θ-flows that refine it.

    for each way to start:                                      prior, uncorrected, stepped, moved, inverted, ...
        for each fold: fit it on the other folds, draw z_0 for the pairs of this one
    keep the best by left-out energy score, if it is clearly better      fmcpe.evidence
    for each fold: train u_Θ from left-out z_0 to θ of the other folds   flow matching, as in fmcpe.correction
    keep the flows if the left-out energy score gets better by more than luck

Every pair is answered by something that has not seen it, so all pairs are both trained on and evidence.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fmcpe._errors import FMCPEWarning
from fmcpe.evidence import ENOUGH_PAIRS, PRIOR, SHARED, Evidence, cannot_be_told_apart, choose
from fmcpe.networks import VelocityField
from fmcpe.refine import refine
from fmcpe.sizes import FEWEST_PAIRS
from fmcpe.starts import Starts
from fmcpe.summary import can_be_tuned
from fmcpe.warm import WarmChain

_NEARLY = 1.5
"""Energy score on real data, in units of the base posterior's on simulations at the same θ, below which nothing is tuned."""

_LEAST_GAIN, _LEAST_OF_FEW = 0.5, 0.7
"""Nats that a regression of data on θ has to say of left-out θ for Bayes' rule to be tried: more of few pairs, where the best
of several regressions says half a nat by luck."""


class CrossFit:
    """One fit of the default recipe.

    Args:
        starts: The pairs, and the ways to start.
    """

    def __init__(self, starts: Starts) -> None:
        self.starts = starts
        self.seconds: dict[str, float] = {}

    def run(self, stages: str) -> tuple[WarmChain, str, dict[str, list[float]]]:
        """The chain that the evidence speaks for, what was kept of it, and what it was chosen by."""
        starts, draws, evidence = self.starts, dict[str, Tensor](), dict[str, Evidence]()
        for name in self._ways(stages):
            if name == "tuned" and self._is_as_good_as_it_gets(evidence):
                continue
            with self._timed(name):
                draws[name] = starts.left_out_draws(name)
                evidence[name] = starts.evidence(draws[name])
            if name == "shifted":
                best = min(value.mean for way, value in evidence.items() if way != "inverted")
                starts.shift_helps = best == evidence[name].mean and evidence[name].beats(evidence["uncorrected"])
        if cannot_be_told_apart(evidence, starts.distinct):
            half = torch.rand(starts.z.shape[0], starts.copies, 1, device=starts.z.device) < 0.5
            draws[SHARED] = torch.where(half, draws["inverted"], draws["shifted"])
            evidence[SHARED] = starts.evidence(draws[SHARED])
        kept = choose(evidence, starts.distinct)
        flows: Sequence[VelocityField] = ()
        doubt = _doubt(kept, evidence, starts.distinct, len(starts.z))
        if doubt:
            warnings.warn(doubt, FMCPEWarning, stacklevel=4)
        if kept != PRIOR and stages != "x-only" and starts.distinct >= ENOUGH_PAIRS:
            refined = f"{kept}, flows"
            with self._timed("flows"):
                members, carried = refine(draws[kept], starts.z, starts.features, starts.folds, starts.recipe)
                evidence[refined] = starts.evidence(carried)
            # they were stopped by the very pairs that are their evidence: one standard error would come too easily
            if evidence[refined].beats(evidence[kept], 2.0):
                flows = members
        chain = starts.final(kept, flows)
        name = f"{kept}, flows" if flows else kept
        history = {f"evidence_{way}": [value.mean] for way, value in evidence.items()}
        if starts.distinct > 1:  # by how much what is kept is better, and the standard error of that
            for way, value in evidence.items():
                history[f"evidence_{way}"] += evidence[name].gain_on(value)
        history |= {f"seconds_{name}": [value] for name, value in self.seconds.items()}
        if doubt and kept != PRIOR:
            history["doubt"] = [1.0]
        return chain, name, history

    def _ways(self, stages: str) -> Iterator[str]:
        """What competes; the prior and the uncorrected posterior always do."""
        yield PRIOR
        yield "uncorrected"
        if self.starts.distinct == 1:  # nothing can be left out
            return
        if stages == "x-only":
            if self.starts.can_move:
                yield "x-only"
            return
        if stages == "theta-only" or not self.starts.can_move:
            yield "stepped"
        if stages == "theta-only":
            return
        if self.starts.can_move:
            # a step on top of the move is one regression more than few pairs bear
            yield "x-only" if self.starts.distinct < ENOUGH_PAIRS else "moved"
        if self._can_invert():
            yield "inverted"
        if can_be_tuned(self.starts.raw):
            if self.starts.x_mean is not None:
                yield "shifted"
            yield "tuned"

    def _can_invert(self) -> bool:
        """Whether real data regressed on θ say anything of it."""
        least = _LEAST_OF_FEW if self.starts.distinct < ENOUGH_PAIRS else _LEAST_GAIN
        return len(self.starts.theta) >= FEWEST_PAIRS and self.starts.gain_of_inversion() > least

    def _is_as_good_as_it_gets(self, evidence: dict[str, Evidence]) -> bool:
        """Whether a way without fine-tuning is nearly as good, on real data, as the base posterior is on simulations."""
        draws = self.starts.draws_for_simulations()
        if draws is None:
            return False
        return min(value.mean for value in evidence.values()) <= _NEARLY * self.starts.evidence(draws).mean

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def _doubt(kept: str, evidence: dict[str, Evidence], distinct: int, pairs: int) -> str | None:
    """What to say where nothing, or hardly anything, is better than the prior."""
    if distinct == 1:
        answer = "the prior is the answer" if kept == PRIOR else "the answer is the base posterior as it came"
        return (
            f"all calibration pairs have the same parameters: nothing shows what a correction does at others, and {answer}. "
            "Measure pairs at different parameters."
        )
    if kept == PRIOR:
        return (
            "the calibration pairs carry no information that could be found: no posterior predicts left-out pairs better "
            "than the prior does, and the prior is the answer. Check that each row of theta belongs to its row of y."
        )
    if not evidence[kept].beats(evidence[PRIOR], 2.0):
        return (
            f"{pairs} calibration pairs hardly show that the answer is better than the prior. Check that "
            "each row of theta belongs to its row of y, and measure more pairs."
        )
    return None
