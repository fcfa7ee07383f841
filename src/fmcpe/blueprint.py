"""What a file says of the parts of a posterior, and the parts built again from it.

Tensors travel apart (`fmcpe.io`): what is described here is how to make the networks and regressions that they fill.
"""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fmcpe._checks import parameter_dim
from fmcpe.adapters import DensityProposal, as_proposal
from fmcpe.architecture import build, build_prior, describe, describe_prior
from fmcpe.chain import Chain
from fmcpe.corrector import Corrector, theta_field, x_field
from fmcpe.forward import Forward, Size
from fmcpe.inversion import InvertedProposal
from fmcpe.networks import VelocityField
from fmcpe.npe import FlowSize, NPEPosterior, build_estimator
from fmcpe.ode import Solver
from fmcpe.proposal import PriorProposal, Proposal
from fmcpe.recipe import Recipe
from fmcpe.shift import Shift
from fmcpe.source import Move, Step
from fmcpe.spaces import FlatStandardiser, ParameterSpace, Standardiser
from fmcpe.starts import summary_of
from fmcpe.summary import TunedProposal
from fmcpe.transport import TransportMixture
from fmcpe.warm import FURTHEST, WarmChain, summary_for

# ---------------------------------------------------------------------- the chain


def describe_chain(chain: Chain) -> dict[str, Any]:
    """What the file says of how the chain was built."""
    if isinstance(chain, TransportMixture):
        embedded = not isinstance(chain.g, FlatStandardiser)
        return {"embedding": None, "transport": {"gamma": chain.gamma, "rho": chain.rho, "embedded": embedded}}
    if isinstance(chain, WarmChain):
        parts = {"moves": chain.move is not None, "steps": chain.step is not None, "members": len(chain.u_theta)}
        return {"embedding": None, "warm": parts}
    assert isinstance(chain, Corrector)
    field = chain.u_theta or chain.u_x
    return {"embedding": None if field is None else describe(field.embedding)}


def build_chain(
    manifest: dict[str, Any],
    proposal: Proposal,
    space: ParameterSpace,
    recipe: Recipe,
    state: dict[str, Tensor],
    embedding_net: nn.Module | None,
    path: str | Path,
) -> Chain:
    """The chain of a manifest, with weights still to be filled by `state`."""
    shape = torch.Size(manifest["x_shape"])
    if "transport" in manifest:
        return _build_transport(manifest["transport"], proposal, space, state, shape)
    if "warm" in manifest:
        return _build_warm(manifest["warm"], proposal, space, recipe, state)
    return _build_flows(manifest, proposal, space, recipe, shape, embedding_net, path)


def _build_warm(
    says: dict[str, Any], proposal: Proposal, space: ParameterSpace, recipe: Recipe, state: dict[str, Tensor]
) -> WarmChain:
    shape, features = state["x_scale.mean"].shape, state["y_scale.mean"].shape[0]
    summary = summary_of(proposal, summary_for(shape.numel()))

    def field() -> VelocityField:
        return VelocityField(space.dim, nn.Identity(), features, recipe.widths)

    return WarmChain(
        proposal,
        space,
        summary,
        Standardiser(torch.zeros(2, *shape)),
        Standardiser(torch.zeros(2, features)),
        Move(features, shape.numel()) if says["moves"] else None,
        Step(features, space.dim) if says["steps"] else None,
        [field() for _ in range(says["members"])],
        Solver(recipe.solver, recipe.steps),
    )


def _build_transport(
    says: dict[str, Any], proposal: Proposal, space: ParameterSpace, state: dict[str, Tensor], shape: torch.Size
) -> TransportMixture:
    # weights come from the file; the network is a copy of the base posterior's embedding, as it was when it was fitted
    g = copy.deepcopy(proposal.embedding) if says["embedded"] else FlatStandardiser(torch.zeros(2, *shape))
    assert g is not None
    pool, features, company = (torch.empty_like(state[name]) for name in ("pool", "features", "company"))
    return TransportMixture(proposal, space, g, pool, features, company, shape, says["gamma"], says["rho"])


def _build_flows(
    manifest: dict[str, Any],
    proposal: Proposal,
    space: ParameterSpace,
    recipe: Recipe,
    shape: torch.Size,
    embedding_net: nn.Module | None,
    path: str | Path,
) -> Corrector:
    shape = shape if proposal.x_shape is None else proposal.x_shape
    stages = manifest["stages"]

    def network() -> nn.Module:
        return _embedding(manifest["embedding"], embedding_net, path)

    placeholder = torch.zeros(2, *shape)
    return Corrector(
        proposal,
        space,
        Standardiser(placeholder),
        Standardiser(placeholder),
        u_x=None if stages in ("theta-only", "none") else x_field(recipe, shape, network()),
        u_theta=None if stages in ("x-only", "none") else theta_field(recipe, space.dim, shape, network()),
        sigma=recipe.sigma,
        solver=Solver(recipe.solver, recipe.steps),
        source=recipe.source,
    )


# ---------------------------------------------------------------------- the base posterior


def describe_base(proposal: Proposal) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the file says of the base posterior, with its weights if it can hold them."""
    says: dict[str, Any] = {"kind": "external", "class": type(proposal).__name__, "support": None, "members": None}
    tensors: dict[str, Tensor] = {}
    if isinstance(proposal, InvertedProposal):
        says, tensors = describe_base(proposal.base)
        regressions = says.get("inverted", [])
        tensors |= {f"forward.{len(regressions)}.{k}": v for k, v in proposal.forward.state_dict().items()}
        one = {"size": proposal.forward.size._asdict(), "share": proposal.share, "asks_base": proposal.asks_base}
        return says | {"inverted": [*regressions, one]}, tensors | {"pool": proposal.pool}
    support = describe_prior(proposal.prior)
    if support is not None:
        says["support"] = support[0]
        tensors |= {f"support.{k}": v for k, v in support[1].items()}
        if isinstance(proposal, PriorProposal):
            return says | {"kind": "prior"}, tensors

    if isinstance(proposal, TunedProposal):
        says["members"] = len(proposal.members)
        if proposal.shift is not None:
            tensors |= {f"shift.{k}": v for k, v in proposal.shift.state_dict().items()}
    for k, member in enumerate(_networks(proposal)):
        tensors |= {f"base.{k}.{name}": value for name, value in member.estimator.state_dict().items()}
    source = _source(proposal)
    if support is None or source is None:
        return says, tensors
    # the prior of the simulations shapes the network; that of the pairs, usually the same, bounds the answers
    prior, embedding = describe_prior(source.prior), describe(source.embedding_net)
    if prior is None or (source.embedding_net is not None and embedding is None):
        return says, tensors
    tensors |= {f"prior.{k}": v for k, v in prior[1].items()}
    return says | {"kind": "npe", "flow": asdict(source.flow), "embedding": embedding, "prior": prior[0]}, tensors


def made_by_train_npe(proposal: Proposal) -> bool:
    """Whether what is behind the proposal can be described, but for its prior and its embedding."""
    return _source(proposal) is not None


def _networks(proposal: Proposal) -> list[DensityProposal]:
    """Those whose weights belong to the answer, as they may have been fine-tuned."""
    if isinstance(proposal, InvertedProposal):
        return _networks(proposal.base)
    if isinstance(proposal, TunedProposal):
        return [each for each in (*proposal.members, proposal.base) if isinstance(each, DensityProposal)]
    return [proposal] if isinstance(proposal, DensityProposal) else []


def _source(proposal: Proposal) -> NPEPosterior | None:
    """The posterior that `train_npe` made, if that is what is behind the proposal."""
    networks = _networks(proposal)
    posterior = networks[0].posterior if networks else None
    return posterior if isinstance(posterior, NPEPosterior) else None


def build_base(manifest: dict[str, Any], tensors: dict[str, Tensor], posterior: Any, path: str | Path) -> Proposal:
    """The base posterior of the file, or the one that came, with the file's weights where it has some."""
    if isinstance(manifest["base"].get("inverted"), dict):
        raise ValueError(
            f"{path} has format {manifest['format']}, of a version in development that held one regression; a list of them was "
            "expected. Fit it again with this version."
        )
    if "inverted" in manifest["base"]:
        says = {name: value for name, value in manifest["base"].items() if name != "inverted"}
        together = build_base(manifest | {"base": says}, tensors, posterior, path).summarised()
        for number, one in enumerate(manifest["base"]["inverted"]):
            forward = _build_forward(Size(**one["size"]), manifest, under(tensors, f"forward.{number}."))
            together = InvertedProposal(forward, together, tensors["pool"], one["share"], one.get("asks_base", True))
        return together
    base = manifest["base"]
    support = None if base["support"] is None else build_prior(base["support"], under(tensors, "support."))
    if base["kind"] == "prior":
        assert support is not None
        return PriorProposal(support, torch.Size(manifest["x_shape"]))
    if posterior is not None:
        proposal = as_proposal(posterior, support)
        _check_shapes(proposal, torch.Size(manifest["x_shape"]), manifest["theta_dim"])
        if base["class"] == PriorProposal.__name__:
            return PriorProposal(proposal.prior, torch.Size(manifest["x_shape"]))
    elif base["kind"] == "npe":
        proposal = as_proposal(_build_npe(manifest, tensors), support)
    else:
        raise ValueError(
            f"{path} does not hold its base posterior, as that was not made by fmcpe.train_npe of describable parts; it was "
            f"expected again. Call fmcpe.load({str(path)!r}, posterior=the_base_posterior)."
        )
    if "base.0" not in {".".join(name.split(".")[:2]) for name in tensors} or not isinstance(proposal, DensityProposal):
        return proposal
    # of a fine-tuned posterior the members, and after them what they were before
    networks = [_with_weights(proposal, under(tensors, f"base.{k}."), path) for k in range((base["members"] or 0) + 1)]
    if not base["members"]:
        return networks[-1]
    state = under(tensors, "shift.")
    shift = Shift(len(state["ridge.centre"]), torch.Size(manifest["x_shape"]), FURTHEST) if state else None
    if shift is not None:
        shift.load_state_dict(state)
    return TunedProposal(networks[:-1], networks[-1], shift)


def _build_forward(size: Size, manifest: dict[str, Any], state: dict[str, Tensor]) -> Forward:
    forward = Forward(manifest["theta_dim"], torch.Size(manifest["x_shape"]).numel(), size)
    forward.load_state_dict(state)
    return forward


def _check_shapes(proposal: Proposal, shape: torch.Size, dim: int) -> None:
    if proposal.raw_shape not in (None, shape) or parameter_dim(proposal.prior) != dim:
        raise ValueError(
            f"posterior is about θ of {parameter_dim(proposal.prior)} number(s) and x of shape "
            f"{tuple(proposal.raw_shape or ())}; the file needs {dim} and {tuple(shape)}. "
            "Pass the base posterior that was corrected."
        )


def _build_npe(manifest: dict[str, Any], tensors: dict[str, Tensor]) -> NPEPosterior:
    base = manifest["base"]
    prior = build_prior(base["prior"], under(tensors, "prior."))
    embedding = None if base["embedding"] is None else build(base["embedding"])
    theta, x = prior.sample((8,)), torch.randn(8, *manifest["x_shape"])
    estimator = build_estimator(theta, x, prior, FlowSize(**base["flow"]), embedding)
    return NPEPosterior(estimator.eval(), prior, FlowSize(**base["flow"]), embedding, {})


def _with_weights(proposal: DensityProposal, state: dict[str, Tensor], path: str | Path) -> DensityProposal:
    """A copy of a base posterior with the weights of the file."""
    estimator = copy.deepcopy(proposal.estimator)
    try:
        estimator.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"posterior has a network unlike the one in {path} ({str(error).splitlines()[0]}); the base posterior that the "
            "file was made with was expected."
        ) from error
    return proposal.with_estimator(estimator)


def _embedding(description: dict[str, Any] | None, given: nn.Module | None, path: str | Path) -> nn.Module:
    if description is not None:
        return build(description)
    if given is None:
        raise ValueError(
            f"{path} was made with an embedding_net of your own, which a file cannot describe; it was expected again. Call "
            f"fmcpe.load({str(path)!r}, embedding_net=the_network); its weights come from the file."
        )
    return copy.deepcopy(given)


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
