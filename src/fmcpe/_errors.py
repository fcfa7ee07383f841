"""The library's own warning category and exception."""


class FMCPEWarning(UserWarning):
    """Something the user should know and may act on; the computation goes on."""


class FileError(ValueError):
    """A file that `fmcpe.load` cannot load: damaged, malformed, of another format, or without a part that must be passed."""
