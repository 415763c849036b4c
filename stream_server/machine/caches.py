"""The folder for the compiled code that libraries keep from one run to the next, and load as it is.

torch keeps it in /tmp/torchinductor_USER, which another user may have made beforehand, with code of his own in it.

Why: docs/decisions/0072-caches.md
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stream_server.machine import private_folder
from stream_server.storage.ownership import is_ours, others_may_rename_in, others_may_write

# Those of which the usual place is a folder that is open to all; Triton's is below inductor's.
VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "torchinductor", "QUACK_CACHE_DIR": "quack"}


def keep_private() -> None:
    """Tell libraries to keep compiled code in a folder of ours, unless the user has said where.

    Before they are imported; children of this process inherit that. In a folder for temporary files into which nobody
    else writes, such as that of a launcher, they may keep it where they like.
    """
    temporary = Path(tempfile.gettempdir())
    status, is_swappable = os.stat(temporary), others_may_rename_in(temporary) is not None
    wanted = {name: place for name, place in VARIABLES.items() if name not in os.environ}
    if wanted and (others_may_write(status) or not is_ours(status) or is_swappable):
        folder = _folder([temporary] if is_ours(status) and not is_swappable else [])
        os.environ.update({name: str(folder / place) for name, place in wanted.items()})


def _folder(places: Sequence[Path]) -> Path:
    """The first folder in one of these places, or at home, that is private or can be made so.

    A new one for this process alone if there is none.
    """
    name = f"stream-caches-{os.geteuid()}"
    for folder in (*(place / name for place in places), Path(os.path.expanduser("~"), f".{name}")):
        with suppress(OSError):
            private_folder.make(folder, again=True)
            return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))
