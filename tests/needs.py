"""What tests need of a machine beyond Python's packages: what of it is there, and what brings the rest.

    python -m tests.needs        installs what is missing if it may (root, on Debian), and else says what is left out

A test, or what it uses, calls `need`: where something is missing the test is left out (skipped), and the run says so in
its last lines. With CI set nothing may be left out.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support import openfoam
from tests.support.access_lists import open_to
from tests.support.small_disk import PAGE, mounted

# Debian does not have them on the PATH of an ordinary user, who may well run what is there.
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# Debian's packages, and the commands or files by which each is known.
PACKAGES: dict[str, tuple[str, ...]] = {
    "build-essential": ("cc", "c++", "gcc", "g++", "make"),
    "chromium": ("chromium",),
    "chromium-driver": ("chromedriver",),
    "clang": ("clang", "clang++"),
    "cmake": ("cmake",),
    "gfortran": ("gfortran",),
    "git": ("git",),
    "iproute2": ("ip",),
    "lammps": ("/usr/bin/lmp",),
    "libmpich-dev": ("mpicc.mpich", "mpif90.mpich"),
    "libopenmpi-dev": ("mpicc.openmpi", "mpif90.openmpi"),
    "libzmq3-dev": ("/usr/include/zmq.h",),
    "locales": ("/usr/share/i18n/locales/de_DE",),
    "mpich": ("mpirun.mpich",),
    "munge": ("munged",),
    "openfoam": ("icoFoam", "blockMesh", "decomposePar", "reconstructPar"),
    "openmpi-bin": ("mpirun.openmpi",),
    "openssh-client": ("ssh", "ssh-keygen"),
    "openssh-server": ("sshd",),
    "patch": ("patch",),
    "pkg-config": ("pkg-config",),
    "python3-dolfinx": ("/usr/lib/petsc/lib/python3/dist-packages/dolfinx/__init__.py",),
    "python3-lammps": ("/usr/lib/python3/dist-packages/lammps/core.py",),
    "python3-venv": (),
    "slurm-client": ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"),
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
    "strace": ("strace",),
    "uidmap": ("newuidmap", "newgidmap"),
    "util-linux": ("nsenter", "setpriv", "unshare"),
    "valgrind": ("valgrind",),
    "libclang-rt-dev": (),
}
COMPILERS = ("build-essential", "cmake", "gfortran", "libzmq3-dev", "pkg-config")
MPIS = ("libmpich-dev", "libopenmpi-dev", "mpich", "openmpi-bin")
CHECKERS = ("clang", "libclang-rt-dev", "locales", "valgrind")
# No command brings another file system, or a network.
ACCESS_LISTS = "a file system with access lists below /tmp"
NO_COMMAND_BRINGS = {ACCESS_LISTS, openfoam.NO_HEADERS}
# A command that has an identity beside the caller's, and may mount and make networks, without any rights outside.
AS_ROOT_OF_A_NAMESPACE = ("unshare", "--user", "--map-root-user", "--map-auto")


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Packages, and what the user must be allowed to do: `forbids` says why he is not, "" if he is."""

    packages: Sequence[str] = ()
    forbids: Callable[[], str] = lambda: ""


def _no_root() -> str:
    return "" if os.geteuid() == 0 else "root's rights"


def _no_second_user() -> str:
    if os.geteuid() == 0 or _runs([*AS_ROOT_OF_A_NAMESPACE, "true"]):
        return ""
    return "root's rights, or user namespaces with several users"


def _no_mount() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return "" if _runs(mounted(Path(folder), PAGE, ["true"])) else "the right to mount a tmpfs"


def _no_access_lists() -> str:
    # Where folders are made that a second user can reach.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        try:
            open_to(Path(folder), os.geteuid())
        except OSError:
            return ACCESS_LISTS
    return ""


def _no_python_of_debian() -> str:
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True)
    version = " ".join(map(str, sys.version_info[:2]))
    return "" if done.stdout.strip() == version else "tests in the Python of /usr/bin/python3"


def _no_ipv6() -> str:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return "a loopback address of IPv6"
    return ""


def _no_headers_of_openfoam() -> str:
    if shutil.which("icoFoam"):
        try:
            openfoam.sources()
        except (openfoam.NoHeaders, OSError):
            return openfoam.NO_HEADERS
    return ""


def _runs(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


NEEDS: dict[str, Need] = {
    "compilers": Need(packages=(*COMPILERS, *MPIS, *CHECKERS)),
    "a cluster": Need(
        packages=("iproute2", "munge", "slurm-client", "slurmctld", "slurmd", "util-linux"), forbids=_no_root
    ),
    "another node": Need(packages=("iproute2", "util-linux"), forbids=_no_root),
    "a second user": Need(packages=("util-linux",), forbids=_no_second_user),
    "root": Need(forbids=_no_root),
    "dolfinx": Need(packages=("openmpi-bin", "python3-dolfinx"), forbids=_no_python_of_debian),
    "IPv6": Need(forbids=_no_ipv6),
    "a small disk": Need(packages=("util-linux",), forbids=_no_mount),
    "access lists": Need(forbids=_no_access_lists),
    "ssh": Need(packages=("openssh-client", "openssh-server")),
    "strace": Need(packages=("strace",)),
    "a browser": Need(packages=("chromium", "chromium-driver")),
    "patch": Need(packages=("git", "patch")),
    "LAMMPS": Need(packages=("lammps", "openmpi-bin", "python3-lammps")),
    "OpenFOAM": Need(packages=(*COMPILERS, "openfoam", "openmpi-bin"), forbids=_no_headers_of_openfoam),
}


def need(*names: str) -> None:
    """Leave the test that runs out where the machine lacks one of these needs."""
    lacks = [each for name in names for each in lacking(name)]
    if lacks:
        pytest.skip(f"needs {', '.join(dict.fromkeys(lacks))}")


@cache
def lacking(name: str) -> tuple[str, ...]:
    """Missing packages, and missing rights: nothing if the need is met."""
    packages = tuple(missing(NEEDS[name].packages))
    forbidden = NEEDS[name].forbids()
    return (*packages, forbidden) if forbidden else packages


def missing(packages: Iterable[str]) -> list[str]:
    """Those of the packages that are not installed."""
    return [package for package in packages if not _is_there(package)]


def _is_there(package: str) -> bool:
    if package == "libclang-rt-dev":
        return _has_fuzzer()
    if package == "python3-venv":
        return not Path("/usr/bin/python3").exists() or _runs(["/usr/bin/python3", "-c", "import venv, ensurepip"])
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SBIN))
    return all(Path(it).exists() if it.startswith("/") else shutil.which(it, path=path) for it in PACKAGES[package])


def _has_fuzzer() -> bool:
    name = f"libclang_rt.fuzzer-{os.uname().machine}.a"
    try:
        found = subprocess.run(["clang", f"-print-file-name={name}"], capture_output=True, text=True)
    except FileNotFoundError:
        return False
    return Path(found.stdout.strip()).is_absolute()


def what_brings(reasons: Iterable[str]) -> str:
    """The command that brings what tests were left out for, for these reasons of `need`."""
    lacks = [reason.removeprefix("needs ") for reason in reasons if reason.startswith("needs ")]
    words = {word for each in lacks for word in each.split(", ")}
    packages = sorted(words & PACKAGES.keys())
    if words - PACKAGES.keys() - NO_COMMAND_BRINGS:
        return "sudo make test"
    return f"sudo apt-get install {' '.join(packages)}" if packages else ""


def main() -> int:
    """Install what is missing; 1 if that was tried and failed, or if CI would miss it."""
    packages = missing(PACKAGES)
    if not packages:
        return 0
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {' '.join(packages)}", flush=True)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(["apt-get", *words], env=environment, stdout=subprocess.DEVNULL)
            if done.returncode != 0:
                return 1
        return 0
    print(
        f"Tests that need tools which are not there are left out. To run them, too: "
        f"sudo apt-get install {' '.join(packages)}",
        file=sys.stderr,
    )
    return 1 if os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
