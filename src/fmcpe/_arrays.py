"""Conversion of users' arrays to tensors: always a copy, and no silent conversion.

Masked values, complex numbers, and double precision that single precision would round away are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

LOSS = 0.01
"""Numerical guard: data that rounding to single precision costs more than this share of the standard deviation are refused."""


class UnreadableError(ValueError):
    """Numbers that must not be converted silently; the message holds the second and third part of an error."""


def as_numbers(
    value: Any, dtype: torch.dtype, device: Any = None, *, masked_as_nan: bool = False, rows: int | None = None
) -> Tensor:
    """A new tensor from a number, a list, an array, a DataFrame or a tensor, of any byte order, strides and precision.

    Masked values become NaN, or are refused. From `rows` rows on, each of another θ, a loss of precision in float32 is refused.
    """
    with torch.inference_mode(False), torch.no_grad():
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(_as_array(value, masked_as_nan))
        if type(tensor).__name__ == "MaskedTensor":
            raise UnreadableError("got a MaskedTensor. Leave masked rows out, or fill them, and pass a plain tensor")
        if tensor.is_nested or tensor.is_meta or tensor.is_quantized:
            kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else "meta"
            raise UnreadableError(f"got a {kind} tensor. Pass a plain one, all rows of one shape")
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        if tensor.is_complex():
            raise UnreadableError(_COMPLEX)
        if rows is not None and tensor.dtype in _LONG and dtype == torch.float32:
            refuse_loss(tensor, rows)
        return tensor.detach().to(device=device, dtype=dtype, copy=True)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor holds real numbers as they are: strided, neither nested nor masked, quantized or meta."""
    odd = type(tensor).__name__ == "MaskedTensor" or tensor.is_nested or tensor.is_meta or tensor.is_quantized
    return not odd and tensor.layout == torch.strided and not tensor.is_complex()


def returned_numbers(value: Any, source: str, device: Any, rows: int | None = None) -> Tensor:
    """The output of a user's function as a tensor; masked values are NaN. `source` names the function in errors."""
    try:
        return as_numbers(value, torch.float32, device, masked_as_nan=True, rows=rows)
    except UnreadableError as error:
        raise ValueError(f"Expected real numbers from {source}, {error}.") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"Expected {source} to return a tensor or array of numbers, got a {type(value).__name__}. Return "
            "torch.as_tensor(...)."
        ) from error


_LONG = (torch.float64, torch.int64, torch.int32, torch.uint64, torch.uint32)
"""Types with more digits than single precision."""
_COMPLEX = (
    "got complex numbers. Pass real and imaginary parts side by side, e.g. numpy.stack([y.real, y.imag], axis=-1)"
)


def _as_array(value: Any, masked_as_nan: bool) -> Any:
    """A writeable, contiguous array of a dtype that torch supports."""
    if isinstance(value, list | tuple) and any(isinstance(each, np.ma.MaskedArray) for each in value):
        value = np.ma.stack(value)
    if isinstance(value, np.ma.MaskedArray):
        number = int(np.ma.getmaskarray(value).sum())
        if number and not masked_as_nan:
            raise UnreadableError(
                f"got a masked array with {number} masked value(s) of {value.size}. Leave those rows out, or fill them: "
                "y.filled(value)"
            )
        value = np.ma.filled(value.astype(np.float64), np.nan) if number else value.data
    array = np.asarray(value)
    if array.dtype.kind == "O":  # e.g. a DataFrame with several types of numbers
        if any(isinstance(each, complex | np.complexfloating) for each in array.flat):
            raise UnreadableError(_COMPLEX)
        if any(isinstance(each, str | bytes) for each in array.flat):
            raise UnreadableError("got text. Convert it yourself, e.g. frame.astype(float), so that nothing is misread")
        array = array.astype(np.float64)
    if array.dtype.kind == "c":
        raise UnreadableError(_COMPLEX)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"numpy gives {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8 and len(np.atleast_1d(array)) > 1:
        with np.errstate(all="ignore"):
            lost, spread = np.sqrt(np.square(array - array.astype(np.float64)).mean(0)), array.std(0)
            rounding = 64 * np.finfo(array.dtype).eps * np.abs(array).max(0)
        if bool(((lost > LOSS * spread) & (spread > rounding)).any()):
            raise UnreadableError(
                "got long doubles with an offset so large that double precision rounds them away. Subtract a constant before, "
                "the same from simulations and measurements"
            )
    single = array.dtype.kind == "b" or (array.dtype.kind == "f" and array.dtype.itemsize <= 4)
    exact = np.float32 if single else np.int64 if array.dtype.kind == "i" else np.float64
    return np.array(array, dtype=exact, order="C", copy=True)


def refuse_loss(data: Tensor, least: int, constant: float = 1e-14) -> None:
    """Refuse columns of data (N, ...) whose spread is lost in rounding to single precision.

    A column with a standard deviation below `constant` times its largest value is constant.
    """
    if data.ndim == 0 or len(data) < least:
        return
    rows = data.detach().flatten(1) if data.ndim > 1 else data.detach()[:, None]
    whole = not rows.is_floating_point()  # exact, whatever the offset is
    rows = rows.long() if whole else rows[torch.isfinite(rows).all(1)]
    if len(rows) < least or rows.shape[1] == 0:
        return
    lost = (rows - rows.float().to(rows)).double().square().mean(0).sqrt()
    spread, rows = (rows - rows[0] if whole else rows).double().std(0), rows.double()
    size = rows.abs().amax(0)
    bad = (spread > (0.0 if whole else constant) * size) & (lost > LOSS * spread)
    if bool(bad.any()):
        worst = int(torch.where(bad, lost / spread, torch.zeros_like(lost)).argmax())
        # below this size, single precision loses digits because it has no smaller numbers
        if float(size[worst]) < float(torch.finfo(torch.float32).tiny) / LOSS:
            raise UnreadableError(
                f"got {int(bad.sum())} of {len(bad)} column(s) too small for single precision: column {worst} has standard "
                f"deviation {float(spread[worst]):.3g}. Choose a smaller unit, the same for simulations and measurements"
            )
        raise UnreadableError(
            f"got {int(bad.sum())} of {len(bad)} column(s) with a large offset: column {worst} has mean "
            f"{float(rows[:, worst].mean()):.9g} and standard deviation {float(spread[worst]):.3g}, of which rounding to "
            f"single precision loses {min(1.0, float(lost[worst] / spread[worst])):.0%} (at most {LOSS:.0%} is accepted). "
            "Subtract a constant in double precision, the same from simulations and measurements"
        )
