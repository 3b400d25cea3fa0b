"""Files that are there whole or not at all: written under another name, flushed to the disk, then renamed."""

import contextlib
import os
import tempfile


@contextlib.contextmanager
def durable_file(path):
    """The name to write to. When the block ends it becomes `path`; after an error, what was at `path` stays as it was."""
    folder, name = os.path.split(os.path.abspath(path))
    handle, beside = tempfile.mkstemp(prefix=f".{name}.", suffix=".part", dir=folder)
    os.close(handle)
    try:
        yield beside
        with open(beside, "rb+") as written:
            os.fsync(written.fileno())
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    folder_handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_handle)  # the rename too
    finally:
        os.close(folder_handle)


def _umask():
    """mkstemp() makes files for their owner only; these are ordinary ones."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("Umask")).split()[1], 8)
    return 0o022
