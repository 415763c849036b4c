"""What takes long to make, such as native libraries, and one run of several pytest processes makes once."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

# The folder that the processes of a run share; pytest by itself has none.
SHARED_FOLDER = "STREAM_SERVER_TESTS_SHARED"


def built_once(sources: Path, options: Sequence[str], own_folder: Path, build: Callable[[Path], None]) -> Path:
    """The folder that `build` has filled: one for all processes of a run, or else `own_folder`, which must be new.

    What is built is known by the content of the folder `sources` and by the `options`. Nobody may change the result.
    """
    if SHARED_FOLDER not in os.environ:
        own_folder.mkdir()
        build(own_folder)
        return own_folder
    place = Path(os.environ[SHARED_FOLDER]) / f"built-{_key(sources, options)}"
    place.mkdir(exist_ok=True)
    folder, done = place / "content", place / "done"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            # Of a build that failed, or whose process was killed.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            done.touch()
    return folder


def _key(sources: Path, options: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join([str(sources), *options]).encode())
    for file in sorted(it for it in sources.rglob("*") if it.is_file() and it.parent.name != "__pycache__"):
        digest.update(f"\0{file}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
