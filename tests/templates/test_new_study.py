"""`stream-study new`: folders that are studies of their own."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stream_server.commands.cli import main
from stream_server.config import json_schema, load
from stream_server.templates import new_study
from stream_server.templates.new_study import (
    EXAMPLES,
    LANGUAGES,
    SCHEMA,
    SHARED,
    copy_example,
    examples,
    make_blank,
    next_command,
)
from tests.support.launch import alone
from tests.support.runs import LEFT_BY_WORK, run_here

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = [folder.name for folder in sorted(CONFIGS.iterdir()) if (folder / "study.json").exists()]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["new", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["new", *arguments]) == 2
    return capsys.readouterr().err


def test_the_examples_are_the_studies_in_configs() -> None:
    assert list(examples()) == NAMES


def test_the_list_has_a_line_with_the_title_of_each_example(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "--list").splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert "heat-c        Heat equation in C with MPI" in lines


@pytest.mark.parametrize("name", NAMES)
def test_the_copy_of_an_example_loads_and_needs_nothing_outside_its_folder(name: str, tmp_path: Path) -> None:
    copy_example(name, tmp_path / "my-study")
    config = load(tmp_path / "my-study" / "study.json")
    assert Path(config.server.class_.partition(":")[0]).parent == tmp_path / "my-study"
    for file in (tmp_path / "my-study").iterdir():
        assert "](../" not in file.read_text()
        assert '"../' not in file.read_text() or file.name == SCHEMA
        assert f"configs/{name}" not in file.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_files_that_an_example_takes_from_others_never_replace_its_own(name: str) -> None:
    taken = {own for file in (EXAMPLES / name).glob("*.json") for _, own in SHARED.findall(file.read_text())}
    assert SCHEMA in taken
    assert taken & {file.name for file in (EXAMPLES / name).iterdir()} == set()


def test_what_an_example_was_built_or_has_left_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CONFIGS, tmp_path / "configs", ignore=LEFT_BY_WORK)
    (tmp_path / "configs" / "heat" / "runs" / "heat").mkdir(parents=True)
    monkeypatch.setattr(new_study, "EXAMPLES", tmp_path / "configs")
    copy_example("heat", tmp_path / "my-study")
    assert not (tmp_path / "my-study" / "runs").exists()


def test_new_tells_what_it_wrote_and_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said(capsys, "heat-numpy", "my-study") == (
        "my-study: README.md, heat.py, server.py, study.json, study.schema.json\n"
        "next: cd my-study && mpirun -n 2 stream-server --config study.json\n"
    )
    assert said(capsys, "heat-c").endswith("next: cd heat-c && make && mpirun -n 2 stream-server --config study.json\n")
    assert said(capsys, "--blank", "--language", "fortran", "a b").startswith(
        "a b: Makefile, server.py, simulation.f90, "
    )
    assert (tmp_path / "heat-c" / "Makefile").exists()


def test_an_empty_folder_that_is_there_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_blank(Path(), "python")
    assert next_command(Path()) == "mpirun -n 2 stream-server --config study.json"


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.json").write_text("mine")
    assert f"{tmp_path} is not empty" in refused(capsys, "heat", str(tmp_path))
    assert f"{tmp_path} is not empty" in refused(capsys, "--blank", str(tmp_path))
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("study.json", "mine")]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert f"{file} is a file" in refused(capsys, "heat", str(file))
    assert f"{file} is a file" in refused(capsys, "heat", f"{file}/below")


def test_an_unknown_example_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "lorentz") == "stream-study: there is no example lorentz: did you mean lorenz?\n"
    assert "`stream-study new --list` shows them all" in refused(capsys, "weather")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "new takes an EXAMPLE and a FOLDER"),
        (["heat", "a", "b"], "new takes an EXAMPLE and a FOLDER"),
        (["heat", "--language", "c"], "--language is for new --blank"),
        (["--blank", "heat", "a"], "new --blank takes one FOLDER, but was given heat a"),
        (["--list", "heat"], "new --list takes nothing else"),
    ],
)
def test_what_would_be_ignored_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *arguments)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_blank_study_loads_and_explains_itself(language: str, tmp_path: Path) -> None:
    make_blank(tmp_path / "my-study", language)
    config = load(tmp_path / "my-study" / "study.json")
    assert config.study.name == "my-study"
    # The path of a file that is there becomes absolute; what is built is not there yet.
    assert config.simulation.command is not None
    assert Path(config.simulation.command[-1]).name == ("simulation.py" if language == "python" else "simulation")
    sections = re.findall(
        r"^  (?://.*\n  )+\"(\w+)\"", (tmp_path / "my-study" / "study.json").read_text(), re.MULTILINE
    )
    assert {"parameters", "simulation", "launcher", "buffer", "training", "validation", "user"} <= set(sections)
    assert json.loads((tmp_path / "my-study" / SCHEMA).read_text()) == json_schema()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The blank study in C, which has built the client."""
    folder = tmp_path_factory.mktemp("blank") / "my-study"
    make_blank(folder, "c")
    return build(folder)


def build(folder: Path, *arguments: str) -> Path:
    # Not optimised: it takes half the time.
    environment = alone([]).environment | {"CMAKE_BUILD_TYPE": "Debug"}
    done = subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()
    return folder


@pytest.mark.full
@pytest.mark.slow
def test_a_blank_simulation_that_must_be_built_runs_alone(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my-study"
    make_blank(folder, "fortran")
    build(folder, f"STREAM_CLIENT={built / 'build' / 'stream_client'}")
    environment = alone([]).environment | {"STREAM_CONNECTION": "none"}
    subprocess.run([folder / "build" / "simulation"], cwd=folder, env=environment, check=True, timeout=120)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("language", ["c", pytest.param("fortran", marks=pytest.mark.full)])
def test_a_blank_study_that_must_be_built_trains(language: str, built: Path, tmp_path: Path) -> None:
    folder = built
    if language == "fortran":
        folder = tmp_path / "my-study"
        make_blank(folder, language)
        build(folder, f"STREAM_CLIENT={built / 'build' / 'stream_client'}")
    settings = {
        "study.simulations": 4,
        "validation.simulations": 1,
        "buffer.watermark": 10,
        "training.draws_per_sample": 1,
    }
    done = run_here(folder / "study.json", tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.account["accepted"] == done.account["trained"] == 4 * 50


@pytest.mark.full
@pytest.mark.slow
def test_the_blank_study_learns(tmp_path: Path) -> None:
    make_blank(tmp_path / "my-study", "python")
    settings = {"study.simulations": 10, "validation.simulations": 1, "training.draws_per_sample": 20}
    study = tmp_path / "my-study" / "study.json"
    done = run_here(study, tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    losses = [entry["loss"] for entry in done.report["validation"]]
    assert losses[-1] < losses[0] / 3


def test_the_blank_simulation_runs_alone(tmp_path: Path) -> None:
    make_blank(tmp_path / "my-study", "python")
    environment = alone([]).environment | {"STREAM_CONNECTION": "none"}
    subprocess.run(["python", "simulation.py"], cwd=tmp_path / "my-study", env=environment, check=True, timeout=120)


def test_a_language_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["new", "--blank", "--language", "cobol"])
    assert left.value.code == 2
    assert "choose from" in capsys.readouterr().err
