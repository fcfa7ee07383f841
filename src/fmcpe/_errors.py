"""The library's own warning category and exception."""


class FMCPEWarning(UserWarning):
    """Something the user should know and may act on; the computation goes on."""


class FileError(ValueError):
    """A file that `fmcpe.load` cannot load: damaged, malformed, of another format, or without a part that must be passed.

    Example:
        >>> path = posterior.save(folder / "run.fmcpe")
        >>> _ = path.write_bytes(path.read_bytes()[:1000])
        >>> try:
        ...     fmcpe.load(path)
        ... except fmcpe.FileError as error:
        ...     print(str(error).split(",")[0])
        Expected a whole file written by posterior.save(...)
    """
