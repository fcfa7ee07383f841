"""Connection to a Dask cluster (optional extra)."""

from __future__ import annotations

from typing import Any


def connect(address: Any, timeout: str = "10s") -> Any:
    """A Dask client for the scheduler at `address`; a client is returned as it is."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError("Expected dask, got no such package. Install it with pip install 'fmcpe[dask]'.") from error
    if isinstance(address, Client):
        return address
    try:
        return Client(address, timeout=timeout)
    except (OSError, TimeoutError) as error:
        raise OSError(
            f"Expected a dask scheduler at {address!r}, got no answer ({error}). Start one with: dask scheduler."
        ) from error
