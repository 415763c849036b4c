"""Failpoints: what arms them, what happens there, and that each one is documented."""

import ast
import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

import stream_server.failpoints
from stream_server.failpoints import failpoint
from tests.faults.chaos.sweep import documented
from tests.support.failpoints import TRACE_FILE, FailpointError, armed_by, failpoints

PACKAGE = Path(__file__).parent.parent / "stream_server"
PASS_IT = "from stream_server.failpoints import failpoint\nfor passage in range(3): print(passage); failpoint('a.b')"
MOST_INSTRUCTIONS = 10


def passing(armed: str, folder: Path | None = None, code: str = PASS_IT) -> "subprocess.CompletedProcess[str]":
    """A process that passes `a.b` three times, and says so."""
    command = [sys.executable, "-u", "-c", code]
    return subprocess.run(
        command, env=os.environ | failpoints(folder, armed), capture_output=True, text=True, timeout=120
    )


def num_passages(done: "subprocess.CompletedProcess[str]") -> int:
    return len(done.stdout.splitlines())


def test_an_unarmed_failpoint_calls_nothing_and_takes_a_few_instructions() -> None:
    called, num_instructions = [], 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal num_instructions
        frame.f_trace_opcodes = True
        if event == "call":
            called.append(frame.f_code.co_name)
        num_instructions += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    failpoint("a.b")
    sys.settrace(before)
    assert called == ["failpoint"]
    assert num_instructions <= MOST_INSTRUCTIONS


def test_an_armed_failpoint_kills_the_process_at_its_first_passage() -> None:
    done = passing("a.b=kill")
    assert done.returncode == -signal.SIGKILL
    assert num_passages(done) == 1


def test_an_armed_failpoint_waits_for_the_passage_it_is_told() -> None:
    done = passing("a.c=kill, a.b=exit:9@3")
    assert done.returncode == 9
    assert num_passages(done) == 3
    assert done.stderr.startswith("failpoint a.b ")


def test_no_other_failpoint_is_touched() -> None:
    done = passing("a.c=kill")
    assert (done.returncode, num_passages(done), done.stderr) == (0, 3, "")


def test_a_failpoint_can_stop_the_process_which_can_be_continued() -> None:
    command = [sys.executable, "-u", "-c", PASS_IT]
    with subprocess.Popen(command, env=os.environ | failpoints(None, "a.b=stop"), stderr=subprocess.DEVNULL) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        process.send_signal(signal.SIGCONT)
        assert process.wait(100) == 0


def test_a_failpoint_can_delay() -> None:
    (armed,) = armed_by("a.b=delay:0.05").values()
    start = time.monotonic()
    armed.passed()
    assert time.monotonic() - start >= 0.05


def test_a_failpoint_can_raise_an_error_that_no_code_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    armed = armed_by("a.b=raise")
    monkeypatch.setattr(stream_server.failpoints, "_hook", lambda name: armed[name].passed())
    with pytest.raises(FailpointError, match=r"failpoint a\.b"):
        failpoint("a.b")
    failpoint("a.b")


def test_a_failpoint_can_raise_what_the_operating_system_may_say(monkeypatch: pytest.MonkeyPatch) -> None:
    armed = armed_by("a.b=raise:ENOSPC")
    monkeypatch.setattr(stream_server.failpoints, "_hook", lambda name: armed[name].passed())
    with pytest.raises(OSError, match=r"No space left on device: 'failpoint a\.b'") as caught:
        failpoint("a.b")
    assert caught.value.errno == errno.ENOSPC


def test_a_failpoint_happens_once_among_all_processes_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "hit"
    before = time.time()
    first = passing("a.b=kill@2", folder)
    assert (first.returncode, num_passages(first)) == (-signal.SIGKILL, 2)
    name, pid, at = (folder / "a.b").read_text().split()
    assert name == "a.b"
    assert int(pid) > 0
    assert before <= float(at) <= time.time()
    again = passing("a.b=kill@2", folder)
    assert (again.returncode, num_passages(again)) == (0, 3)


def test_a_failpoint_that_was_not_met_leaves_no_file(tmp_path: Path) -> None:
    assert passing("a.b=kill@4", tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_traced_passages_of_all_processes_are_in_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        assert passing("a.b=trace", tmp_path).returncode == 0
    lines = [line.split() for line in (tmp_path / TRACE_FILE).read_text().splitlines()]
    assert [name for name, _, _ in lines] == ["a.b"] * 6
    assert len({pid for _, pid, _ in lines}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "a.b",
        "=kill",
        "a.b=explode",
        "a.b=kill:9",
        "a.b=kill@0",
        "a.b=kill@soon",
        "a.b=delay",
        "a.b=exit:1.5",
        "a.b=raise:ENOTHING",
        "a.b=trace",
    ],
)
def test_what_cannot_be_understood_is_refused_when_it_is_armed(text: str) -> None:
    with pytest.raises(ValueError, match=r"STREAM_FAILPOINTS must be a list of NAME=ACTION\[@N\].*but has"):
        armed_by(text)


def test_a_process_with_a_wrong_list_of_failpoints_does_not_start() -> None:
    done = passing("a.b=explode")
    assert done.returncode == 1
    assert num_passages(done) == 0
    assert "'explode' is no action" in done.stderr


def calls_of_failpoint() -> list[ast.Call]:
    files = sorted(PACKAGE.rglob("*.py"))
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    return [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "failpoint"]


def names_in_code() -> list[str]:
    return [call.args[0].value for call in calls_of_failpoint() if isinstance(call.args[0], ast.Constant)]  # type: ignore[misc]


def test_the_name_of_a_failpoint_can_be_searched_for() -> None:
    """It is written out where it is passed, begins with a part of the system, and stands in one place only."""
    names = names_in_code()
    assert len(names) == len(calls_of_failpoint())
    assert [name for name in names if not re.fullmatch(r"[a-z]+\.[a-z_]+", name)] == []
    assert sorted(names) == sorted(set(names))


def test_every_failpoint_is_in_the_documentation_and_every_documented_one_in_the_code() -> None:
    assert sorted(set(names_in_code())) == sorted(point.name for point in documented())
