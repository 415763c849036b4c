"""The study of the README runs as it prints it, file by file and command by command."""

import re
import shlex
from pathlib import Path

import pytest

from stream_server.analysis.plot import pictures_of
from stream_server.analysis.reading import RunFolder
from stream_server.server.commands.cli import parser
from tests.support.runs import run_here, run_study

README = (Path(__file__).parents[2] / "README.md").read_text()
# `study.json`:, a block of code, and so on.
FILE = re.compile(r"`(study\.json|heat\.py|server\.py)`[^\n]*:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:mpirun -n (\d+) )?stream-server --config study\.json *(--[\w-]+)?", re.MULTILINE)

pytestmark = pytest.mark.slow

SMALL = {
    "study.simulations": 3,
    "validation.simulations": 1,
    "validation.every_batches": 10,
    "buffer.capacity": 60,
    "buffer.watermark": 20,
    "training.draws_per_sample": 1,
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The study.json of the README, with the other two files beside it."""
    _, _, section = README.partition("## A study of your own")
    files = dict(FILE.findall(section))
    assert sorted(files) == ["heat.py", "server.py", "study.json"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "study.json"


def test_the_commands_are_those_that_the_tests_try() -> None:
    _, _, section = README.partition("## A study of your own")
    assert COMMAND.findall(section) == [("", "--check"), ("", "--fast-dev-run"), ("2", "")]
    for line in re.findall(r"^stream-server (.*?)  +#", section, re.MULTILINE):
        assert parser().parse_args(shlex.split(line)).config == Path("study.json")


def test_the_study_of_the_readme_passes_its_check_as_it_is_and_can_be_tried_on_made_up_samples(
    study: Path, tmp_path: Path
) -> None:
    for settings, argument in ({}, "--check"), (SMALL, "--fast-dev-run"):
        done = run_here(study, tmp_path / "run", settings=settings, arguments=[argument])
        assert done.exit_code == 0, done.output


def test_the_study_of_the_readme_runs_on_two_ranks(study: Path, tmp_path: Path) -> None:
    done = run_study(study, tmp_path / "run", num_ranks=2, settings=SMALL, limit_s=120)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.account["accepted"] == done.account["trained"] == 300
    assert (tmp_path / "run" / "model").is_dir()
    assert {"loss", "prediction-temperature"} <= {it.name for it in pictures_of(RunFolder(done.output_dir))}
