"""Settings of libraries that a stranger has put where somebody types a command."""

import subprocess
from pathlib import Path

import pytest

from stream_server.machine import program
from stream_server.machine.interpreter import python_command
from stream_server.server.run.output import shown
from tests.support.launch import alone

SECRET = b"years of work"
METRICS = '{"batch": 1, "update": 1, "sample": 10, "wall_s": 1.0, "train/loss": 0.5}\n'


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command of ours that is typed in this folder, and must be good."""
    command = python_command(*words)
    done = subprocess.run(
        command, cwd=folder, env=alone([]).environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def test_mpi_reads_no_settings_where_a_command_is_typed(tmp_path: Path) -> None:
    """Those of UCX name a file for its log, which it empties."""
    (tmp_path / "thesis").write_bytes(SECRET)
    (tmp_path / "ucx.conf").write_text(f"UCX_LOG_FILE={tmp_path / 'thesis'}\nUCX_LOG_LEVEL=info\n")
    assert "MPICH" in run(tmp_path, "-m", "stream_server.doctor.rank", "--name").stdout
    assert (tmp_path / "thesis").read_bytes() == SECRET


def test_nor_does_what_draws_pictures(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("a.setting.of.a.stranger: 1\n")
    (tmp_path / "run" / "metrics").mkdir(parents=True)
    (tmp_path / "run" / "metrics" / "metrics.jsonl").write_text(METRICS * 2)
    done = run(tmp_path, "-m", "stream_server.commands.cli", "plot", "run")
    assert done.stdout.startswith("run/plots/")
    assert "stranger" not in done.stderr


def test_a_process_that_works_in_the_folder_of_the_study_shows_paths_from_where_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_started_in", None)
    for folder in "typed", "study":
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "typed")
    program.work_in(tmp_path / "study")
    assert Path.cwd() == tmp_path / "study"
    assert shown(tmp_path / "typed" / "runs" / "heat") == "runs/heat"
    (tmp_path / "typed").rmdir()
    assert program.start_folder() == tmp_path / "study"
