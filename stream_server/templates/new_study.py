"""Makes the folder of a new study: a copy of an example, or a small study that runs, to be filled in.

The examples are the studies in `configs` of the repository. A link leads from here to them, which packaging follows, so
that they are files of this folder once installed.

Why: docs/decisions/0085-examples-in-the-wheel.md
"""

import json
import re
import shlex
from pathlib import Path

from stream_server.config import json_schema
from stream_server.config.problems import nearest
from stream_server.errors import ConfigError
from stream_server.storage.disk import hold_folder, names_in, place_of

HERE = Path(__file__).parent
EXAMPLES = HERE / "examples"
BLANK = HERE / "blank"

STUDY = "study.json"
SCHEMA = "study.schema.json"
LANGUAGES = ("python", "c", "fortran")
# What study.json of the blank study has for Python, and what a Makefile builds.
PYTHON_COMMAND = '["python", "simulation.py"]'
BUILT_COMMAND = '["build/simulation"]'

# A file of another example, in study.json: "../heat/heat.py", "../heat-numpy/server.py:HeatServer".
SHARED = re.compile(r'"\.\./((?:[\w-]+/)?([\w.-]+\.\w+))')
# A link to another example in a README: it stays behind as plain text.
LINK = re.compile(r"\[([^]]+)\]\(\.\./[^)]*\)")

BUILDS = {"Makefile": "make", "CMakeLists.txt": "cmake -B build && cmake --build build"}


def examples() -> dict[str, str]:
    """The examples by name, each with the title of its README."""
    examples = sorted(folder for folder in EXAMPLES.iterdir() if (folder / STUDY).exists())
    return {folder.name: _title(folder / "README.md") for folder in examples}


def copy_example(name: str, folder: Path) -> None:
    """Copy an example, with what it takes from others, into a new folder.

    Raises:
        ConfigError: there is no such example, or the folder is there already, or cannot be written.
    """
    if name not in examples():
        near = nearest(name, examples())
        hint = f"did you mean {near}?" if near else "`stream-study new --list` shows them all"
        raise ConfigError(f"there is no example {name}: {hint}")
    _write(folder, files_of_example(name))


def make_blank(folder: Path, language: str) -> None:
    """Write a small study into a new folder, with a simulation in one of the `LANGUAGES`.

    Raises:
        ConfigError: the folder is there already, or cannot be written.
    """
    files = _files_in(BLANK) | _files_in(BLANK / language)
    if "Makefile" in files:
        files[STUDY] = files[STUDY].replace(PYTHON_COMMAND.encode(), BUILT_COMMAND.encode())
    files[SCHEMA] = (json.dumps(json_schema(), indent=2) + "\n").encode()
    _write(folder, files)


def files_of_example(name: str) -> dict[str, bytes]:
    """The contents of the files of a copy of an example, which needs no other example."""
    files = _files_in(EXAMPLES / name)
    for file, contents in list(files.items()):
        if file.endswith(".json"):
            text = contents.decode()
            files |= {own: (EXAMPLES / path).read_bytes() for path, own in SHARED.findall(text)}
            files[file] = SHARED.sub(r'"\2', text).encode()
        elif file.endswith(".md"):
            files[file] = LINK.sub(r"\1", contents.decode()).encode()
    return files


def next_command(folder: Path) -> str:
    """The command line that runs the study in a folder, from the folder that this process is in."""
    steps = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    steps += [build for file, build in BUILDS.items() if (folder / file).exists()]
    return " && ".join([*steps, f"mpirun -n 2 stream-server --config {STUDY}"])


def _write(folder: Path, files: dict[str, bytes]) -> None:
    try:
        with hold_folder(folder):
            if names_in(folder):
                raise ConfigError(f"{folder} is not empty: name a folder that is not there yet")
            for name, contents in files.items():
                with open(place_of(folder / name), "xb") as file:
                    file.write(contents)
    except FileExistsError as error:
        what = f"{folder} is not empty" if folder.is_dir() else f"{error.filename} is a file"
        raise ConfigError(f"{what}: name a folder that is not there yet") from error
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}") from error


def _files_in(folder: Path) -> dict[str, bytes]:
    """The files right in a folder; what a study was built or has left lies in folders of its own."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def _title(readme: Path) -> str:
    return readme.read_text().partition("\n")[0].removeprefix("# ")
