"""Estimators that sbi's factories build, described by the factory's arguments: a file holds no code and no pickle.

sbi keeps no record of these arguments. They are read off the shapes of the weights, the network is built again, and the
description counts only if it has the same tensors and, with the same weights, the same output. A description that passes this
test when a file is written is rebuilt when the file is read.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from sbi.neural_nets import posterior_flow_nn, posterior_nn, posterior_score_nn
from sbi.neural_nets.estimators import (
    FlowMatchingEstimator,
    MixtureDensityEstimator,
    NFlowsFlow,
    ZukoFlow,
)
from sbi.neural_nets.estimators.score_estimator import ConditionalScoreEstimator
from sbi.utils.sbiutils import Standardize
from torch import nn
from torch.distributions import Distribution

from fmcpe._errors import FileError
from fmcpe._random import seeded
from fmcpe.nn.describe import build, describe

_MODELS = {
    ZukoFlow: ("zuko_nsf", "zuko_maf", "zuko_gf", "zuko_nice", "zuko_ncsf", "zuko_sospf", "zuko_naf", "zuko_unaf", "zuko_bpf"),
    NFlowsFlow: ("maf", "nsf", "maf_rqs", "made"),
    MixtureDensityEstimator: ("mdn",),
    FlowMatchingEstimator: ("mlp", "ada_mlp"),
    ConditionalScoreEstimator: ("mlp", "ada_mlp"),
}  # fmt: skip
_KNOWN = {
    "model", "z_score_theta", "z_score_x", "num_transforms", "num_components", "hidden_features", "num_bins", "num_layers",
    "time_emb_type", "compose_standardization", "sde_type", "gaussian_baseline",
}  # fmt: skip
_FACTORIES: dict[str, Any] = {"density": posterior_nn, "flow": posterior_flow_nn, "score": posterior_score_nn}


def describe_estimator(estimator: nn.Module, prior: Distribution, x_shape: torch.Size) -> dict[str, Any] | None:
    """The factory of an estimator and its arguments, as JSON; None if none gives the same network."""
    kinds = [kind for kind in _MODELS if isinstance(estimator, kind)]
    with seeded(0):  # networks that are built to be compared consume random numbers
        embedding = describe(_own_embedding(estimator))
    if not kinds or embedding is None:
        return None
    shapes = {name: value.shape for name, value in estimator.state_dict().items()}
    for guess in _guesses(kinds[0], estimator, shapes):
        says = guess | {"embedding": embedding}
        try:
            made = build_estimator(says, prior, x_shape)
        except (RuntimeError, ValueError, NotImplementedError, TypeError, AssertionError):
            continue
        if {name: value.shape for name, value in made.state_dict().items()} == shapes:
            made.load_state_dict(estimator.state_dict())
            if _same_output(estimator, made.eval(), prior, x_shape):
                return says
    return None


def build_estimator(says: dict[str, Any], prior: Distribution, x_shape: torch.Size) -> nn.Module:
    """The network of a description, its weights still to be loaded."""
    arguments = dict(says["arguments"])
    models = {name for names in _MODELS.values() for name in names}
    plain = all(isinstance(value, str | int) for value in arguments.values())
    if (
        says["factory"] not in _FACTORIES
        or arguments.get("model") not in models
        or not plain
        or set(arguments) - _KNOWN
    ):
        raise FileError(
            f"Expected arguments of sbi's factories, got {says['factory']!r} with {sorted(arguments)}. Load only files written "
            "by posterior.save."
        )
    if arguments.get("z_score_theta") == "transform_to_unconstrained":
        arguments["x_dist"] = prior
    with seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of probes, which are few and do not vary as data do
        rows = max(2, min(64, 2_000_000 // max(1, math.prod(x_shape))))  # probes of large x take memory
        theta, x = prior.sample(torch.Size((rows,))).to(torch.float32), torch.randn(rows, *x_shape)
        factory = _FACTORIES[says["factory"]](**arguments, embedding_net=build(says["embedding"]))
        return factory(theta, x)


def _own_embedding(estimator: Any) -> nn.Module | None:
    """The user's network, without sbi's standardisation of x in front of it."""
    net = estimator.embedding_net
    if isinstance(net, nn.Sequential) and len(net) == 2 and isinstance(net[0], Standardize):
        return net[1]
    return nn.Identity() if net is None or isinstance(net, Standardize) else net


def _guesses(kind: type[nn.Module], estimator: nn.Module, shapes: dict[str, torch.Size]) -> Iterator[dict[str, Any]]:
    """Descriptions that may be right, the most usual first."""
    z_score = ("independent", "structured", "none")
    if kind in (FlowMatchingEstimator, ConditionalScoreEstimator):
        yield from _vector_fields(kind, estimator, shapes, z_score)
        return
    sizes = _sizes(shapes)
    on_theta = ("independent", "none", "transform_to_unconstrained")
    for model, theta, x in product(_MODELS[kind], on_theta, z_score):
        for size in sizes:
            yield {
                "factory": "density",
                "arguments": {"model": model, "z_score_theta": theta, "z_score_x": x} | size,
            }


def _widths(shapes: dict[str, torch.Size]) -> list[int]:
    """Hidden features: those of the most layers, or of the first."""
    wide = [
        shape[0]
        for name, shape in shapes.items()
        if name.startswith("net.") and name.endswith("weight") and len(shape) == 2
    ]
    return list(dict.fromkeys([max(set(wide), key=wide.count), wide[0]])) if wide else []


def _sizes(shapes: dict[str, torch.Size]) -> list[dict[str, int]]:
    """Width, number of transforms, bins and components that the shapes of a density estimator allow."""
    transforms = {
        found[1]
        for name in shapes
        if (found := re.search(r"transforms\.(\d+)\.(hyper|autoregressive_net|transform_net)", name))
    }
    components = next((shape[0] for name, shape in shapes.items() if name.endswith("_logits_layer.weight")), 10)
    # a spline of K bins has 3K - 1 outputs for each parameter that it transforms
    last = {shape[0] for name, shape in shapes.items() if re.search(r"(final_layer|hyper\.\d+)\.weight$", name)}
    bins = {(out // dim + 1) // 3 for out in last for dim in range(1, 12) if out % dim == 0 and out // dim >= 5}
    ordered = sorted({10, *bins}, key=lambda number: (number != 10, number))
    size = {"num_transforms": max(1, len(transforms)), "num_components": components}
    return [size | {"hidden_features": wide, "num_bins": k} for wide in _widths(shapes) for k in ordered if k >= 2]


def _vector_fields(
    kind: type[nn.Module], estimator: Any, shapes: dict[str, torch.Size], z_score: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    layers = {
        "mlp": len({name.split(".")[2] for name in shapes if name.startswith("net.layers.")}),
        "ada_mlp": len({name.split(".")[2] for name in shapes if ".ada_ln." in name}),
    }
    composed = bool(getattr(estimator, "compose_enabled", False))
    extra: list[dict[str, Any]]
    if kind is ConditionalScoreEstimator:
        factory, extra = "score", [{"sde_type": sde} for sde in ("ve", "vp", "subvp")]
    else:
        factory, extra = "flow", [{"gaussian_baseline": bool(estimator.gaussian_baseline)}]
    times = ("sinusoidal", "random_fourier")
    for model, width, theta, x, time, more in product(_MODELS[kind], _widths(shapes), z_score, z_score, times, extra):
        given = {"model": model, "z_score_theta": theta, "z_score_x": x, "time_emb_type": time}
        size = {"hidden_features": width, "num_layers": layers[model], "compose_standardization": composed}
        yield {"factory": factory, "arguments": given | size | more}


@torch.no_grad()
def _same_output(one: Any, other: Any, prior: Distribution, x_shape: torch.Size) -> bool:
    with seeded(1):
        theta = prior.sample(torch.Size((16,))).to(torch.float32)
        x = torch.randn(16, *x_shape)
    device = next(one.parameters()).device
    try:
        if hasattr(one, "ode_fn"):
            times = torch.linspace(float(one.t_min), float(one.t_max), 16)
            a = one.ode_fn(theta.to(device), x.to(device), times.to(device)).cpu()
            b = other.ode_fn(theta, x, times)
            ends = [
                (e.t_min, e.t_max, *e.mean_base.flatten().tolist(), *e.std_base.flatten().tolist())
                for e in (one, other)
            ]
            if not all(math.isclose(p, q, rel_tol=1e-6) for p, q in zip(*ends, strict=True)):
                return False
        else:
            a = one.log_prob(theta[None].to(device), condition=x.to(device)).cpu()
            b = other.log_prob(theta[None], condition=x)
    except (RuntimeError, ValueError, AssertionError):
        return False
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
