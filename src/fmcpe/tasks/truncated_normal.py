"""Normals truncated to an interval, accurate in both tails: log mass, and draws by the inverse cdf in logs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtri_exp

Array = NDArray


def log_normal_mass(lower: Array, upper: Array) -> Array:
    """log(Φ(upper) − Φ(lower)) for lower < upper."""
    lower, upper, _ = _lower_tail(lower, upper)
    log_upper = log_ndtr(upper)
    return log_upper + np.log(-np.expm1(log_ndtr(lower) - log_upper))


def truncated_normal(u: Array, mean: ArrayLike, std: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    """The quantile at `u` in [0, 1) of N(mean, std²) restricted to [low, high]; uniform `u` gives draws."""
    mean, std = np.asarray(mean), np.asarray(std)
    lower, upper, mirrored = _lower_tail((low - mean) / std, (high - mean) / std)
    with np.errstate(divide="ignore"):  # u may be 0
        z = ndtri_exp(np.logaddexp(log_ndtr(lower) + np.log1p(-u), log_ndtr(upper) + np.log(u)))
    return np.clip(mean + std * np.where(mirrored, -z, z), low, high)


def _lower_tail(lower: Array, upper: Array) -> tuple[Array, Array, Array]:
    """The interval, mirrored if it lies in the upper tail, where Φ rounds to 1."""
    mirrored = lower + upper > 0
    return np.where(mirrored, -upper, lower), np.where(mirrored, -lower, upper), mirrored
