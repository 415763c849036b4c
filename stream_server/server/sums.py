"""The checksums of the files in a folder, in the form that `sha256sum --check SHA256SUMS` reads."""

import hashlib
from pathlib import Path

from stream_server.disk import ordinary, read_file, write_file
from stream_server.errors import DamagedCheckpoint

SUMS_FILE = "SHA256SUMS"


def write_sums(folder: Path) -> None:
    """Write those of all files that are there, on disk when it returns.

    Raises:
        OSError: the disk is full or fails.
    """
    lines = [f"{_sum(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    write_file(folder / SUMS_FILE, "".join(lines).encode())


def check_sum(path: Path) -> None:
    """Make sure that a file is as the checksums beside it say, if they name it.

    Raises:
        DamagedCheckpoint: it is not, or one of both cannot be read.
    """
    sums = path.with_name(SUMS_FILE)
    try:
        lines = read_file(sums).decode(errors="replace").splitlines() if sums.exists() else []
        expected = [line.split()[0] for line in lines if line.split()[1:] == [path.name]]
        if expected and expected != [_sum(path)]:
            raise DamagedCheckpoint(f"{path} is not as it was written: it does not match {sums}")
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be checked: {error}") from error


def _sum(path: Path) -> str:
    with open(path, "rb", opener=ordinary) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
