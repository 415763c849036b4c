"""The native library, installed once in a run for the tests that use it, and how programs are built with it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.support.built_once import built_once

REPOSITORY = Path(__file__).parent.parent.parent
NATIVE = REPOSITORY / "stream_server" / "native"
STRICT = ("-Wall", "-Wextra", "-Werror")
# Debian's MPIs, since those of pip have no Fortran.
MPIS = ("mpich", "openmpi")
DEADLINE_S = 200


@dataclass(frozen=True)
class Installation:
    """The files that `cmake --install` wrote to a prefix."""

    prefix: Path

    @property
    def include(self) -> Path:
        return self.prefix / "include"

    @property
    def lib(self) -> Path:
        return self.prefix / "lib"

    @property
    def fortran_source(self) -> Path:
        return self.prefix / "share" / "stream_client" / "stream_client.f90"

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment in which CMake and pkg-config find the package."""
        return tool_environment() | {
            "PREFIX": str(self.prefix),
            "CMAKE_PREFIX_PATH": str(self.prefix),
            "PKG_CONFIG_PATH": str(self.lib / "pkgconfig"),
        }

    def build(self, program: Path, *sources: Path, compiler: str, options: tuple[str, ...] = STRICT) -> Path:
        """Compile and link with `compiler` and its options; libraries are options that begin with -l."""
        words = [compiler, *(it for it in options if not it.startswith("-l")), f"-I{self.include}", "-o", str(program)]
        libraries = [it for it in options if it.startswith("-l")] or ["-lstream_client"]
        run([*words, *map(str, sources), f"-L{self.lib}", f"-Wl,-rpath,{self.lib}", *libraries], cwd=program.parent)
        return program


def tool_environment() -> dict[str, str]:
    """The environment of a shell in which the package is installed."""
    scripts = str(Path(sys.executable).parent)
    return dict(os.environ) | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}


def run(words: list[str], *, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command that must succeed; gives what it printed."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment or tool_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def install(prefix: Path, *options: str) -> Installation:
    """Configure, build and install the library."""
    build = prefix.with_name(f"{prefix.name}-build")
    run(["cmake", "-S", str(NATIVE), "-B", str(build), *options], cwd=prefix.parent)
    run(["cmake", "--build", str(build), "--parallel", "2"], cwd=prefix.parent)
    run(["cmake", "--install", str(build), "--prefix", str(prefix)], cwd=prefix.parent)
    return Installation(prefix)


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The library, with Melissa's interface for Debian's MPICH."""
    options = ("-DMPI_C_COMPILER=mpicc.mpich", "-DCMAKE_C_FLAGS=-Werror")
    folder = tmp_path_factory.mktemp("native") / "installation"
    built = built_once(NATIVE, ["installation", *options], folder, lambda folder: _install_in(folder, *options))
    return Installation(built / "prefix")


def _install_in(folder: Path, *options: str) -> None:
    install(folder / "prefix", *options)
