"""Which answer is kept: a proper score on pairs that were not trained on.

The energy score is the mean distance of draws to the truth, less half the mean distance between draws; it is smallest, on
average, for the true posterior, and it needs no density. Ways to answer are compared pair by pair on left-out pairs: the
best correction has to be better than none by 2.5 standard errors of the difference (with few pairs one), or in a single
parameter by four, and flows by two.
Where the simulator is right, the correction so removes itself. What is kept has to be better than the prior, too: with many
pairs by nearly three standard errors, or the pairs carry no information (a correction that learns nothing of y learns where
θ lies, and so comes close to the prior); with few, where evidence is weak, the prior has to be the one that is better. Bayes'
rule for real data regressed on θ is preferred where another correction is not clearly better: by one standard error, with
few pairs, if the base posterior summarises data, by two. So is fine-tuning, where Bayes' rule is not tried and pairs are few.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fmcpe.metrics import energy_score

PRIOR, SHARED = "prior", "shared"
ENOUGH_PAIRS = 30
"""Pairs from which evidence tells ways apart, and a flow is tried: what fewer say of its shape is luck."""
_CLEARLY = 2.5
"""Standard errors by which the best of several ways has to be better than none: one of them is better by two too often."""
_CLEARLY_IN_ONE = 4.0
"""The same for any one parameter, where others hide it: there are more of these to be lucky in."""
_FEW_PAIRS = 10
"""With so many pairs, the prior has to be better by a standard error to be the answer."""


class Evidence(NamedTuple):
    """Left-out energy scores of one way to answer."""

    scores: Tensor
    """One for each pair, (N,); of pairs with the same θ, which err together, their mean."""
    each: Tensor | None = None
    """The same for each parameter by itself, (N, p), where there are several."""

    @property
    def mean(self) -> float:
        return float(self.scores.mean())

    def beats(self, other: Evidence, standard_errors: float = 1.0) -> bool:
        """Whether the mean difference, pair by pair, is more than so many of its standard errors."""
        gain, error = self.gain_on(other)
        return gain > standard_errors * error

    def beats_in_one(self, other: Evidence, standard_errors: float = 1.0) -> bool:
        """Whether it does so in any one parameter: beside vague ones, one that data tell sharply hardly counts in `scores`."""
        return any(
            mine.beats(theirs, standard_errors) for mine, theirs in zip(self._apart(), other._apart(), strict=True)
        )

    def _apart(self) -> list[Evidence]:
        return [self] if self.each is None else [Evidence(column) for column in self.each.T]

    def gain_on(self, other: Evidence) -> tuple[float, float]:
        """By how much this is better than the other, pair by pair, and the standard error of that."""
        gain = other.scores - self.scores
        return float(gain.mean()), float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else torch.inf


_EDGE = 3.0
"""How far from the middle, in z, evidence looks: a θ on a bound of the prior is infinitely far, and all that would count."""


def left_out(draws: Tensor, truth: Tensor, groups: Tensor | None = None) -> Evidence:
    """The evidence in draws (N, S, p) for left-out pairs with the truth (N, p), both in z.

    `groups` numbers pairs with the same θ alike, (N,), from 0 on; without it, no two have the same.
    """
    draws, truth = (z.clamp(-_EDGE, _EDGE).cpu() for z in (draws, truth))
    together = energy_score(draws.movedim(0, 1), truth, reduce=False)
    several = truth.shape[1] > 1
    scores = torch.cat([together[:, None], one_by_one(draws, truth)], dim=1) if several else together[:, None]
    if groups is not None and int(groups.max()) + 1 < len(scores):
        groups = groups.cpu()
        sums = scores.new_zeros(int(groups.max()) + 1, scores.shape[1]).index_add(0, groups, scores)
        scores = sums / groups.bincount()[:, None]
    return Evidence(scores[:, 0], scores[:, 1:] if several else None)


def one_by_one(draws: Tensor, truth: Tensor) -> Tensor:
    """Energy scores of draws (N, S, p) at the truth (N, p), of each parameter by itself: (N, p).

    Of numbers in order, the distances between all of them are a weighted sum.
    """
    number = draws.shape[1]
    weights = 2 * torch.arange(1, number + 1, device=draws.device) - number - 1
    between = (weights[:, None] * draws.sort(dim=1).values).sum(1) / (number * (number - 1))
    return (draws - truth[:, None]).abs().mean(1) - between


def cannot_be_told_apart(evidence: dict[str, Evidence], pairs: int) -> bool:
    """Whether so few pairs leave it open which is better: Bayes' rule, without the simulator, or shifted data, with it.

    Both are wrong then, but in different ways, where pairs are missing: half of the draws each is better than either. Shifted
    data that say hardly more than the prior does get no share.
    """
    if pairs >= ENOUGH_PAIRS or not {"inverted", "shifted"} <= evidence.keys():
        return False
    inverted, shifted = evidence["inverted"], evidence["shifted"]
    informed = shifted.beats(evidence[PRIOR], 2.0)
    return informed and not inverted.beats(shifted, 3.0) and not shifted.beats(inverted, 2.0)


def is_informed(kept: Evidence, prior: Evidence) -> bool:
    """Whether what is kept is better than the prior, as far as so many pairs can tell."""
    return kept.beats(prior, max(-1.0, 3 - 4 * _FEW_PAIRS / len(prior.scores)))


def choose(evidence: dict[str, Evidence], pairs: int) -> str:
    """The way to start that the evidence of so many pairs speaks for."""
    corrections = [name for name in evidence if name not in (PRIOR, "uncorrected")]
    best = min(corrections, key=lambda name: evidence[name].mean, default="uncorrected")
    few = pairs < ENOUGH_PAIRS
    # what Bayes' rule does not know is computed, not guessed from the same few pairs, and fine-tuning stays near what the
    # simulator taught; another way that seems better on ten pairs is often far worse on the eleventh, outside all of them
    careful = next((name for name in (SHARED, "inverted", *(["tuned"] if few else [])) if name in evidence), best)
    enough = 1.0 if few else _CLEARLY
    # data that go into the base posterior as they are can be moved as carefully; of its summary of them few pairs say little
    summarised = not evidence.keys().isdisjoint(("shifted", "tuned"))
    margin = (2.0 if summarised else 0.0) if few else 1.0

    def helps(name: str) -> bool:
        # the best of several is lucky, but of few pairs no more than one standard error can be asked
        mine, none = evidence[name], evidence["uncorrected"]
        return mine.beats(none, enough) or (
            not few and mine.mean < none.mean and mine.beats_in_one(none, _CLEARLY_IN_ONE)
        )

    if helps(careful) and not evidence[best].beats(evidence[careful], margin):
        best = careful
    kept = best if helps(best) else "uncorrected"
    return kept if is_informed(evidence[kept], evidence[PRIOR]) else PRIOR
