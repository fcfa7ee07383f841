"""Networks and priors as JSON, so that files hold no code.

`describe` supports the torch layers below, nested in `nn.Sequential`. Weights are stored separately.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from sbi.utils import BoxUniform, MultipleIndependent
from sbi.utils.user_input_checks_utils import PytorchReturnTypeWrapper
from torch import Tensor, distributions, nn
from torch.distributions import Distribution

from fmcpe._errors import FileError
from fmcpe.distributions import LogUniform
from fmcpe.nn.embeddings import ChannelsFirst, LevelAware

_LAYERS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm,
        nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
        nn.Flatten, nn.Unflatten, nn.Dropout, nn.Identity, ChannelsFirst,
        nn.LeakyReLU, nn.ELU, nn.ReLU, nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid,
    )
}  # fmt: skip
_CONTAINERS: dict[str, Any] = {"Sequential": nn.Sequential, "LevelAware": LevelAware}


def describe(net: nn.Module | None) -> dict[str, Any] | None:
    """A JSON description of `net`, or None if a layer is not supported."""
    name = type(net).__name__
    if type(net) is nn.Sequential or isinstance(net, LevelAware):
        parts = [describe(layer) for layer in net.children()]
        return None if None in parts else {"layer": name, "parts": parts}
    if net is None or _LAYERS.get(name) is not type(net):
        return None
    arguments = {}
    for argument in inspect.signature(type(net)).parameters.values():
        # torch's layers keep their arguments as attributes, except for a bias, which is a tensor or None
        value = getattr(net, argument.name, argument.default)
        value = value is not None if argument.name == "bias" else value
        if value != argument.default:
            arguments[argument.name] = list(value) if isinstance(value, tuple | torch.Size) else value
    description = {"layer": name, "arguments": arguments}
    # arguments that are no attributes would show up in extra_repr
    return description if build(description).extra_repr() == net.extra_repr() else None


def build(description: dict[str, Any]) -> nn.Module:
    """The network of a description, with random weights."""
    if description["layer"] in _CONTAINERS:
        return _CONTAINERS[description["layer"]](*(build(part) for part in description["parts"]))
    if description["layer"] not in _LAYERS:
        raise FileError(
            f"Expected a layer that fmcpe can save, got {description['layer']!r}. Load only files written by "
            "posterior.save."
        )
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in description["arguments"].items()}
    return _LAYERS[description["layer"]](**arguments)


_FAMILIES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "Normal": (distributions.Normal, ("loc", "scale")),
    "LogNormal": (distributions.LogNormal, ("loc", "scale")),
    "Uniform": (distributions.Uniform, ("low", "high")),
    "Exponential": (distributions.Exponential, ("rate",)),
    "Gamma": (distributions.Gamma, ("concentration", "rate")),
    "Beta": (distributions.Beta, ("concentration1", "concentration0")),
    "HalfNormal": (distributions.HalfNormal, ("scale",)),
    "LogUniform": (LogUniform, ("low", "high")),
    "MultivariateNormal": (distributions.MultivariateNormal, ("loc", "covariance_matrix")),
    "BoxUniform": (BoxUniform, ("low", "high")),
}


def describe_prior(prior: Distribution) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """A JSON description of a prior and its tensors, or None if its family is not supported."""
    if isinstance(prior, PytorchReturnTypeWrapper):
        prior = prior.prior
    if isinstance(prior, MultipleIndependent):
        parts = [describe_prior(part) for part in prior.dists]
        if any(part is None for part in parts):
            return None
        says = {"family": "MultipleIndependent", "parts": [part[0] for part in parts if part]}
        return says, {f"{i}.{name}": value for i, part in enumerate(parts) if part for name, value in part[1].items()}
    independent = type(prior) is distributions.Independent
    inner = prior.base_dist if isinstance(prior, distributions.Independent) else prior
    name = "BoxUniform" if isinstance(prior, BoxUniform) else type(inner).__name__
    if name not in _FAMILIES or (name != "BoxUniform" and type(inner) is not _FAMILIES[name][0]):
        return None
    tensors = {key: getattr(inner, key).to(torch.float32) for key in _FAMILIES[name][1]}
    return {"family": name, "independent": independent}, tensors


def build_prior(description: dict[str, Any], tensors: dict[str, Tensor]) -> Distribution:
    """The prior of a description."""
    family = description["family"]
    if family == "MultipleIndependent":
        return MultipleIndependent(
            [build_prior(part, under(tensors, f"{i}.")) for i, part in enumerate(description["parts"])]
        )
    if family not in _FAMILIES:
        raise FileError(
            f"Expected a prior that fmcpe can save, got {family!r}. Load only files written by posterior.save."
        )
    cls, names = _FAMILIES[family]
    prior = cls(*(tensors[name] for name in names))
    return distributions.Independent(prior, 1) if description["independent"] else prior


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
