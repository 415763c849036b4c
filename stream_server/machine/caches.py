"""The folder for the compiled code that libraries keep from one run to the next, and load as it is.

torch keeps it in /tmp/torchinductor_USER, which another user may have made beforehand, with code of his own in it.
"""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from stream_server.machine import private_folder
from stream_server.storage.ownership import is_ours, others_may_write

# Those of which the usual place is a folder that is open to all; Triton's is below inductor's.
VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "torchinductor", "QUACK_CACHE_DIR": "quack"}


def keep_private() -> None:
    """Tell libraries to keep compiled code in a folder of ours, unless the user has said where.

    Before they are imported; children of this process inherit that. In a folder for temporary files into which nobody
    else writes, such as that of a launcher, they may keep it where they like.
    """
    status = os.stat(tempfile.gettempdir())
    wanted = {name: place for name, place in VARIABLES.items() if name not in os.environ}
    if wanted and (others_may_write(status) or not is_ours(status)):
        # Others may rename what is in a folder that they can write, unless it is sticky.
        folder = _folder(is_sticky=bool(status.st_mode & stat.S_ISVTX) and is_ours(status))
        os.environ.update({name: str(folder / place) for name, place in wanted.items()})


def _folder(*, is_sticky: bool) -> Path:
    """The first folder that is private or can be made so; a new one for this process alone if there is none."""
    name = f"stream-caches-{os.geteuid()}"
    places = [Path(tempfile.gettempdir(), name)] if is_sticky else []
    for folder in (*places, Path(os.path.expanduser("~"), f".{name}")):
        with suppress(OSError):
            private_folder.make(folder, again=True)
            return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))
