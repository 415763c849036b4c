import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stream_server.machine import processes
from stream_server.machine.interpreter import python_command
from stream_server.machine.processes import Leader, Process, end_all, members, send

# Each shell says its number, starts the next one, and waits for it.
NESTED = 'echo $$; [ $1 = 1 ] && exec sleep 60; sh -c "$NESTED" sh $(($1 - 1)); true'
NUM_NESTED = 6


def process(pid: int, session: int = 1, started: int = 100, mark: str = "") -> Process:
    return Process(pid=pid, session=session, started=started, mark=mark)


def test_the_processes_of_a_job_are_its_session_and_those_with_its_mark() -> None:
    found = [process(10, session=10), process(11, session=10), process(12, session=12, mark="a"), process(13, mark="b")]
    assert members(found, Leader(pid=10, started=100), {"a"}) == {10, 11, 12}


def test_a_session_that_got_the_number_of_an_older_one_is_not_taken_for_it() -> None:
    found = [process(11, session=10, started=99)]
    assert members(found, Leader(pid=10, started=100), {"a"}) == set()


def test_a_leader_is_known_by_its_start_time_too() -> None:
    own = Leader.of(os.getpid())
    assert own is not None
    assert own.alive
    assert not Leader(pid=own.pid, started=own.started + 1).alive


def test_what_was_started_before_a_time_is_left_out() -> None:
    with subprocess.Popen(["sleep", "60"], env={"SOME_MARK": "here"}) as younger:
        try:
            leader = Leader.of(younger.pid)
            assert leader is not None
            for since, is_found in ((leader.started, True), (leader.started + 1, False)):
                found = {it.pid for it in processes.running("SOME_MARK", since=since)}
                assert (younger.pid in found) is is_found
                assert os.getppid() not in found
            assert os.getppid() in {it.pid for it in processes.running("SOME_MARK")}
        finally:
            younger.kill()


def test_all_processes_with_a_mark_in_a_folder_are_ended_and_no_others(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    folder = tmp_path / "simulations"
    marks = [folder / "1" / "connection.json", folder / "2" / "connection.json", tmp_path / "connection.json"]
    started = [
        subprocess.Popen([sys.executable, "-c", deaf], env={"SOME_MARK": str(mark)}, stdout=subprocess.PIPE)
        for mark in marks
    ]
    try:
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        end_all("SOME_MARK", folder, grace_s=0.1)
        assert [one.wait(timeout=100) for one in started[:2]] == [-signal.SIGKILL, -signal.SIGKILL]
        assert started[2].poll() is None
    finally:
        for one in started:
            one.kill()
            one.communicate()


def test_what_a_process_starts_just_before_it_is_killed_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    send = processes.send

    def start() -> None:
        one = subprocess.Popen(["sleep", "60"], env={**os.environ, "SOME_MARK": str(tmp_path / "mark")})
        started.append(one)
        # Popen returns a moment before the environment of the new program can be read.
        while b"SOME_MARK" not in Path(f"/proc/{one.pid}/environ").read_bytes():
            pass

    def start_another_and_send(pids: set[int], number: signal.Signals) -> None:
        if number == signal.SIGKILL and len(started) == 1:
            start()
        send(pids, number)

    monkeypatch.setattr(processes, "send", start_another_and_send)
    start()
    try:
        end_all("SOME_MARK", tmp_path, grace_s=0.0)
        assert [one.wait(timeout=50) < 0 for one in started] == [True, True]
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_parents_are_signalled_before_those_they_started(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: told.append(pid))
    command = ["sh", "-c", NESTED, "sh", str(NUM_NESTED)]
    environment = {**os.environ, "NESTED": NESTED}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True) as first:
        try:
            assert first.stdout is not None
            started = [int(first.stdout.readline()) for _ in range(NUM_NESTED)]
            send(started[::-1], signal.SIGTERM)
        finally:
            os.killpg(first.pid, signal.SIGKILL)
    assert told == started


def test_a_process_knows_how_old_it_is() -> None:
    waits = "import time; time.sleep(1.0); from stream_server.machine.processes import age_s; print(age_s())"
    began = time.monotonic()
    told = subprocess.run(python_command("-c", waits), capture_output=True, text=True, check=True).stdout
    assert 1.0 <= float(told) <= time.monotonic() - began + 0.02


def test_a_machine_that_does_not_name_its_boots_has_one_name_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(processes.this_boot()) > 30
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert processes.this_boot() == ""
