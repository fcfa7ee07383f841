"""Networks and priors as JSON, so that files hold no code.

A network made of the torch layers below, nested in `nn.Sequential`, is described by its layers' arguments and built
again from them; weights travel apart. Anything else cannot be described, and `describe` says so by returning None.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe.networks import ChannelsFirst

_LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"),
    nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"),
    nn.BatchNorm1d: ("num_features", "eps", "momentum"),
    nn.BatchNorm2d: ("num_features", "eps", "momentum"),
    nn.GroupNorm: ("num_groups", "num_channels", "eps"),
    nn.LayerNorm: ("normalized_shape", "eps"),
    nn.MaxPool1d: ("kernel_size", "stride", "padding"),
    nn.MaxPool2d: ("kernel_size", "stride", "padding"),
    nn.AvgPool1d: ("kernel_size", "stride", "padding"),
    nn.AvgPool2d: ("kernel_size", "stride", "padding"),
    nn.AdaptiveAvgPool1d: ("output_size",),
    nn.AdaptiveAvgPool2d: ("output_size",),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Unflatten: ("dim", "unflattened_size"),
    nn.Dropout: ("p",),
    nn.LeakyReLU: ("negative_slope",),
    nn.ELU: ("alpha",),
    nn.ReLU: (),
    nn.SiLU: (),
    nn.GELU: (),
    nn.Tanh: (),
    nn.Sigmoid: (),
    nn.Identity: (),
    ChannelsFirst: (),
}
_BY_NAME = {cls.__name__: cls for cls in _LAYERS}


def describe(net: nn.Module | None) -> dict[str, Any] | None:
    """A JSON description of `net`, or None if it holds a layer that is not in the list."""
    if type(net) is nn.Sequential:
        parts = [describe(layer) for layer in net]
        return None if None in parts else {"layer": "Sequential", "parts": parts}
    if type(net) not in _LAYERS:
        return None
    assert net is not None
    arguments = {name: _plain(getattr(net, name)) for name in _LAYERS[type(net)]}
    if isinstance(net, nn.Linear | nn.Conv1d | nn.Conv2d):
        arguments["bias"] = net.bias is not None
    return {"layer": type(net).__name__, "arguments": arguments}


def build(description: dict[str, Any]) -> nn.Module:
    """The network of a description, with fresh weights."""
    if description["layer"] == "Sequential":
        return nn.Sequential(*(build(part) for part in description["parts"]))
    if description["layer"] not in _BY_NAME:
        raise ValueError(
            f"the file names an unknown layer {description['layer']!r}; it was not written by this library."
        )
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in description["arguments"].items()}
    return _BY_NAME[description["layer"]](**arguments)


def describe_prior(prior: Distribution) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """A JSON description of a prior and its tensors, or None for a family that is not known here."""
    from sbi.utils import BoxUniform

    if isinstance(prior, BoxUniform):
        constraint: Any = prior.base_dist
        return {"family": "BoxUniform"}, {"low": constraint.low, "high": constraint.high}
    if type(prior) is torch.distributions.MultivariateNormal:
        return {"family": "MultivariateNormal"}, {
            "loc": prior.loc,
            "covariance_matrix": prior.covariance_matrix,
        }
    if type(prior) is torch.distributions.Independent and type(prior.base_dist) is torch.distributions.Normal:
        return {"family": "IndependentNormal"}, {"loc": prior.base_dist.loc, "scale": prior.base_dist.scale}
    return None


def build_prior(description: dict[str, Any], tensors: dict[str, Tensor]) -> Distribution:
    """The prior of a description."""
    from sbi.utils import BoxUniform

    family = description["family"]
    if family == "BoxUniform":
        return BoxUniform(tensors["low"], tensors["high"])
    if family == "MultivariateNormal":
        return torch.distributions.MultivariateNormal(tensors["loc"], tensors["covariance_matrix"])
    if family == "IndependentNormal":
        return torch.distributions.Independent(torch.distributions.Normal(tensors["loc"], tensors["scale"]), 1)
    raise ValueError(f"the file names an unknown prior {family!r}; it was not written by this library.")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | torch.Size) else value
