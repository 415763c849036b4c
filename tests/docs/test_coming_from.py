"""docs/guide/coming-from.md names what is there, and its studies do what its rows say they try."""

import ast
import importlib
import inspect
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

import stream_server
from stream_server import Callback, Run, SimulationData, Study, TorchServer, client_api
from stream_server.buffers.buffer import Buffer
from stream_server.client_api import Simulation
from tests.docs.blocks import ROOT, Block, blocks, every_block, file_name
from tests.docs.study_tables import keys
from tests.docs.test_blocks import PARSERS, options
from tests.support.failpoints import failpoints
from tests.support.killing import checkpoints
from tests.support.runs import Run as Ended
from tests.support.runs import run_study

PAGE = ROOT / "docs" / "guide" / "coming-from.md"
STUDIES = ("A", "B")
LIMIT_S = 240.0
CODE = re.compile(r"`([^`]+)`")
KEYS = {it.path for it in keys()}
# What a class of torch, a loader or a key of study.json calls so, and no name by itself.
WORDS = {"class", "args", "collate_fn", "drop_last", "requires_grad_", "with", "print", "false", "ingest"}
WORDS |= {"update", "compute", "reset", "write", "flush", "close", "end", "reduce", "keep", "CUDA_VISIBLE_DEVICES"}
# Names of other libraries, by where they are.
ELSEWHERE = ("torch.optim.swa_utils", "torch.optim.lr_scheduler")
DOCUMENTED = "".join(
    (ROOT / "docs" / page).read_text()
    for page in ("reference/metrics.md", "reference/server-class.md", "guide/clients.md", "guide/models.md")
)
# Notes each line of the study's files that is executed, on all ranks and in all starts.
TRACED = """
import sys
import threading
from pathlib import Path

FOLDER = Path(__file__).parent
FILES = {str(path): path.name for path in FOLDER.glob("*.py")}
seen = set()


def trace(frame, event, argument):
    return note if frame.f_code.co_filename in FILES else None


def note(frame, event, argument):
    line = f"{FILES[frame.f_code.co_filename]} {frame.f_lineno}\\n"
    if event == "line" and line not in seen:
        seen.add(line)
        with (FOLDER / "executed").open("a") as file:
            file.write(line)
    return note


threading.settrace(trace)
sys.settrace(trace)
from server import *
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of a table: names of another system, text about what is here, and what tries it."""

    there: str
    here: str
    tried: str

    @property
    def studies(self) -> list[str]:
        return [name for name in STUDIES if re.search(rf"\b{name}\b", CODE.sub("", self.tried))]

    @property
    def tests(self) -> list[str]:
        return CODE.findall(self.tried)

    @property
    def names(self) -> list[str]:
        """What stands in code, but for values, which are in quotes."""
        return [it for it in CODE.findall(self.here) if not it.startswith(('"', ".")) and it not in WORDS]


def rows() -> Iterator[Row]:
    """The rows of all tables that say what tries them."""
    is_table = False
    for line in PAGE.read_text().splitlines():
        cells = [it.strip() for it in line.strip("|").split("|")] if line.startswith("|") else []
        if cells[1:] == ["here", "tried in"]:
            is_table = True
        elif not cells:
            is_table = False
        elif is_table and not line.startswith("|---"):
            there, here, tried = cells
            yield Row(there=there, here=here, tried=tried)


ROWS = list(rows())


@dataclass(frozen=True, kw_only=True)
class Example:
    """A study of the page: its files, and the commands that run it."""

    files: Mapping[str, str]
    commands: list[list[str]]

    @property
    def server_files(self) -> dict[str, str]:
        """The code that runs in the server."""
        others = ("simulation.py", "melissa_api.py")
        return {name: code for name, code in self.files.items() if name.endswith(".py") and name not in others}

    def uses(self, name: str) -> bool:
        """Whether a key, a method, an attribute, an option or a command of the page is used."""
        words = [word for command in self.commands for word in command]
        if name.startswith(("stream-", "mpirun")):
            # tests/docs/test_blocks.py runs each study of the page with this option.
            start = name.split()[:3]
            return "--fast-dev-run" in name or any(command[: len(start)] == start for command in self.commands)
        if name in KEYS:
            given = [*paths(json.loads(self.files["study.json"])), *(it.partition("=")[0] for it in words)]
            return any(path == name or path.startswith(f"{name}.") for path in [*given, "study.output_dir"])
        if name.startswith("--"):
            return name.split()[0] in words
        return last_of(name) in self.identifiers

    @cached_property
    def identifiers(self) -> set[str]:
        """The names in the files."""
        trees = [ast.parse(code) for name, code in self.files.items() if name.endswith(".py")]
        nodes = [node for tree in trees for node in ast.walk(tree)]
        found = {getattr(node, kind) for node in nodes for kind in ("attr", "id", "name") if hasattr(node, kind)}
        return {it for it in found if isinstance(it, str)}


def paths(settings: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The paths of all keys."""
    for key, value in settings.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{above}{key}.")


def last_of(name: str) -> str:
    """`contents` of `self.buffer.contents()`; of a command what it is told."""
    if name.startswith(("stream-", "mpirun")):
        words = [word for word in name.split() if word not in ("--config", "--set")]
        return next((word[2:] for word in words if word.startswith("--")), words[min(1, len(words) - 1)])
    return re.sub(r"\(.*|\[.*| = .*", "", name).removeprefix("return ").rpartition(".")[2]


@cache
def example(name: str) -> Example:
    """Study A or B."""
    here = [it for it in every_block() if it.page == "docs/guide/coming-from.md"]
    mine = [it for it in here if it.heading.startswith(f"Study {name}:")]
    files = {named(it): it.code for it in mine if it.kind in ("python", "json")}
    if "melissa_api" in files["simulation.py"]:
        files["melissa_api.py"] = next(it.code for it in blocks("python") if file_name(it) == "melissa_api.py")
    lines = [line for it in mine if it.kind == "sh" for line in it.code.splitlines()]
    return Example(files=files, commands=[shlex.split(line, comments=True) for line in lines])


def named(block: Block) -> str:
    """The name of the file that a block is."""
    return "study.json" if block.kind == "json" else file_name(block) or ""


def exists(name: str) -> bool:
    """Whether there is a key, a method, an attribute, an option or a command of this name, with these arguments."""
    if name.startswith("stream-") or "stream-server" in name:
        words = name[name.index("stream-") :].split()
        used = {it.partition("=")[0] for it in words if it.startswith("--")}
        return used <= options(PARSERS[words[0]](), words[1:])
    if name.startswith("--"):
        return any(name.split()[0] in options(parser(), []) for parser in PARSERS.values())
    if name in KEYS:
        return True
    found = re.fullmatch(r"(?:return )?([\w.]+)(?:\((.*?)\)|\[.*\]| = .*)?", name)
    if found is None or found[1] not in places():
        return f"`{name}" in DOCUMENTED or importable(name)
    arguments = {it.strip() for it in (found[2] or "").split(",")} - {""}
    return not arguments or arguments <= set(inspect.signature(places()[found[1]]).parameters)


def importable(name: str) -> bool:
    """Whether it is a module or what a module has."""
    module, _, attribute = name.rpartition(".")
    with suppress(ImportError):
        return hasattr(importlib.import_module(module), attribute) if module else False
    return False


@cache
def places() -> dict[str, Any]:
    """Every name that a user's code may have, with its value, if that is known without a study."""
    server, simulation = TorchServer(), Simulation(None, id=0, attempt=0, parameters={})
    owners = [("", stream_server), ("", client_api), ("", Callback()), ("", server), ("self.", server)]
    owners += [("self.progress.", server.progress), ("self.normalization.", server.normalization)]
    owners += [("self.buffer.", Buffer)]
    owners += [("simulation.", simulation), ("data.", SimulationData), ("Run.", Run), ("Study.", Study)]
    owners += [("", importlib.import_module(module)) for module in ELSEWHERE]
    found = {f"{above}{name}": getattr_of(owner, name) for above, owner in owners for name in names_of(owner)}
    return found | {"self.config.user": None}


def names_of(owner: Any) -> set[str]:
    """The attributes of an object or a class, those that are only declared, too."""
    cls = owner if isinstance(owner, type) else type(owner)
    declared = [vars(each).get("__annotations__") for each in cls.__mro__]
    return {*dir(owner)}.union(*(it for it in declared if isinstance(it, dict)))


def getattr_of(owner: Any, name: str) -> Any:
    with suppress(Exception):
        return getattr(owner, name)
    return None


def test_the_tables_have_many_rows_with_three_cells() -> None:
    assert len(ROWS) > 150
    assert [row for row in ROWS if not row.there or not row.here] == []


def test_what_the_rows_name_is_there() -> None:
    assert {row.there: name for row in ROWS for name in row.names if not exists(name)} == {}


def test_a_row_is_tried_or_says_that_nothing_is_here() -> None:
    assert [row for row in ROWS if bool(row.studies or row.tests) == row.here.startswith("not here")] == []


def test_a_test_that_a_row_names_is_about_something_that_it_names() -> None:
    assert {
        (row.there, test)
        for row in ROWS
        for test in row.tests
        if row.names and not any(last_of(name) in (ROOT / test).read_text() for name in row.names)
    } == set()


def test_the_studies_of_a_row_use_what_it_names() -> None:
    unused = {row.there: [name for name in row.names if not used(name, row)] for row in ROWS if row.studies}
    # Where there is a test, too, it may be of the other names.
    assert {row.there: unused[row.there] for row in ROWS if unused.get(row.there) and not row.tests} == {}
    assert [row.there for row in ROWS if row.studies and row.names and unused[row.there] == row.names] == []


def used(name: str, row: Row) -> bool:
    return any(example(study).uses(name) for study in row.studies)


def installed(name: str, folder: Path) -> Path:
    """The study.json of an example in a folder of its own, whose server class is traced."""
    (folder / "runs").mkdir(parents=True)
    for file, code in example(name).files.items():
        (folder / file).write_text(code)
    (folder / "traced.py").write_text(TRACED)
    return folder / "study.json"


def start(name: str, number: int, study: Path, **more: Any) -> Ended:
    """Run a command of the page."""
    words = example(name).commands[number]
    program = next(word for word in words if word in PARSERS)
    ranks = int(words[words.index("-n") + 1]) if words[0] == "mpirun" else 1
    of_class = json.loads(example(name).files["study.json"])["server"]["class"].replace("server.py", "traced.py")
    return run_study(
        study,
        study.parent / "runs" / name.lower(),
        program=program,
        num_ranks=ranks,
        mpi="mpich" if ranks > 1 else None,
        limit_s=LIMIT_S,
        arguments=[*words[words.index("study.json") + 1 :], "--set", f"server.class={of_class}"],
        **more,
    )


def not_executed(name: str, folder: Path) -> list[str]:
    """The statements in the files of the server that no rank has executed."""
    executed = {tuple(line.split()) for line in (folder / "executed").read_text().splitlines()}
    return [
        f"{file}:{statement.lineno}"
        for file, code in example(name).server_files.items()
        for statement in ast.walk(ast.parse(code))
        if isinstance(statement, ast.stmt) and not is_docstring(statement)
        if not any((file, str(line)) in executed for line in range(statement.lineno, end_of(statement) + 1))
    ]


def is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def end_of(statement: ast.stmt) -> int:
    """The last line of a statement, without the statements in it."""
    body = getattr(statement, "body", None)
    return body[0].lineno - 1 if body and body[0].lineno > statement.lineno else statement.end_lineno or 0


@pytest.fixture(scope="module")
def study_a(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ended]]:
    """Study A, ended on its way and continued."""
    study = installed("A", tmp_path_factory.mktemp("coming-from") / "a")
    return study.parent, [start("A", number, study) for number in range(2)]


def test_study_a_goes_on_to_its_end_and_executes_all_of_its_class(study_a: tuple[Path, list[Ended]]) -> None:
    folder, (first, second) = study_a
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert "goes on from checkpoint" in second.output
    assert second.report["balanced"] is True
    assert second.report["simulations"]["finished"] == 8
    assert second.account["untrained"] == 0
    assert second.account["trained"] + second.account["skipped"] == 60
    assert not_executed("A", folder) == []
    best = list((second.output_dir / "checkpoints" / "best").iterdir())
    assert 1 <= len(best) <= 2
    assert len(checkpoints(second.output_dir)) == 2
    assert (second.output_dir / "model" / "model.safetensors").exists()


def test_study_b_begins_with_the_model_of_a_and_goes_on_after_a_rank_is_killed(
    study_a: tuple[Path, list[Ended]], tmp_path: Path
) -> None:
    study = installed("B", study_a[0].parent / "b")
    run = start("B", 0, study, environment=failpoints(tmp_path / "met", "checkpoint.renamed=kill@2"))
    assert run.exit_code == 0, run.output
    assert list((tmp_path / "met").iterdir())
    assert run.report["restarts"] == 1
    assert run.report["balanced"] is True
    assert not_executed("B", study.parent) == []
    lines = (run.output_dir / "metrics" / "lines.txt").read_text()
    assert "val/constant/loss" in lines
    assert "val/cooling/loss" in lines
