"""Debian's OpenFOAM: its headers, the function object that is built with them, and the fields in files that it wrote.

Debian's packages of OpenFOAM have no headers. Those of the same version are in its source package, of which apt
fetches 45 MB into the folder `build` of the repository, once and without the rights of root.
"""

import fcntl
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "stream_server" / "adapters" / "openfoam"
NO_HEADERS = "the source package of openfoam"
# What the function object includes, and nothing of the 80 MB beside it.
PARTS = ("META-INFO", "src/OpenFOAM", "src/OSspecific/POSIX", "src/finiteVolume")
NUMBER = r"[-+]?\d[-+.\de]*"
FIELD = re.compile(r"internalField\s+(?:uniform|nonuniform)\s+(?:List<\w+>\s+(\d+)\s*)?(\(?[-+.\de()\s]+);")


class NoHeaders(Exception):
    """Apt has no source package, as without a network."""


def sources() -> Path:
    """The folder with the sources of the OpenFOAM that is installed.

    Raises:
        NoHeaders: they cannot be fetched.
    """
    version = _said(["dpkg-query", "--show", "--showformat=${source:Version}", "openfoam"])
    folder = ROOT / "build" / f"openfoam-{version}"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as place:
                _fetch(version, Path(place))
                (found,) = Path(place).glob("*/src")
                found.parent.rename(folder)
    return folder


def build(folder: Path) -> None:
    """Build the function object as the guide says: `folder` then has libstreamOpenFOAM.so."""
    source = f"-DOPENFOAM_SOURCE={sources()}"
    for argv in (["cmake", "-S", str(ADAPTER), "-B", str(folder), source], ["cmake", "--build", str(folder)]):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stderr.lower(), done.stderr


def written(case: Path, field: str) -> list[npt.NDArray[np.float64]]:
    """The values of a field in the cells, of each time folder of a case that is written in ASCII, in order."""
    times = sorted((it for it in case.iterdir() if re.fullmatch(NUMBER, it.name) and float(it.name) > 0), key=_time)
    return [cells(time / field) for time in times]


def reconstruct(case: Path) -> None:
    """Put the time folders of a decomposed case together, as OpenFOAM does."""
    environment = os.environ | {"WM_PROJECT_DIR": "/usr/share/openfoam"}
    done = subprocess.run(["reconstructPar"], cwd=case, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def cells(file: Path) -> npt.NDArray[np.float64]:
    """The internal field of a file in ASCII, one row for each cell."""
    found = FIELD.search(file.read_text())
    assert found, file.read_text()[:1000]
    values = np.array([float(it) for it in re.findall(NUMBER, found[2])])
    return values if found[1] is None else values.reshape(int(found[1]), -1)


def _time(folder: Path) -> float:
    return float(folder.name)


def _fetch(version: str, folder: Path) -> None:
    """Fetch a source package and unpack what is needed of it, with lists of apt's own in the folder."""
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    sources, parts, lists, cache = (folder / name for name in ("sources.list", "parts", "lists", "cache"))
    sources.write_text(f"deb-src http://deb.debian.org/debian {release} main\n")
    for needed in (parts, lists / "partial", cache / "archives" / "partial"):
        needed.mkdir(parents=True)
    places = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": parts,
        "Dir::State::lists": lists,
        "Dir::Cache": cache,
    }
    apt = ["apt-get", "-qq", *(word for name, place in places.items() for word in ("-o", f"{name}={place}"))]
    _said([*apt, "update"])
    _said([*apt, "source", "--download-only", f"openfoam={version}"], folder)
    (archive,) = folder.glob("*.orig.tar.*")
    _said(["tar", "--extract", f"--file={archive}", "--wildcards", *(f"*/{part}" for part in PARTS)], folder)


def _said(argv: Sequence[str], folder: Path | None = None) -> str:
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise NoHeaders(str(error)) from error
    if done.returncode != 0:
        raise NoHeaders(done.stderr)
    return done.stdout
