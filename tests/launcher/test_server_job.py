"""`stream-launcher` as a real process, with programs of the test in the place of mpirun and stream-server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.rank_0 import SERVER, STUDY

DEADLINE_S = 30.0
MPIRUN = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(__file__).parent.parent
def leave(code, status):
    if code is not None:
        report = folder / "runs" / folder.name / "report.json"
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps({"exit_code": code}))
    sys.exit(status)
signal.signal(signal.SIGUSR1, lambda *_: leave(75, 1))
(folder / "arguments.json").write_text(json.dumps(sys.argv[1:]))
print("started", flush=True)
"""


class Launcher:
    """Runs `stream-launcher` beside a made-up mpirun that ends with `ending`."""

    def __init__(self, folder: Path, ending: str, ranks: int = 2) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        (programs / "python").symlink_to(os.path.realpath(sys.executable))
        for name in ("mpirun", "stream-server"):
            (programs / name).write_text(f"#!{sys.executable}\n{MPIRUN}\n{ending}\n")
            (programs / name).chmod(0o755)
        (folder / "server.py").write_text(SERVER)
        server = {"class": "server.py:Server", "ranks": ranks}
        simulation = {"command": ["python", "simulation.py"]}
        study = folder / "study.json"
        study.write_text(json.dumps({**STUDY, "server": server, "simulation": simulation}))
        self.study = str(study)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = ["-m", "stream_server.launcher.supervise", "--config", self.study, *arguments]
        return subprocess.Popen(
            [str(self.folder / "bin" / "python"), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def run(self, *arguments: str) -> int:
        process = self.start(*arguments)
        process.communicate(timeout=DEADLINE_S)
        return process.returncode

    @property
    def arguments(self) -> list[str]:
        return json.loads((self.folder / "arguments.json").read_text())  # type: ignore[no-any-return]


def test_mpirun_of_our_environment_starts_the_server_with_the_ranks_of_the_study(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, "leave(0, 0)")
    assert launcher.run("--set", "training.batch_size=4", "--fresh") == 0
    program = str(tmp_path / "bin" / "stream-server")
    assert launcher.arguments == [
        *("-n", "2", program, "--config", launcher.study, "--set=training.batch_size=4", "--fresh"),
    ]


def test_a_server_of_one_rank_needs_no_mpirun(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, "leave(0, 0)", ranks=1)
    assert launcher.run() == 0
    assert launcher.arguments == ["--config", launcher.study]


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("leave(4, 9)", 4),
        ("leave(0, 1)", 0),
        ("leave(None, 2)", 2),
        ("os.kill(os.getpid(), signal.SIGKILL)", 7),
    ],
)
def test_the_report_tells_the_exit_code_and_mpirun_only_without_one(tmp_path: Path, ending: str, code: int) -> None:
    assert Launcher(tmp_path, ending).run() == code


def test_a_report_of_an_earlier_run_is_not_believed(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, "leave(None, 2)")
    report = tmp_path / "runs" / tmp_path.name / "report.json"
    report.parent.mkdir(parents=True)
    report.write_text('{"exit_code": 0}')
    assert launcher.run() == 2


def test_a_server_that_renames_the_earlier_run_and_is_lost_has_no_report(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, "(folder / 'runs').rename(folder / 'runs.1')\nleave(None, 7)")
    report = tmp_path / "runs" / tmp_path.name / "report.json"
    report.parent.mkdir(parents=True)
    report.write_text('{"exit_code": 0}')
    assert launcher.run("--fresh") == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_the_server_to_stop_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with Launcher(tmp_path, "time.sleep(60)").start() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 75


def test_the_third_signal_kills_a_server_that_does_not_leave(tmp_path: Path) -> None:
    ending = (
        "def stay(number, frame):\n    print(number, flush=True)\n"
        "signal.signal(signal.SIGUSR1, stay)\nsignal.signal(signal.SIGTERM, stay)\n"
        "print('deaf', flush=True)\nwhile True: time.sleep(60)"
    )
    with Launcher(tmp_path, ending).start() as process:
        assert process.stdout is not None
        for awaited in ("started\n", "deaf\n", f"{signal.SIGUSR1:d}\n", f"{signal.SIGTERM:d}\n"):
            assert process.stdout.readline() == awaited
            if awaited != "started\n":
                process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 7


def test_mistakes_in_study_json_are_told_before_anything_starts(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, "leave(0, 0)")
    with launcher.start("--set", "server.rank=3") as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "server.rank" in errors
    assert not (tmp_path / "arguments.json").exists()
