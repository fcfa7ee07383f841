"""Files that are data, never code.

A saved posterior is one safetensors file: the tensors, and in its header a JSON manifest with the format's version, the
library's versions, the recipe, the shapes, and a description of each network. Nothing is pickled. A base posterior made
by `fmcpe.train_npe` goes into the file; one from elsewhere does not, and `load` asks for it again. Where that one has a
density estimator, the weights of the file replace its own, in a copy: what was fine-tuned stays so.
"""

from __future__ import annotations

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

from fmcpe._errors import FMCPEWarning
from fmcpe._random import seeded
from fmcpe.adapters import SummaryProposal
from fmcpe.blueprint import build_base, build_chain, describe_base, describe_chain, made_by_train_npe, under
from fmcpe.recipe import Recipe
from fmcpe.spaces import ParameterSpace

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior

FORMAT = 3
_REQUIRED = {"recipe", "stages", "history", "num_pairs", "x_shape", "theta_dim", "embedding", "base", "summaries"}


def save(posterior: CorrectedPosterior, path: str | Path) -> Path:
    """Write `posterior` to `path`, whole or not at all."""
    path, corrector = Path(path), posterior.corrector
    base, base_tensors = describe_base(corrector.proposal)
    if base["kind"] == "external" and made_by_train_npe(corrector.proposal):
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
    } | describe_chain(corrector)
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

    proposal = build_base(manifest, tensors, posterior, path)
    proposal = proposal.summarised() if manifest["summaries"] else proposal
    recipe = _recipe(manifest, path)
    space = ParameterSpace(proposal.prior, proposal.prior.sample((2,)).to(torch.float32))
    state = under(tensors, "corrector.")
    chain = build_chain(manifest, proposal, space, recipe, state, embedding_net, path)
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


def _recipe(manifest: dict[str, Any], path: str | Path) -> Recipe:
    """The recipe of a manifest. Format 3 gave u_X an embedding head and made the width independent of the number of pairs."""
    settings = dict(manifest["recipe"])
    if manifest["format"] < 3:
        has_flows = not {"warm", "transport"} & set(manifest) and manifest["stages"] != "none"
        if has_flows:
            raise ValueError(
                f"Expected a file of format 3, got {path} of format {manifest['format']}, whose velocity networks have another "
                "architecture. Fit the posterior again with this version."
            )
        settings.pop("many_pairs", None)
    return Recipe(**settings)


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
