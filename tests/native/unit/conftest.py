"""Builds the pure half of the C client with sanitizers, and the programs that test it."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.unit.probe import Probe

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "stream_server" / "native"
# All that needs neither a socket nor a clock.
SOURCES = """
    address bits buffer connection_file convert copy_block crc32 declaration dtype error fields flow_control
    json own_field placement reader segment text wire_decode wire_encode writer
""".split()  # noqa: SIM905
FLAGS = [
    *("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    *(f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}"),
]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds one of the programs of this folder, with these options to the linker."""
    folder = tmp_path_factory.mktemp("unit")
    sources = [*(NATIVE / "src" / f"{name}.c" for name in SOURCES), HERE / "words.c"]
    subprocess.run(["gcc", *FLAGS, "-c", *sources], cwd=folder, check=True)

    def build(name: str, *options: str) -> Path:
        program = folder / name
        objects = folder.glob("*.o")
        command = ["gcc", *FLAGS, *options, HERE / f"{name}.c", *objects, "-lm", "-o", program]
        subprocess.run(command, cwd=folder, check=True)
        return program

    return build


@pytest.fixture(scope="module")
def probe(request: pytest.FixtureRequest, build: Callable[..., Path]) -> Iterator[Probe]:
    """The probe that the test module names in `PROBE`."""
    with Probe(build(request.module.PROBE)) as probe:
        yield probe
