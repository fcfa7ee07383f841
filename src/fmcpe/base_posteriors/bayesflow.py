"""BayesFlow 2 approximators and workflows as base posteriors.

BayesFlow works with dictionaries of named arrays; this library has one θ (N, p) and one x (N, ...). `from_bayesflow`
takes the names of the columns of θ, in order, and that of x, or reads them from the approximator's adapter. Arrays pass
through numpy, so that any Keras backend will do; tests use torch. ``import bayesflow`` with that backend switches torch's
gradients off for the whole process: training here switches them on for itself, and leaves the process as it was.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._checks import parameter_dim
from fmcpe._errors import FMCPEWarning
from fmcpe.base_posteriors.base import BasePosterior


class BayesFlowBase(BasePosterior):
    """A BayesFlow approximator with a continuous posterior; arguments as for `from_bayesflow`.

    `parameters` has the name and the width of each part of θ.
    """

    components = 32  # the summary network runs again for each density
    redraws, tries = 4, 5  # a call costs nearly the same for one row as for five

    def __init__(
        self,
        approximator: Any,
        prior: Distribution,
        parameters: Mapping[str, int],
        data: str,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(prior, None)
        self.approximator, self.parameters, self.data = approximator, dict(parameters), data
        self.extra = {name: np.asarray(value) for name, value in (extra or {}).items()}
        if all(width == 1 for width in self.parameters.values()):
            self.names = tuple(self.parameters)

    def _conditions(self, x: Tensor) -> dict[str, np.ndarray]:
        array = x.detach().cpu().numpy()
        return {self.data: array} | {k: np.broadcast_to(v, (len(array), *v.shape)) for k, v in self.extra.items()}

    @torch.no_grad()
    def _draw(self, x: Tensor, n: int) -> Tensor:
        # Keras has generators of its own; the seed makes this library's govern them
        seed = int(torch.randint(2**31 - 1, ()))
        with _without_bars():
            found = self.approximator.sample(num_samples=n, conditions=self._conditions(x), seed=seed)
        return _columns(found, self.parameters, (len(x), n)).to(x.device)

    @torch.no_grad()
    def _log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        flat = theta.detach().flatten(0, 1).cpu()
        parts = flat.split(list(self.parameters.values()), dim=1)
        named = {name: part.numpy() for name, part in zip(self.parameters, parts, strict=True)}
        rows = x.repeat_interleave(theta.shape[1], dim=0)
        found = np.asarray(self.approximator.log_prob(named | self._conditions(rows)), dtype=np.float32)
        return torch.as_tensor(found.copy()).reshape(theta.shape[:2]).to(theta.device)


def is_bayesflow(posterior: Any) -> bool:
    """Whether something is an approximator or a workflow of BayesFlow; does not import it."""
    return any(cls.__module__.partition(".")[0] == "bayesflow" for cls in type(posterior).__mro__)


def from_bayesflow(
    approximator: Any,
    prior: Distribution | None,
    parameters: Sequence[str] | None = None,
    data: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> BayesFlowBase:
    """A BayesFlow approximator, or the workflow that trained it, as a base posterior for `fmcpe.FMCPE`.

    Args:
        approximator: A trained approximator with a continuous posterior, or a workflow.
        prior: Of θ, a torch distribution; its columns are `parameters`, in order.
        parameters: Names of the columns of θ; those of the adapter, in its order, if None.
        data: Name of x; that of the adapter if None.
        extra: Further conditions that are the same for every x, by name, such as the number of observations.
    """
    approximator = getattr(approximator, "approximator", approximator)
    if prior is None:
        raise ValueError(
            "Expected a prior for a BayesFlow approximator, which has none, got none. Pass FMCPE(approximator, simulator, "
            "prior=BoxUniform(low, high)), with columns in the order of the approximator's parameters."
        )
    if not (hasattr(approximator, "sample") and hasattr(approximator, "log_prob")):
        raise TypeError(
            f"Expected a BayesFlow approximator of a continuous posterior, got a {type(approximator).__name__}. Train e.g. a "
            "bayesflow.ContinuousApproximator."
        )
    if "seed" not in inspect.signature(approximator.sample).parameters:
        warnings.warn(
            "Expected an approximator whose draws take a seed, got one that ignores it: draws will not repeat with seed=. "
            "Install BayesFlow 2.0.11 or newer: pip install 'fmcpe[bayesflow]'.",
            FMCPEWarning,
            stacklevel=2,
        )
    given = {name: list(value) for name, value in _inputs(approximator).items()}
    parameters = list(parameters) if parameters is not None else given["inference_variables"]
    known = [data] if data is not None else given["summary_variables"] + given["inference_conditions"]
    known = [name for name in known if name not in (extra or {})]
    if not parameters or len(known) != 1:
        raise ValueError(
            f"Expected names of the parameters and one name of x, got {parameters} and {known} from the adapter. "
            'Call fmcpe.base_posteriors.bayesflow.from_bayesflow(approximator, prior, parameters=["a", "b"], data="x").'
        )
    widths = _widths(parameters, parameter_dim(prior))
    return BayesFlowBase(approximator, prior, widths, known[0], extra)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Without BayesFlow's progress bars, for which it has no option: calls are many and short."""
    places = [
        module
        for name in ("samplers", "conditions")
        if hasattr(module := sys.modules.get(f"bayesflow.approximators.helpers.{name}"), "tqdm")
    ]
    kept = [module.tqdm for module in places]  # type: ignore[union-attr]
    for module in places:
        module.tqdm = lambda rows, **options: rows  # type: ignore[union-attr]
    try:
        yield
    finally:
        for module, bar in zip(places, kept, strict=True):
            module.tqdm = bar  # type: ignore[union-attr]


def _inputs(approximator: Any) -> dict[str, list[str]]:
    """Names that the adapter turns into each of BayesFlow's three inputs."""
    roles = ("inference_variables", "summary_variables", "inference_conditions")
    found: dict[str, list[str]] = {role: [role] for role in roles}
    # from the last transform to the first, names are replaced by those they were made of
    for transform in reversed(list(getattr(getattr(approximator, "adapter", None), "transforms", []))):
        made = {
            "Concatenate": lambda t: (t.into, t.keys),
            "Rename": lambda t: (t.to_key, [t.from_key]),
        }.get(type(transform).__name__)
        if made is not None:
            into, keys = made(transform)
            for role, names in found.items():
                found[role] = [each for name in names for each in (keys if name == into else [name])]
    return {role: [] if names == [role] else names for role, names in found.items()}


def _widths(parameters: Sequence[str], dim: int) -> dict[str, int]:
    """Columns of each parameter: one each, or all of a single one."""
    if len(parameters) == 1:
        return {parameters[0]: dim}
    if len(parameters) == dim:
        return dict.fromkeys(parameters, 1)
    raise ValueError(
        f"Expected a prior over {len(parameters)} parameter(s) ({', '.join(parameters)}), got one over {dim}. Join them in one "
        "array, or pass BayesFlowBase(approximator, prior, {name: width, ...}, data)."
    )


def _columns(found: Mapping[str, Any], parameters: Mapping[str, int], shape: tuple[int, int]) -> Tensor:
    """Draws by name as θ, (B, n, p)."""
    missing = [name for name in parameters if name not in found]
    if missing:
        raise ValueError(
            f"Expected draws of {', '.join(parameters)}, got {', '.join(found)}. Pass parameters= in the order of the prior."
        )
    parts = [np.asarray(found[name], dtype=np.float32).reshape(*shape, width) for name, width in parameters.items()]
    return torch.as_tensor(np.concatenate(parts, axis=-1))
