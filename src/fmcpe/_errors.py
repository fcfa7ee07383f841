"""The library's one warning category."""


class FMCPEWarning(UserWarning):
    """Something the user should know and may act on; the computation goes on."""
