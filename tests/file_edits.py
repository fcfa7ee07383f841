"""Files as somebody else would write them: edited, with a right checksum."""

from fmcpe.serialization.container import read, to_bytes


def edit(path, change):
    """Apply `change(manifest, tensors)` to a file, in place, and compute its checksum again."""
    manifest, tensors = read(path)
    change(manifest, tensors)
    path.write_bytes(to_bytes(manifest, tensors))
    return path
