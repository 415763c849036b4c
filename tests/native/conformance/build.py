"""Builds the drivers from the sources of the clients."""

import shutil
import subprocess
from pathlib import Path

from tests.support.built_once import built_once

HERE = Path(__file__).parent
NATIVE = Path(__file__).parents[3] / "stream_server" / "native"
SANITIZERS = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ARCHIVE = "libstream_client.a"
LIBRARIES = ("-lzmq", "-lm")
FORTRAN_FLAGS = ("-std=f2008", "-pedantic", "-Wall", "-Wextra", "-Werror", "-g", "-fcheck=all,no-array-temps")


def client_archive(folder: Path, *flags: str) -> Path:
    """The C client as a static library, in a new folder for what is linked with it."""

    def compile_all(folder: Path) -> None:
        sources = sorted((NATIVE / "src").glob("*.c"))
        include = f"-I{NATIVE / 'include'}"
        _run("gcc", "-std=c11", "-O1", "-g", include, *flags, "-c", *map(str, sources), folder=folder)
        _run("ar", "rcs", ARCHIVE, *(f"{source.stem}.o" for source in sources), folder=folder)

    folder.mkdir()
    built = built_once(NATIVE, ["client_archive", *flags], folder / "objects", compile_all)
    return Path(shutil.copy(built / ARCHIVE, folder / ARCHIVE))


def c_driver(library: Path, *flags: str) -> Path:
    """driver.c with this library."""
    program = library.with_name("driver_c")
    warnings = ("-Wall", "-Wextra", "-Werror")
    include = f"-I{NATIVE / 'include'}"
    source = str(HERE / "driver.c")
    _run("gcc", "-std=c11", "-g", *warnings, include, *flags, source, str(library), *LIBRARIES, "-o", str(program))
    return program


def fortran(
    library: Path, program: str, source: Path, *options: str, compiler: str = "gfortran", is_strict: bool = True
) -> Path:
    """A program of the module and this source, with this library; not strict where MPI's own interfaces are not."""
    folder = library.with_name(program)
    folder.mkdir()
    compile_module(folder, *options, compiler=compiler)
    executable = folder / program
    flags = FORTRAN_FLAGS if is_strict else ("-g", "-fcheck=all,no-array-temps")
    files = (str(folder / "stream_client.o"), str(source), str(library))
    _run(compiler, *flags, *options, *files, *LIBRARIES, "-o", str(executable), folder=folder)
    return executable


def compile_module(folder: Path, *flags: str, compiler: str = "gfortran") -> None:
    """The Fortran module as an object in this folder."""
    _run(compiler, *FORTRAN_FLAGS, *flags, "-c", str(NATIVE / "fortran" / "stream_client.f90"), folder=folder)


def _run(*command: str, folder: Path = HERE) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
