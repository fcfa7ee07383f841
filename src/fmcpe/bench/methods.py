"""The methods of the benchmark by name: the baselines, and FMCPE with its ablations.

``METHODS[name](base, task, simulations)`` returns an object with ``fit(theta, y, seed=..., show_progress_bars=...)``. The base
posterior, the task and existing simulations provide everything that a method needs; training happens in `fit`.

| name | |
| --- | --- |
| ``npe`` | the base posterior at y |
| ``npe-randomised`` | the domain-randomised base posterior of the default recipe at y |
| ``dpe`` | trained on the pairs alone |
| ``mf-npe`` | the base posterior, fine-tuned on the pairs |
| ``rope`` | mixture over simulations by optimal transport |
| ``nnpe`` | trained on noisy simulations |
| ``j-npe`` | trained on simulations and pairs together |
| ``frisbi`` | the same with fixed potentials, one observation at a time |
| ``rnpe`` | the base posterior at y denoised under spike-and-slab errors |
| ``rsnl`` | Gaussian likelihood with an adjustment of each summary |
| ``npe-rs`` | trained on simulations, with summaries distributed like those of the y of the pairs |
| ``fmcpe`` | the default recipe |
| ``fmcpe-paper`` | the recipe of the paper |
| ``fmcpe-paper-sequential`` | the same, u_X first, then u_Θ |
| ``fmcpe-paper-x-only`` | the same, u_X alone |
| ``fmcpe-paper-theta-only`` | the same, u_Θ alone |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from fmcpe._random import seeded
from fmcpe.baselines import DPE, FRISBI, JNPE, MFNPE, NNPE, NPE, NPERS, RNPE, RSNL, RoPE
from fmcpe.candidates import Paper
from fmcpe.method import FMCPE
from fmcpe.posterior import CorrectedPosterior
from fmcpe.tasks.base import Task

Simulations = tuple[Tensor, Tensor]


class Method(Protocol):
    """Interface of the methods in `METHODS`."""

    def fit(
        self, theta: Any, y: Any, *, seed: int | None = None, show_progress_bars: bool = True
    ) -> CorrectedPosterior:
        """Fit to calibration pairs and return the posterior."""
        ...


Factory = Callable[[Any, Task, Simulations | None], Method]


def _npe(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    return NPE(base, task.prior)


def _dpe(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    return DPE(task.prior, task.embedding_net())


def _mfnpe(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    return MFNPE(base, task.prior)


def _rope(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    return RoPE(base, task.simulator, task.prior, simulations=_pool(task, simulations, RoPE.POOL))


def _frisbi(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    return FRISBI(base, task.simulator, task.prior, simulations=_pool(task, simulations, FRISBI.POOL))


def _rnpe(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    return RNPE(base, task.simulator, task.prior, simulations=_pool(task, simulations, RNPE.POOL))


def _rsnl(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    return RSNL(base, task.simulator, task.prior, simulations=_pool(task, simulations, RSNL.POOL))


def _pool(task: Task, simulations: Simulations | None, number: int) -> Simulations | None:
    """The first `number` of the simulations that `_from_simulation_prior` gives."""
    found = _from_simulation_prior(task, simulations, number)
    return found and (found[0][:number], found[1][:number])


def _nnpe(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    given = _from_simulation_prior(task, simulations)
    return NNPE(task.simulator, task.prior, embedding_net=task.embedding_net(), simulations=given)


def _npers(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    given = _from_simulation_prior(task, simulations)
    return NPERS(task.simulator, task.prior, embedding_net=task.embedding_net(), simulations=given)


def _jnpe(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
    given = _from_simulation_prior(task, simulations)
    return JNPE(task.simulator, task.prior, embedding_net=task.embedding_net(), simulations=given)


def _from_simulation_prior(task: Task, simulations: Simulations | None, number: int = 50_000) -> Simulations | None:
    """`simulations` if given; new ones if the simulation prior differs; else None, and the method simulates itself."""
    if simulations is not None or task.simulation_prior is task.prior:
        return simulations
    with seeded(0):
        theta = task.simulation_prior.sample((number,))
        return theta, task.simulator(theta)


def _fmcpe(recipe: str | Paper = "default") -> Factory:
    def factory(base: Any, task: Task, simulations: Simulations | None = None) -> Method:
        return FMCPE(base, task.simulator, task.prior, recipe=recipe)

    return factory


METHODS: dict[str, Factory] = {
    "npe": _npe,
    "npe-randomised": _npe,
    "dpe": _dpe,
    "mf-npe": _mfnpe,
    "rope": _rope,
    "nnpe": _nnpe,
    "j-npe": _jnpe,
    "frisbi": _frisbi,
    "rnpe": _rnpe,
    "rsnl": _rsnl,
    "npe-rs": _npers,
    "fmcpe": _fmcpe(),
    "fmcpe-paper": _fmcpe("paper"),
    "fmcpe-paper-sequential": _fmcpe(Paper(stages="sequential")),
    "fmcpe-paper-x-only": _fmcpe(Paper(stages="x-only")),
    "fmcpe-paper-theta-only": _fmcpe(Paper(stages="theta-only")),
}
