"""The base posterior in a file: its description, its weights, and how it is rebuilt."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sbi.inference.posteriors import DirectPosterior, VectorFieldPosterior
from torch import Tensor
from torch.distributions import Distribution

from fmcpe._checks import parameter_dim
from fmcpe._errors import FileError
from fmcpe._names import as_names
from fmcpe.base_posteriors.adapters import DensityBase, EnsembleBase, as_base_posterior
from fmcpe.base_posteriors.base import BasePosterior
from fmcpe.base_posteriors.npe import FlowSize, NPEPosterior
from fmcpe.base_posteriors.npe import build_estimator as build_npe
from fmcpe.base_posteriors.vector_field import VectorFieldBase
from fmcpe.nn.describe import build, build_prior, describe, describe_prior, under
from fmcpe.serialization.sbi_estimator import build_estimator, describe_estimator


def describe_base(base: BasePosterior) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A JSON description of the base posterior, and its tensors."""
    says: dict[str, Any] = {"kind": "external", "class": type(base).__name__, "support": None}
    tensors: dict[str, Tensor] = {}
    support = describe_prior(base.prior)
    if support is not None:
        says["support"] = support[0]
        tensors |= {f"support.{k}": v for k, v in support[1].items()}
    if isinstance(base, DensityBase | VectorFieldBase):
        tensors |= {f"base.{name}": value for name, value in base.estimator.state_dict().items()}
    if support is None:
        return says | {"why": "a file cannot describe its prior"}, tensors
    if isinstance(base, EnsembleBase):
        found = [describe_base(member) for member in base.members]
        outside = next((each for each, _ in found if each["kind"] == "external"), None)
        if outside is not None:
            return says | {"why": f"of a member of the ensemble: {outside['why']}"}, tensors
        tensors |= {f"member.{k}.{name}": v for k, (_, own) in enumerate(found) for name, v in own.items()}
        return says | {
            "kind": "ensemble",
            "members": [each for each, _ in found],
            "weights": base.weights.tolist(),
        }, tensors
    source = made_by_train_npe(base)
    if source is None:
        return says | _describe_other(base), tensors
    # the network depends on the prior of the simulations; the support, usually the same, is that of `base.prior`
    prior, embedding = describe_prior(source.prior), describe(source.embedding_net)
    if prior is None or (source.embedding_net is not None and embedding is None):
        return says | {"why": "a file cannot describe its prior or its embedding_net"}, tensors
    tensors |= {f"prior.{k}": v for k, v in prior[1].items()}
    says |= {"kind": "npe", "flow": asdict(source.flow), "embedding": embedding, "prior": prior[0]}
    return says | ({} if source.names is None else {"names": list(source.names)}), tensors


def _describe_other(base: BasePosterior) -> dict[str, Any]:
    """The description of a base posterior that `train_npe` did not make, or the reason why there is none."""
    if not isinstance(base, DensityBase | VectorFieldBase):
        return {"why": f"a {type(base).__name__} is code, or a network that a file cannot describe"}
    found = describe_estimator(base.estimator, base.prior, torch.Size(base.estimator.condition_shape))
    if found is None:
        return {"why": "its network was not built by sbi's factories from layers that a file can describe"}
    return {"kind": "sbi", "estimator": found}


def made_by_train_npe(base: BasePosterior) -> NPEPosterior | None:
    """The posterior of `train_npe` behind the base posterior, if any."""
    posterior = base.posterior if isinstance(base, DensityBase) else None
    return posterior if isinstance(posterior, NPEPosterior) else None


def build_support(manifest: dict[str, Any], tensors: dict[str, Tensor]) -> Distribution | None:
    """The prior that bounds the draws of the base posterior, if the file describes it."""
    says = manifest["base"]["support"]
    return None if says is None else build_prior(says, under(tensors, "support."))


def build_base(
    manifest: dict[str, Any], tensors: dict[str, Tensor], posterior: BasePosterior | None, path: str | Path
) -> BasePosterior:
    """The base posterior of the file, or `posterior`, with the weights of the file if there are any."""
    says, support = manifest["base"], build_support(manifest, tensors)
    if posterior is not None:
        base = posterior
        shape, dim, own_dim = torch.Size(manifest["x_shape"]), manifest["theta_dim"], parameter_dim(base.prior)
        if base.raw_shape not in (None, shape) or own_dim != dim:
            raise FileError(
                f"Expected a posterior over θ of {dim} number(s) given x of shape {tuple(shape)}, got {own_dim} and "
                f"{tuple(base.raw_shape or ())}. Pass the base posterior that was corrected."
            )
    elif says["kind"] == "npe":
        base = as_base_posterior(_build_npe(manifest, tensors), support)
    elif says["kind"] == "sbi":
        assert support is not None
        estimator: Any = build_estimator(says["estimator"], support, torch.Size(manifest["x_shape"]))
        field = hasattr(estimator, "ode_fn")
        made = VectorFieldPosterior(estimator, support) if field else DirectPosterior(estimator, support)
        base = as_base_posterior(made, support)
    elif says["kind"] == "ensemble":
        parts = [
            build_base(manifest | {"base": each}, under(tensors, f"member.{k}."), None, path)
            for k, each in enumerate(says["members"])
        ]
        base = EnsembleBase(parts, torch.tensor(says["weights"]))
    else:
        raise FileError(
            f"Expected a file with its base posterior, got {path} without ({says.get('why', 'a file cannot describe it')}). "
            f"Call fmcpe.load({str(path)!r}, posterior=the_base_posterior)."
        )
    state = under(tensors, "base.")
    if not state or not isinstance(base, DensityBase | VectorFieldBase):
        return base
    # the user's network stays as it is; a network that was built here is also that of `base.posterior`
    base = base if posterior is None else base.with_estimator(copy.deepcopy(base.estimator))
    try:
        base.estimator.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(
            f"Expected the base posterior that {path} was made with, got another network "
            f"({str(error).splitlines()[0]}). Pass the one that was corrected."
        ) from error
    return base


def _build_npe(manifest: dict[str, Any], tensors: dict[str, Tensor]) -> NPEPosterior:
    says = manifest["base"]
    prior = build_prior(says["prior"], under(tensors, "prior."))
    embedding = None if says["embedding"] is None else build(says["embedding"])
    theta, x, flow = prior.sample((8,)), torch.randn(8, *manifest["x_shape"]), FlowSize(**says["flow"])
    estimator = build_npe(theta, x, prior, flow, embedding)
    posterior = NPEPosterior(estimator.eval(), prior, flow, embedding, {})
    if says.get("names") is not None:  # files of earlier versions have none
        posterior.names = as_names(says["names"], parameter_dim(prior))
    return posterior
