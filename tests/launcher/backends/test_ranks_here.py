"""The ranks of an MPICH, started without its mpirun."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stream_server.launcher.backends import ranks_here
from stream_server.launcher.backends.mpirun import server_ranks
from stream_server.launcher.backends.ranks_here import Meeting
from stream_server.machine.interpreter import python_command
from tests.support.timing import until

LIMIT_S = 60.0
# Says that its rank is there, and ends well at a signal.
HEARS = "trap 'echo heard $PMI_RANK; exit 0' USR1; echo there $PMI_RANK; while :; do sleep 0.1; done"


def command(num_ranks: int, script: str) -> list[str]:
    return python_command("-m", ranks_here.__name__, str(num_ranks), "sh", "-c", script)


def run(script: str, num_ranks: int = 2) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(num_ranks, script), capture_output=True, text=True, timeout=LIMIT_S)


@contextmanager
def started(log: Path, script: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Two ranks that are there."""
    with log.open("wb") as output, subprocess.Popen(command(2, script), stdout=output) as process:
        try:
            until(lambda: log.read_text().count("there") == 2)
            yield process
        finally:
            process.kill()


def test_each_rank_knows_its_number_and_inherits_one_socket() -> None:
    done = run('echo "$PMI_RANK of $PMI_SIZE: $(ls -l /proc/$$/fd/$PMI_FD | grep -c socket:)"', 3)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 3: 1" for rank in range(3)]


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("exit 75", 75, ""),
        ('[ "$PMI_RANK" = 0 ] || exit 7; sleep 600', 7, ""),
        (
            '[ "$PMI_RANK" = 0 ] || kill -KILL $$; sleep 600',
            128 + signal.SIGKILL,
            "rank 1 was killed by SIGKILL: the others are ended\n",
        ),
        ('[ "$PMI_RANK" = 0 ] || exit 0; exit 3', 3, ""),
    ],
    ids=["all", "one", "killed", "rank 0 alone"],
)
def test_a_rank_that_fails_ends_the_others_and_gives_the_exit_code(script: str, code: int, told: str) -> None:
    done = run(script)
    assert (done.returncode, done.stderr) == (code, told)


def test_a_signal_is_passed_on_to_all_ranks(tmp_path: Path) -> None:
    with started(tmp_path / "log", HEARS) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.wait(LIMIT_S) == 0
    assert sorted((tmp_path / "log").read_text().splitlines())[:2] == ["heard 0", "heard 1"]


def test_one_that_comes_while_ranks_are_started_reaches_those_that_come_later() -> None:
    script = "trap 'exit 0' USR1; [ $PMI_RANK != 0 ] || kill -USR1 $PPID; while :; do sleep 0.1; done"
    assert run(script, 8).returncode in (0, 128 + signal.SIGUSR1)


def test_one_that_is_ignored_is_not(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with started(tmp_path / "log", HEARS.replace("USR1", "USR2")) as process:
            process.send_signal(signal.SIGUSR2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_ranks_are_asked_to_leave_when_what_has_started_them_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(log, HEARS) as process:
        process.kill()
    until(lambda: log.read_text().count("heard") == 2)


def test_ranks_read_what_others_have_put_down_once_all_have_come() -> None:
    meeting = Meeting(2)
    assert meeting.take(0, "cmd=init pmi_version=1 pmi_subversion=1") == {
        0: "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
    }
    assert meeting.take(0, f"cmd=get kvsname={meeting.name} key=card-1") == {0: "cmd=get_result rc=-1 msg=no_key"}
    assert meeting.take(1, f"cmd=put kvsname={meeting.name} key=card-1 value=a=b") == {
        1: "cmd=put_result rc=0 msg=success"
    }
    assert meeting.take(1, "cmd=barrier_in") == {}
    assert meeting.take(0, "cmd=barrier_in") == {0: "cmd=barrier_out", 1: "cmd=barrier_out"}
    assert meeting.take(0, f"cmd=get kvsname={meeting.name} key=card-1") == {
        0: "cmd=get_result rc=0 msg=success value=a=b"
    }


def test_a_rank_may_end_once_it_has_left_mpi_or_where_it_does_without() -> None:
    meeting = Meeting(2)
    assert meeting.may_end(0, 0)
    assert not meeting.may_end(0, 2)
    meeting.take(0, "cmd=init pmi_version=1 pmi_subversion=1")
    assert not meeting.may_end(0, 0)
    assert meeting.take(0, "cmd=finalize") == {0: "cmd=finalize_ack"}
    assert meeting.may_end(0, 3)


def test_a_rank_aborts_all_and_what_is_not_known_is_refused() -> None:
    meeting = Meeting(2)
    assert meeting.take(1, "cmd=abort exitcode=7") == {}
    assert meeting.aborted == 7
    assert meeting.take(1, "cmd=publish_name service=a") == {1: "cmd=publish_name_result rc=-1 msg=not_supported"}
    assert meeting.take(1, "") == {}


def test_the_name_of_a_job_cannot_be_guessed() -> None:
    assert len({Meeting(2).name for _ in range(3)}) == 3
    assert len(Meeting(2).name) >= 32


@pytest.mark.parametrize(
    "environment", [{"SLURM_JOB_ID": "7"}, {"PBS_NODEFILE": "/nodes"}, {"HYDRA_HOST_FILE": "/hosts"}]
)
def test_where_ranks_may_go_to_other_nodes_mpirun_starts_them(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "PBS_", "HYDRA_")):
            monkeypatch.delenv(name)
    assert ranks_here.__name__ in server_ranks(2)
    assert Path(server_ranks(2, is_job=True)[0]).name == "mpirun"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Path(server_ranks(2)[0]).name == "mpirun"
