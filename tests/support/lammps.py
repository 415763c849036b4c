"""Debian's LAMMPS, which has a Python of its own: the client for it, and runs of input scripts."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.launch import alone

# Its ranks make way for each other where they outnumber the cores.
MPIRUN = ("mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LIMIT_S = 100
NEEDED = ("numpy", "pyzmq", "msgspec")
# Packages of these, and what their wheels keep beside them.
FOLDERS = ("numpy", "numpy.libs", "zmq", "pyzmq.libs", "msgspec")


def make_client(folder: Path) -> Path:
    """A folder for PYTHONPATH that has the client alone, for the Python of LAMMPS."""
    version = subprocess.check_output(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2], sep='.')"], text=True
    ).strip()
    packages = _folder_of("numpy")
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        folder.mkdir()
        for name in FOLDERS:
            if (packages / name).exists():
                (folder / name).symlink_to(packages / name)
    else:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder))
        subprocess.run([*pip, "--only-binary=:all:", "--python-version", version, *NEEDED], check=True)
    (folder / "stream_server").symlink_to(_folder_of("stream_server") / "stream_server")
    return folder


def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def environment_of(client: Path) -> dict[str, str]:
    """The environment of a simulation that is LAMMPS, which takes the first Python on its PATH."""
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(client)}


def start_lammps(
    script: str, folder: Path, client: Path, *, num_ranks: int = 1, connection: str = "none"
) -> "subprocess.Popen[str]":
    """Start LAMMPS with an input script in a folder, in which Python also finds modules."""
    (folder / "in.script").write_text(script)
    launch = [] if num_ranks == 1 else [*MPIRUN, str(num_ranks)]
    environment = environment_of(client) | AS_ROOT | {"STREAM_CONNECTION": connection}
    return subprocess.Popen(
        [*launch, "/usr/bin/lmp", "-in", "in.script"],
        cwd=folder,
        env=alone([]).environment | environment | {"PYTHONPATH": f"{folder}:{client}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_lammps(script: str, folder: Path, client: Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run an input script to its end; the `options` are those of `start_lammps`."""
    with start_lammps(script, folder, client, **options) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def read_dump(path: Path) -> dict[int, NDArray[np.float64]]:
    """What `dump custom` has written: by time step a row of numbers for each atom."""
    frames: dict[int, NDArray[np.float64]] = {}
    for frame in path.read_text().split("ITEM: TIMESTEP\n")[1:]:
        head, _, table = frame.partition("ITEM: ATOMS ")
        _, _, rows = table.partition("\n")
        numbers = [[float(word) for word in line.split()] for line in rows.splitlines()]
        frames[int(head.split()[0])] = np.array(numbers)
    return frames
