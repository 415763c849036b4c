"""The study that whole-study tests run, and the way they run it."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from stream_server.server.commands.cli import main
from tests.support.built_once import built_once
from tests.support.killing import copy_of, killed_at
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, overrides, run_study, start_study

WATCHED = Path(__file__).parent / "watched"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """`run(num_ranks=2, mpi="openmpi", settings={...})` runs the NumPy study to its end."""

    def run(study: Path = NUMPY_STUDY, **options: Any) -> Run:
        return run_study(study, tmp_path / "run", **options)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., AbstractContextManager[LiveRun]]:
    """`with start(num_ranks=2, …) as live:` runs the NumPy study beside the test."""

    def start(study: Path = NUMPY_STUDY, **options: Any) -> AbstractContextManager[LiveRun]:
        return start_study(study, tmp_path / "run", **options)

    return start


Here = Callable[..., tuple[int, str]]


@pytest.fixture
def stream_server_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """`stream_server_here(study, "--check", settings={...})` runs it in this process: its exit code and output."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    names: set[str] = set()

    def forget() -> None:
        for name in names:
            sys.modules.pop(name, None)

    def stream_server(study: Path, *arguments: str, settings: Mapping[str, Any] | None = None) -> tuple[int, str]:
        # Files of other studies have the same names.
        names.update(file.stem for file in study.parent.glob("*.py"))
        forget()
        capsys.readouterr()
        exit_code = main(["--config", str(study), *overrides(settings or {}), *arguments])
        return exit_code, "".join(capsys.readouterr())

    yield stream_server
    forget()


# Simulations one after the other, the held-out one first: what was received when is known.
KILLED: dict[str, Any] = {
    "study.simulations": 4,
    "launcher.max_running": 1,
    "checkpoint.every_batches": 2,
    "checkpoint.record": True,
}
KILLED_AT = "checkpoint.renamed=kill@3"


# With torch, on two ranks and then on one: the model, its schedule, and random numbers that each rank writes down.
TORCH: dict[str, Any] = {
    "study.simulations": 4,
    "server.class": "dicing_server.py:DicingServer",
    "checkpoint.every_batches": 2,
    "checkpoint.record": True,
    "training.log_every_batches": 1,
}


def _once(name: str, settings: dict[str, Any], folder: Path, make: Callable[[Path], Run]) -> Run:
    """A study that has ended: one for all processes of a run of tests. Nobody may change its folder."""

    def build(place: Path) -> None:
        done = make(place / "run")
        (place / "run.json").write_text(json.dumps([done.exit_code, done.output, done.wall_s]))

    place = built_once(NUMPY_STUDY.parent, [name, json.dumps(settings)], folder / name, build)
    exit_code, output, wall_s = json.loads((place / "run.json").read_text())
    return Run(exit_code=exit_code, output=output, output_dir=place / "run", wall_s=wall_s)


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A study on two ranks of which rank 0 was killed as soon as it had committed its third checkpoint."""

    def make(output_dir: Path) -> Run:
        return killed_at(KILLED_AT, NUMPY_STUDY, output_dir, num_ranks=2, settings=KILLED)

    return _once("killed", KILLED, tmp_path_factory.mktemp("once"), make)


@pytest.fixture(scope="session")
def recorded(killed: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The study of `killed`, continued to its end: 80 samples, recorded in two starts."""

    def make(output_dir: Path) -> Run:
        copy_of(killed, output_dir.parent)
        return run_study(NUMPY_STUDY, output_dir, num_ranks=2, settings=KILLED)

    return _once("recorded", KILLED, tmp_path_factory.mktemp("once"), make)


def watched(folder: Path) -> tuple[dict[str, str], Path]:
    """An environment in which unpickling is noted, and the file with the notes."""
    notes = folder / "unpickled"
    # The zoo of bugs names the copy of the package there that has the bug.
    path = [str(WATCHED), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "UNPICKLED": str(notes)}, notes


@pytest.fixture(scope="session")
def torch_restarted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A study with torch, killed on two ranks and continued on one to its end; `watched` beside its output folder."""

    def make(output_dir: Path) -> Run:
        environment, _ = watched(output_dir.parent)
        killed_at(
            "checkpoint.renamed=kill@2",
            NUMPY_STUDY,
            output_dir,
            num_ranks=2,
            settings=TORCH,
            environment=environment,
        )
        return run_study(NUMPY_STUDY, output_dir, num_ranks=1, settings=TORCH, environment=environment)

    return _once("torch_restarted", TORCH, tmp_path_factory.mktemp("once"), make)
