"""Why a save failed, in plain words."""

import errno
import shutil
from pathlib import Path

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than is allowed",
    errno.EIO: "the disk fails",
    errno.EROFS: "the file system is read-only",
}


def cause_of(error: Exception) -> str:
    """The kind of failure, the same whichever file it was met at."""
    if not isinstance(error, OSError) or error.errno is None:
        return f"{type(error).__name__}: {error}"
    return _FULL.get(error.errno) or error.strerror or type(error).__name__


def reason_of(error: Exception, folder: Path) -> str:
    """What to tell a person of an error met while writing below `folder`."""
    if not isinstance(error, OSError) or error.errno not in _FULL:
        return f"{type(error).__name__}: {error}"
    try:
        free = f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB are free"
    except OSError:
        free = "its free space is unknown"
    where = f" at {error.filename}" if error.filename else ""
    return f"{_FULL[error.errno]}{where} ({folder}: {free})"
