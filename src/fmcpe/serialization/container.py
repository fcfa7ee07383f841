"""The file container: a safetensors file with a JSON manifest and a checksum, read with limits.

The checksum is SHA-256 over the manifest's text and, in the order of their names, over name, type, shape and bytes of every
tensor. It detects damage. It is no signature: whoever changes a file can recompute it. So sizes are checked as well
(`fmcpe.serialization.limits`).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from fmcpe._errors import FileError

FORMAT, READABLE = 7, (5, 6, 7)
"""Format 7 adds a checksum, format 6 the kind of conformal intervals."""
MAX_HEADER, MAX_TENSORS = 32_000_000, 100_000
MAX_VALUES = 1_000_000
"""Resource limit: opening brackets and commas of a JSON text."""
LAST_COMMIT = {1: "88939aa~1", 2: "4dae3d5~1", 3: "473118d~1", 4: "818e436~1"}
"""Formats that were never released, and the last commit that reads each."""


def digest(manifest: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the content."""
    found = hashlib.sha256(manifest.encode())
    for name in sorted(tensors):
        value = tensors[name]
        found.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def to_bytes(manifest: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """The file of a manifest and its tensors, the same bytes each time."""
    text = json.dumps(manifest)
    content = tensors_to_bytes(tensors, metadata={"fmcpe": text, "sha256": digest(text, tensors)})
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # safetensors writes them in any order
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # tensors start at a multiple of eight bytes
    return len(head).to_bytes(8, "little") + head + content[8 + size :]


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Manifest and tensors of a file, after format and checksum were checked."""
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"Expected a file written by posterior.save(...), got {path}, which {what}. Check the path."
        )
    try:
        with path.open("rb") as file:
            metadata = _metadata(file, path)
            file.seek(0)
            tensors = read_tensors(file.read())
        text = metadata.get("fmcpe", "null")
        manifest = _json(text)
    except FileError:
        raise
    except OSError as error:
        raise type(error)(
            error.errno,
            f"Expected a file that can be read, got {path} ({error.strerror}). Change its permissions, or load a copy.",
        ) from error
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, OverflowError, RuntimeError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise FileError(
            f"Expected a whole file written by posterior.save(...), got {path} ({line}). Save it again."
        ) from error
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise FileError(
            f"Expected a file written by posterior.save(...), got {path} with no fmcpe manifest. Check the path."
        )
    _check_format(manifest, path)
    if "sha256" not in metadata and manifest["format"] < 7:
        return manifest, tensors
    if metadata.get("sha256") != digest(text, tensors):
        raise FileError(
            f"Expected a file as posterior.save(...) wrote it, got {path} with another checksum: it was damaged or edited. "
            "Restore it from a copy, or save the posterior again."
        )
    return manifest, tensors


def _metadata(file: BinaryIO, path: Path) -> dict[str, str]:
    """The strings of the header, which is parsed here with limits before safetensors sees it, and tensors are read."""
    size, first, length = int.from_bytes(file.read(8), "little"), file.read(1), path.stat().st_size
    if first not in (b"{", b""):  # the header of each safetensors file begins so
        raise FileError(
            f"Expected a model saved by fmcpe, got {path} (another file format). Did you swap the files? Name the one that "
            "posterior.save(...) wrote."
        )
    if not 2 <= size <= min(MAX_HEADER, length - 8):
        raise ValueError("its header is longer than the file, or empty")
    header = _json((first + file.read(size - 1)).decode())
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise ValueError("a header that is no list of tensors, or of too many")
    metadata = header.pop("__metadata__", {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata that are no text")
    if max([0, *(entry["data_offsets"][1] for entry in header.values())]) != length - 8 - size:
        raise ValueError("it has more or fewer bytes than its tensors")
    for name, entry in header.items():
        # a tensor without elements takes no bytes, whatever its other sizes are
        if any(not 0 <= n <= length for n in entry["shape"]):
            raise ValueError(f"tensor {name[:80]!r} of shape {str(entry['shape'])[:80]}")
    return metadata


def _json(text: str) -> Any:
    """A JSON document of bounded length: it takes a multiple of its length in memory."""
    if sum(map(text.count, "[{,")) > MAX_VALUES:
        raise ValueError("more values than a posterior has")
    return json.loads(text)


def _check_format(manifest: dict[str, Any], path: Path) -> None:
    found = manifest["format"]
    if found in READABLE:
        return
    versions = manifest.get("versions")
    by = versions.get("fmcpe", "?") if isinstance(versions, dict) else "?"
    if found > FORMAT:
        advice = f"Upgrade with pip install --upgrade fmcpe; fmcpe {str(by)[:40]} wrote it."
    elif found in LAST_COMMIT:
        advice = f"Fit the posterior again with this version, or check out commit {LAST_COMMIT[found]}, which reads it."
    else:
        advice = "No version wrote this format: the file is damaged."
    raise FileError(f"Expected a file of format {FORMAT}, got {path} of format {found}. {advice}")
