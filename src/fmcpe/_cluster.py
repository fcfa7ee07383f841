"""The way to a Dask cluster, which is an extra."""

from __future__ import annotations

from typing import Any

PATIENCE = "10s"
"""How long a scheduler may take to answer."""


def connect(address: Any) -> Any:
    """A Dask client: of the scheduler at an address, or the one given."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError("dask is not installed; it was expected. Type pip install 'fmcpe[dask]'.") from error
    if isinstance(address, Client):
        return address
    try:
        return Client(address, timeout=PATIENCE)
    except (OSError, TimeoutError) as error:
        raise OSError(f"no dask scheduler answers at {address!r} ({error}). Start one with dask scheduler.") from error
