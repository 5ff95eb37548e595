"""How is something passed on that needs no name on disk? Through descriptors that vanish with their last user."""

import os

_PIPE_HOLDS = 1 << 16
_PIECE = 1 << 20


def unnamed_file() -> int:
    """A file to write to and to read from."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ralph")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def readable(data: bytes) -> int:
    """A descriptor from which exactly `data` can be read."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    if len(data) <= _PIPE_HOLDS:
        fd, writer = os.pipe()
        # Whose pipes take up too much memory gets small ones: to wait for room would be to wait for ever.
        os.set_blocking(writer, False)
        written = os.write(writer, data)
        os.close(writer)
        if written == len(data):
            return fd
        os.close(fd)
    fd = unnamed_file()
    for at in range(0, len(data), _PIECE):
        os.write(fd, data[at : at + _PIECE])
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def occupy_standard_streams() -> None:
    """Puts nothing in the place of those that whoever called has closed: what is opened next must not be taken for one,
    be it by a keeper, or by somebody who writes to stderr what would end up in a journal."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing > 2:  # another thread was quicker
                os.close(nothing)
