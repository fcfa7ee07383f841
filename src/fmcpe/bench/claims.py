"""The paper's claims, and whether our numbers agree with them.

Each check counts comparisons: a claim "agrees" if all hold, "agrees in part" if at least half do, and otherwise "does not
agree". Comparisons with missing numbers are not counted; a claim without any is "not run". A claim of several parts is
checked only if all were measured: "improves with pairs" needs several sizes. Tasks and sizes are the plan's, so that "the
most pairs" means the plan's largest size; while units are missing, verdicts are marked "so far".

By how much: each comparison of two positive numbers has a ratio, ours over the other, and a verdict says their geometric mean,
lowest and highest. Below one, ours is lower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fmcpe.bench.results import Results
from fmcpe.bench.units import titled


class Comparison(NamedTuple):
    """One comparison.

    Args:
        agrees: Whether it is as the paper says.
        ratio: Ours over the other number; NaN if one of them is not positive.
    """

    agrees: bool
    ratio: float = math.nan


Check = Callable[[Results, str], Iterator[Comparison | None]]
"""(results, variant of the method) -> one answer per comparison, None if a number is missing."""

OF_MAIN = ("corner", "posterior-level", "all-metrics", "before-after")
"""Sections of the report that show the experiment `main`; any other section has the name of its experiment."""

VARIANTS = {"fmcpe-paper": "the paper's recipe", "fmcpe": "the default recipe"}


@dataclass(frozen=True)
class Verdict:
    """How many comparisons agree with the claim.

    Args:
        agree: Comparisons that agree.
        of: Comparisons with all their numbers.
        so_far: Progress of the experiment, as text; empty if it is complete.
        lacking: Parts of the claim that were not measured, as text, if other parts were.
        tasks: Tasks of the comparisons, as text.
        ratios: Ratios of the comparisons that have one.
    """

    agree: int
    of: int
    so_far: str = ""
    lacking: str = ""
    tasks: str = ""
    ratios: tuple[float, ...] = ()

    @property
    def word(self) -> str:
        """The verdict as a short text."""
        if not self.of:
            return "not run"
        if self.lacking:
            return "not checked"
        return (
            "agrees" if self.agree == self.of else "agrees in part" if 2 * self.agree >= self.of else "does not agree"
        )

    @property
    def by_how_much(self) -> str:
        """Geometric mean of the ratios, and their range, as text."""
        values = np.array(self.ratios)
        middle = float(np.exp(np.log(values).mean()))
        ends = f" ({values.min():.3g} to {values.max():.3g})" if len(values) > 1 else ""
        return f"ratio {middle:.3g}{ends}"

    def __str__(self) -> str:
        counts = [f"{self.agree} of {self.of} comparisons"] if self.of else []
        counts = [f"{self.lacking} was not measured"] if self.of and self.lacking else counts
        counts += [self.by_how_much] if self.ratios and not self.lacking else []
        counts += [self.tasks] if self.of and self.tasks else []
        counts += [self.so_far] if self.so_far else []
        so_far = " so far" if self.of and self.so_far and not self.lacking else ""
        return self.word + so_far + (f" ({'; '.join(counts)})" if counts else "")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Args:
        section: Section of the report.
        says: The claim.
        counts: Description of the comparisons.
        check: The comparisons, or a mapping from the parts of the claim to theirs.
        variants: Variants of the method to check.
    """

    section: str
    says: str
    counts: str
    check: Check | Mapping[str, Check]
    variants: tuple[str, ...] = ("fmcpe-paper", "fmcpe")

    @property
    def experiment(self) -> str:
        """The experiment that provides the numbers."""
        return "main" if self.section in OF_MAIN else self.section

    def verdict(self, results: Results, variant: str) -> Verdict:
        """Count."""
        parts: Mapping[str, Check] = {"": self.check} if callable(self.check) else self.check
        found = {name: [a for a in check(results, variant) if a is not None] for name, check in parts.items()}
        answers = [answer for part in found.values() for answer in part]
        ratios = tuple(answer.ratio for answer in answers if math.isfinite(answer.ratio))
        lacking = " and ".join(name for name, part in found.items() if not part)
        names = (titled(task).split(" ")[0] for task in results.tasks(self.experiment, done=True))
        tasks = ", ".join(dict.fromkeys(names))
        agree = sum(answer.agrees for answer in answers)
        return Verdict(agree, len(answers), results.so_far(self.experiment), lacking, tasks, ratios)


def _less(a: float, b: float) -> Comparison | None:
    return None if math.isnan(a) or math.isnan(b) else Comparison(a < b, a / b if min(a, b) > 0 else math.nan)


def _against(
    results: Results, experiment: str, variant: str, others: Iterable[str], metrics: Iterable[str], sizes: str = "all"
) -> Iterator[Comparison | None]:
    """Whether the variant's mean is lower than each other method's, for every task, size and metric."""
    others, metrics, every = tuple(others), tuple(metrics), results.sizes(experiment)
    chosen = {"all": every, "few": [size for size in every if size <= 50], "most": every[1:][-1:]}[sizes]
    for task in results.tasks(experiment):
        for size in chosen:
            for metric in metrics:
                mine = results.mean(experiment, task, variant, size, metric)
                for other in others:
                    yield _less(mine, results.mean(experiment, task, other, size, metric))


def _falls(results: Results, experiment: str, variant: str, metrics: Iterable[str]) -> Iterator[Comparison | None]:
    """Whether a metric is lower with the most pairs than with the fewest."""
    sizes = results.sizes(experiment)
    for task in results.tasks(experiment) if len(sizes) > 1 else []:
        for metric in metrics:
            ends = [results.mean(experiment, task, variant, size, metric) for size in (sizes[-1], sizes[0])]
            yield _less(*ends)


def _more_pairs(results: Results, variant: str) -> Iterator[Comparison | None]:
    return _falls(results, "main", variant, ("joint_w2", "joint_c2st", "joint_mmd2_paired", "mse"))


def _beats_one(
    results: Results, variant: str, *, experiment: str, other: str, metrics: tuple[str, ...]
) -> Iterator[Comparison | None]:
    return _against(results, experiment, variant, (other,), metrics)


def _beats(experiment: str, others: Iterable[str], metrics: tuple[str, ...]) -> dict[str, Check]:
    """One part of a claim per other method: the variant has lower metrics."""
    return {
        f"the comparison with {other}": partial(_beats_one, experiment=experiment, other=other, metrics=metrics)
        for other in others
    }


def _recovers(results: Results, variant: str) -> Iterator[Comparison | None]:
    return _against(results, "main", variant, ("mf-npe",), ("mse",), "few")


def _mfnpe_misses(results: Results, variant: str) -> Iterator[Comparison | None]:
    """Whether MF-NPE's 90 % intervals contain the true parameter in less than 90 % of cases."""
    for task in results.tasks("main"):
        for size in [size for size in results.sizes("main") if size <= 50]:
            coverage = results.mean("main", task, "mf-npe", size, "coverage_90")
            yield _less(coverage, 0.9)


def before(results: Results, task: str, variant: str) -> str:
    """The uncorrected posterior of a variant; the default recipe's is trained with domain randomisation if that differs."""
    own = "npe-randomised" in results.methods("main", task) and "-paper" not in variant
    return "npe-randomised" if own else "npe"


def _shifts(results: Results, variant: str) -> Iterator[Comparison | None]:
    for task in results.tasks("main"):
        size = max(results.sizes("main"), default=0)
        yield _less(
            *(results.mean("main", task, method, size, "mse") for method in (variant, before(results, task, variant)))
        )


def miscalibration(results: Results, task: str, method: str, size: int) -> float:
    """Mean over parameters of |bias| + |log scale|: 0 is calibrated."""
    found = [row.metrics["sbc"] for row in results.select("sbc", task, method, size) if "sbc" in row.metrics]
    if not found:
        return math.nan
    bias, scale = np.array(found[0]["bias"]), np.array(found[0]["scale"])
    return float(np.mean(np.abs(bias) + np.abs(np.log(np.maximum(scale, 1e-3)))))


def _better_calibrated(results: Results, variant: str, other: str) -> Iterator[Comparison | None]:
    for task in results.tasks("sbc"):
        for size in results.sizes("sbc"):
            yield _less(*(miscalibration(results, task, method, size) for method in (variant, other)))


def _calibration_grows(results: Results, variant: str) -> Iterator[Comparison | None]:
    sizes = results.sizes("sbc")
    for task in results.tasks("sbc") if len(sizes) > 1 else []:
        yield _less(*(miscalibration(results, task, variant, size) for size in (sizes[-1], sizes[0])))


def _joint_training(results: Results, variant: str) -> Iterator[Comparison | None]:
    """Whether joint training is better or equivalent, i.e. within one standard error of the difference."""
    for task in results.tasks("ablation"):
        for size in results.sizes("ablation"):
            for metric in ("joint_w2", "joint_c2st"):
                a, b = (
                    results.values("ablation", task, method, size, metric)
                    for method in (variant, "fmcpe-paper-sequential")
                )
                if not len(a) or not len(b):
                    yield None
                    continue
                error = math.sqrt(sum(v.var(ddof=1) / len(v) if len(v) > 1 else 0.0 for v in (a, b)))
                yield Comparison(bool(a.mean() <= b.mean() + error), float(a.mean() / b.mean()))


def _x_only_is_worse(results: Results, variant: str, sizes: str = "all") -> Iterator[Comparison | None]:
    return _against(results, "ablation", variant, ("fmcpe-paper-x-only",), ("joint_w2", "joint_c2st"), sizes)


def _x_only_is_worse_with_many(results: Results, variant: str) -> Iterator[Comparison | None]:
    return _x_only_is_worse(results, variant, "most")


def _gap_widens(results: Results, variant: str) -> Iterator[Comparison | None]:
    """Whether the relative gap of the x-map alone grows from each α to the next."""
    gaps = []
    for task in results.tasks("independence"):
        full, alone = (
            results.mean("independence", task, method, None, "joint_c2st") for method in (variant, variant + "-x-only")
        )
        gaps.append((alone - full) / full)
    for before, after in pairwise(gaps):
        yield _less(before, after)


_JOINT = ("joint_w2", "joint_c2st", "joint_mmd2_paired")


def _improves_under_a_wrong_prior(results: Results, variant: str) -> Iterator[Comparison | None]:
    return _falls(results, "prior", variant, _JOINT)


def _slower_to_train(results: Results, variant: str, other: str) -> Iterator[Comparison | None]:
    for answer in _against(results, "timing", variant, (other,), ("fit_seconds",)):
        yield None if answer is None else Comparison(not answer.agrees, answer.ratio)


def _faster_than_rope(results: Results, variant: str) -> Iterator[Comparison | None]:
    return _against(results, "timing", variant, ("rope",), ("inference_seconds",))


def _sampling_costs(results: Results, variant: str) -> Iterator[Comparison | None]:
    for task in results.tasks("timing"):
        for size in results.sizes("timing"):
            for row in results.select("timing", task, variant, size):
                parts = row.metrics["parts"]
                sampling, half = parts["base draws"] + parts["x-transport"], 0.5 * sum(parts.values())
                yield Comparison(sampling > half, sampling / half if half > 0 else math.nan)


def _grid(results: Results, task: str) -> dict[tuple[float, float], float]:
    rows = results.asked("sensitivity", task, "fmcpe-paper", None)
    grid = sorted({(dict(r.unit.recipe)["learning_rate"], dict(r.unit.recipe)["clip"]) for r in rows})
    return {
        (rate, clip): results.mean("sensitivity", task, "fmcpe-paper", None, "joint_w2", learning_rate=rate, clip=clip)
        for rate, clip in grid
    }


def _best_rate(results: Results, variant: str) -> Iterator[Comparison | None]:
    if "pendulum" in results.tasks("sensitivity"):
        grid = _grid(results, "pendulum")
        for clip in sorted({clip for _, clip in grid}):
            column = {rate: value for (rate, at), value in grid.items() if at == clip}
            others = [value for rate, value in column.items() if rate != 1e-3]
            known = 1e-3 in column and bool(others) and all(map(math.isfinite, column.values()))
            yield _less(column[1e-3], min(others)) if known else None


def _clipping_is_idle(results: Results, variant: str) -> Iterator[Comparison | None]:
    """Whether, at each rate, joint W2 varies less with clipping than it does with the rate."""
    for task in results.tasks("sensitivity"):
        grid = _grid(results, task)
        rates, clips = ({key[i] for key in grid} for i in (0, 1))
        if not all(math.isfinite(grid.get((rate, clip), math.nan)) for rate in rates for clip in clips):
            yield None
            continue
        by_rate = float(np.mean([np.ptp([grid[rate, clip] for rate in rates]) for clip in clips]))
        for rate in sorted(rates):
            yield _less(float(np.ptp([grid[rate, clip] for clip in clips])), by_rate)


CLAIMS = (
    Claim("main", "All metrics decrease as the number of pairs increases.",
          "joint W2, C2ST, MMD² and MSE, most pairs against fewest, each task", _more_pairs),
    Claim("main", "The method consistently outperforms all baselines (NPE on the pairs, MF-NPE, RoPE).",
          "joint W2 and C2ST against each of dpe, mf-npe, rope, each task and size",
          _beats("main", ("dpe", "mf-npe", "rope"), ("joint_w2", "joint_c2st"))),
    Claim("corner", "MF-NPE misses the true parameter at few pairs, the method recovers it with higher accuracy.",
          "coverage of mf-npe's 90 % intervals against 0.9, and MSE against mf-npe, at up to 50 pairs, each task",
          {"MF-NPE's coverage": _mfnpe_misses, "the comparison with MF-NPE": _recovers}),
    Claim("sbc", "The method is better calibrated as the number of pairs grows.",
          "|bias| + |log scale| of the ranks, most pairs against fewest, each task", _calibration_grows),
    Claim("sbc", "It is better calibrated than NPE and MF-NPE.",
          "|bias| + |log scale| against npe and mf-npe, each task and size",
          {f"the comparison with {other}": partial(_better_calibrated, other=other) for other in ("npe", "mf-npe")}),
    Claim("posterior-level", "On tasks with a known posterior, the method comes closest to it.",
          "C2ST, W2 and MMD² to the reference posterior against every baseline, each task and size",
          _beats("main", ("dpe", "mf-npe", "rope", "nnpe", "j-npe"), ("c2st", "w2", "mmd2"))),
    Claim("all-metrics", "It outperforms the additional baselines (NNPE, J-NPE) and in the additional metrics too.",
          "joint W2, C2ST, MMD² and MSE against every baseline, each task and size",
          _beats("main", ("dpe", "mf-npe", "rope", "nnpe", "j-npe"), ("joint_w2", "joint_c2st", "joint_mmd2_paired", "mse"))),
    Claim("before-after", "The correction shifts posteriors to a more appropriate location.",
          "MSE at the most pairs against the uncorrected posterior, each task", _shifts),
    Claim("ablation", "Joint training is better than, or equivalent to, sequential training.",
          "joint W2 and C2ST within one standard error of fmcpe-paper-sequential's, each task and size", _joint_training,
          ("fmcpe-paper",)),
    Claim("ablation", "The x-map alone is worse, also with many pairs.",
          "joint W2 and C2ST against fmcpe-paper-x-only, each task and size, and again at the most of several",
          {"the x-map alone": _x_only_is_worse, "more than one size": _x_only_is_worse_with_many}, ("fmcpe-paper",)),
    Claim("independence", "The gap between both maps and the x-map alone widens as y depends on θ directly.",
          "relative gap in joint C2ST, each α against the next", _gap_widens, ("fmcpe-paper",)),
    Claim("prior", "With a wrong prior it improves with pairs and outperforms MF-NPE and RoPE.",
          "joint W2, C2ST and MMD², each task and size",
          {"improving with pairs": _improves_under_a_wrong_prior, **_beats("prior", ("mf-npe", "rope"), _JOINT)}),
    Claim("timing", "It takes longer to train than the baselines.",
          "fit time against dpe, mf-npe, rope, each task and size",
          {f"the comparison with {other}": partial(_slower_to_train, other=other) for other in ("dpe", "mf-npe", "rope")}),
    Claim("timing", "At inference it is faster than RoPE for all tasks and sizes.",
          "inference time against rope, each task and size", _faster_than_rope),
    Claim("timing", "Most of the training time is sampling, not gradient steps.",
          "base draws and x-transport over half of the fit, each task and size", _sampling_costs),
    Claim("sensitivity", "On pendulum the learning rate 1e-3 is best.",
          "joint W2 at this rate against the best other one, each clipping", _best_rate, ("fmcpe-paper",)),
    Claim("sensitivity", "Gradient clipping has little effect.",
          "range of joint W2 over clippings below its range over rates, each task and rate", _clipping_is_idle,
          ("fmcpe-paper",)),
)  # fmt: skip
