"""Files that are data, never code.

A saved posterior is one safetensors file: the tensors, and in its header a JSON manifest with the format's version, the
library's versions, the recipe, the shapes, and a description of each network. Nothing is pickled. A base posterior made
by `fmcpe.train_npe` goes into the file; one from elsewhere does not, and `load` asks for it again. Where that one has a
density estimator, the weights of the file replace its own, in a copy: what was fine-tuned stays so.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import warnings
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fmcpe._checks import parameter_dim
from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.architecture import build, build_prior, describe, describe_prior
from fmcpe.chain import Chain
from fmcpe.corrector import Corrector
from fmcpe.networks import VelocityField, embedding_width
from fmcpe.npe import FlowSize, NPEPosterior, build_estimator
from fmcpe.ode import Solver
from fmcpe.proposal import DensityProposal, Proposal, SummaryProposal, as_proposal
from fmcpe.recipe import Recipe
from fmcpe.spaces import FlatStandardiser, ParameterSpace, Standardiser
from fmcpe.transport import TransportMixture

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior

FORMAT = 1
_REQUIRED = {"recipe", "stages", "history", "num_pairs", "x_shape", "theta_dim", "embedding", "base", "summaries"}


def save(posterior: CorrectedPosterior, path: str | Path) -> Path:
    """Write `posterior` to `path`, whole or not at all."""
    path, corrector = Path(path), posterior.corrector
    base, base_tensors = _describe_base(corrector.proposal)
    if base["kind"] == "external" and _source(corrector.proposal) is not None:
        warnings.warn(
            "the base posterior has a prior or an embedding_net that a file cannot describe, and is not in it: keep it, and "
            "load with fmcpe.load(path, posterior=the_base_posterior).",
            FMCPEWarning,
            stacklevel=3,
        )
    manifest = {
        "format": FORMAT,
        "versions": {name: version(name) for name in ("fmcpe", "torch", "sbi", "zuko")},
        "recipe": asdict(posterior.recipe),
        "stages": posterior.stages,
        "history": posterior.history,
        "num_pairs": posterior.num_pairs,
        "x_shape": list(posterior.observation_shape),
        "summaries": isinstance(corrector.proposal, SummaryProposal),
        "theta_dim": corrector.space.dim,
        "method": posterior.method,
        "base": base,
    } | _describe_chain(corrector)
    tensors = {f"corrector.{k}": v for k, v in corrector.state_dict().items()} | base_tensors
    if posterior.default_x is not None:
        tensors["default_x"] = posterior.default_x
    contiguous = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}

    if path.is_dir() or not path.parent.is_dir():
        raise FileNotFoundError(f"{path} is not a place for a file; a name in a folder that exists was expected.")
    # a reader sees the old file or the new one, never half of one
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file(contiguous, temporary, metadata={"fmcpe": json.dumps(manifest)})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's files are for their owner alone
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def load(path: str | Path, posterior: Any = None, embedding_net: nn.Module | None = None) -> CorrectedPosterior:
    """Read a posterior written by `CorrectedPosterior.save`. No code from the file runs.

    Args:
        path: The file.
        posterior: The base posterior (or a `Proposal`), where the file does not hold it.
        embedding_net: The embedding of y, where it was a network of your own that the file cannot describe; its weights
            come from the file.
    """
    manifest, tensors = _read(Path(path))
    with seeded(0):  # fresh networks draw weights that are overwritten at once
        return _rebuild(manifest, tensors, posterior, embedding_net, path)


def _rebuild(
    manifest: dict[str, Any],
    tensors: dict[str, Tensor],
    posterior: Any,
    embedding_net: nn.Module | None,
    path: str | Path,
) -> CorrectedPosterior:
    from fmcpe.posterior import CorrectedPosterior

    proposal = _build_base(manifest, tensors, posterior, path)
    shape, dim = torch.Size(manifest["x_shape"]), manifest["theta_dim"]
    if proposal.raw_shape not in (None, shape) or parameter_dim(proposal.prior) != dim:
        raise ValueError(
            f"posterior is about θ of {parameter_dim(proposal.prior)} number(s) and x of shape "
            f"{tuple(proposal.raw_shape or ())}; the file needs {dim} and {tuple(shape)}. "
            "Pass the base posterior that was corrected."
        )

    if posterior is not None:
        proposal = _with_weights(proposal, _under(tensors, "base."), path)
    proposal = proposal.summarised() if manifest["summaries"] else proposal
    recipe = Recipe(**manifest["recipe"])
    space = ParameterSpace(proposal.prior, proposal.prior.sample((2,)).to(torch.float32))
    state = _under(tensors, "corrector.")
    if "transport" in manifest:
        chain: Chain = _build_transport(manifest["transport"], proposal, space, state, shape)
    else:
        chain = _build_flows(manifest, proposal, space, recipe, shape, embedding_net, path)
    chain.load_state_dict(state)
    loaded = CorrectedPosterior(
        chain.eval(),
        recipe,
        manifest["stages"],
        manifest["history"],
        manifest["num_pairs"],
        manifest.get("method", "FMCPE"),
    )
    return loaded.set_default_x(tensors["default_x"]) if "default_x" in tensors else loaded


def _describe_chain(chain: Chain) -> dict[str, Any]:
    """What the file says of how the chain was built."""
    if isinstance(chain, TransportMixture):
        embedded = not isinstance(chain.g, FlatStandardiser)
        return {"embedding": None, "transport": {"gamma": chain.gamma, "rho": chain.rho, "embedded": embedded}}
    assert isinstance(chain, Corrector)
    field = chain.u_theta or chain.u_x
    return {"embedding": None if field is None else describe(field.embedding)}


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

    def field(size: int) -> VelocityField:
        net = _embedding(manifest["embedding"], embedding_net, path)
        return VelocityField(size, net, embedding_width(net, shape), recipe.hidden, recipe.blocks)

    placeholder = torch.zeros(2, *shape)
    return Corrector(
        proposal,
        space,
        Standardiser(placeholder),
        Standardiser(placeholder),
        u_x=None if stages in ("theta-only", "none") else field(shape.numel()),
        u_theta=None if stages in ("x-only", "none") else field(space.dim),
        sigma=recipe.sigma,
        solver=Solver(recipe.solver, recipe.steps),
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; a file written by posterior.save(...) was expected.")
    try:
        with safe_open(path, framework="pt") as file:
            manifest = json.loads((file.metadata() or {}).get("fmcpe", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a whole fmcpe file ({error}); one written by posterior.save(...) was expected."
        ) from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise ValueError(
            f"{path} holds tensors but no fmcpe manifest; a file written by posterior.save(...) was expected."
        )
    if manifest["format"] > FORMAT:
        raise ValueError(
            f"{path} has format {manifest['format']}, written by fmcpe {manifest['versions']['fmcpe']}; this version reads "
            f"up to {FORMAT}. Upgrade with pip install --upgrade fmcpe."
        )
    missing = _REQUIRED - set(manifest)
    if missing:
        raise ValueError(
            f"{path} has a manifest without {', '.join(sorted(missing))}; it was not written by posterior.save(...)."
        )
    return manifest, tensors


def _describe_base(proposal: Proposal) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the file says of the base posterior, with its weights if it can hold them."""
    says: dict[str, Any] = {"kind": "external", "class": type(proposal).__name__, "support": None}
    tensors: dict[str, Tensor] = {}
    support = describe_prior(proposal.prior)
    if support is not None:
        says["support"] = support[0]
        tensors |= {f"support.{k}": v for k, v in support[1].items()}

    if isinstance(proposal, DensityProposal):
        tensors |= {f"base.{k}": v for k, v in proposal.estimator.state_dict().items()}
    source = _source(proposal)
    if support is None or source is None:
        return says, tensors
    # the prior of the simulations shapes the network; that of the pairs, usually the same, bounds the answers
    prior, embedding = describe_prior(source.prior), describe(source.embedding_net)
    if prior is None or (source.embedding_net is not None and embedding is None):
        return says, tensors
    tensors |= {f"prior.{k}": v for k, v in prior[1].items()}
    return says | {"kind": "npe", "flow": asdict(source.flow), "embedding": embedding, "prior": prior[0]}, tensors


def _source(proposal: Proposal) -> NPEPosterior | None:
    """The posterior that `train_npe` made, if that is what is behind the proposal."""
    posterior = proposal.posterior if isinstance(proposal, DensityProposal) else None
    return posterior if isinstance(posterior, NPEPosterior) else None


def _build_base(manifest: dict[str, Any], tensors: dict[str, Tensor], posterior: Any, path: str | Path) -> Proposal:
    base = manifest["base"]
    support = None if base["support"] is None else build_prior(base["support"], _under(tensors, "support."))
    if posterior is not None:
        return as_proposal(posterior, support)
    if base["kind"] == "external":
        raise ValueError(
            f"{path} does not hold its base posterior, as that was not made by fmcpe.train_npe of describable parts; it was "
            f"expected again. Call fmcpe.load({str(path)!r}, posterior=the_base_posterior)."
        )
    prior = build_prior(base["prior"], _under(tensors, "prior."))
    embedding = None if base["embedding"] is None else build(base["embedding"])
    theta, x = prior.sample((8,)), torch.randn(8, *manifest["x_shape"])
    estimator = build_estimator(theta, x, prior, FlowSize(**base["flow"]), embedding)
    estimator.load_state_dict(_under(tensors, "base."))
    return as_proposal(NPEPosterior(estimator.eval(), prior, FlowSize(**base["flow"]), embedding, {}), support)


def _with_weights(proposal: Proposal, state: dict[str, Tensor], path: str | Path) -> Proposal:
    """The base posterior as it was saved: a copy of the one that came, with the weights of the file where it has some."""
    if not state or not isinstance(proposal, DensityProposal):
        return proposal
    posterior = copy.deepcopy(proposal.posterior)
    try:
        posterior.posterior_estimator.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"posterior has a network unlike the one in {path} ({str(error).splitlines()[0]}); the base posterior that the "
            "file was made with was expected."
        ) from error
    return DensityProposal(posterior, proposal.prior)


def _embedding(description: dict[str, Any] | None, given: nn.Module | None, path: str | Path) -> nn.Module:
    if description is not None:
        return build(description)
    if given is None:
        raise ValueError(
            f"{path} was made with an embedding_net of your own, which a file cannot describe; it was expected again. Call "
            f"fmcpe.load({str(path)!r}, embedding_net=the_network); its weights come from the file."
        )
    return copy.deepcopy(given)


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
