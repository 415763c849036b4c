"""The contract of all backends, on real processes, and what the local one promises beyond it."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from stream_server.config.job_sections import JobSettings
from stream_server.launcher.backends.backend import (
    EXIT_FILE,
    SHELL,
    Backend,
    JobSpec,
    JobState,
    JobStatus,
    SavedJob,
    SubmitError,
    exit_code_of,
)
from stream_server.launcher.backends.local import LocalBackend
from stream_server.launcher.backends.scheduler import JobKind
from stream_server.machine import processes
from tests.launcher.backends.folder_queue import FolderQueue
from tests.launcher.backends.ssh_backend import Ssh
from tests.launcher.backends.ssh_to_here import ssh_to_here

GRACE_S = 0.3
DEADLINE_S = 60.0
PROJECT = Path(__file__).parents[3]

Make = Callable[[], Backend]


@contextmanager
def folder_worker(study_dir: Path) -> Iterator[None]:
    """Run the jobs of a FolderQueue while the `with` block lasts."""
    queue = study_dir / "queue"
    queue.mkdir(exist_ok=True)
    worker = subprocess.Popen([sys.executable, str(PROJECT / "tests/launcher/backends/folder_worker.py"), str(queue)])
    try:
        yield
    finally:
        (queue / "stop").touch()
        assert worker.wait(DEADLINE_S) == 0


def made(name: str, study_dir: Path) -> Backend:
    """The backend of this name for a study in this folder."""
    config: Any = SimpleNamespace(study_dir=study_dir, output_dir=study_dir / "run")
    resources = JobSettings(options={"host": "elsewhere"})
    kind = JobKind(study="heat", backend="queue", section="simulation.job", resources=resources, ranks=1)
    match name:
        case "folder queue":
            return FolderQueue(config, kind)
        case "ssh":
            return Ssh(config, kind)
    return LocalBackend(config, kind, grace_s=GRACE_S)


@pytest.fixture(params=["local", "folder queue", pytest.param("ssh", marks=pytest.mark.slow)])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a backend, as each launcher of a study does."""
    monkeypatch.setenv("TESTED_BACKEND", request.param)
    with ExitStack() as stack:
        if request.param == "folder queue":
            stack.enter_context(folder_worker(tmp_path))
        elif request.param == "ssh":
            commands = stack.enter_context(ssh_to_here(tmp_path / "ssh"))
            monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
        yield lambda: made(request.param, tmp_path)


@pytest.fixture
def backend(make: Make) -> Iterator[Backend]:
    backend = make()
    yield backend
    backend.close()


@pytest.fixture
def local() -> Iterator[LocalBackend]:
    backend = LocalBackend(grace_s=GRACE_S)
    yield backend
    backend.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "attempt with a blank"
    folder.mkdir()
    return folder


def spec(folder: Path, *command: str, **environment: str) -> JobSpec:
    mark = str(folder / "connection.json")
    return JobSpec(
        command=command,
        environment={"PATH": os.environ["PATH"], "STREAM_CONNECTION": mark, **environment},
        folder=folder,
        marks=frozenset({mark}),
    )


def python(folder: Path, code: str) -> JobSpec:
    return spec(folder, sys.executable, "-c", code)


def state(backend: Backend, handle: str) -> JobState:
    return backend.query([handle]).get(handle, JobStatus(state=JobState.UNKNOWN)).state


def ended(backend: Backend, handle: str) -> JobStatus:
    """The status of a job once it has ended."""
    deadline = time.monotonic() + DEADLINE_S
    while (status := backend.query([handle])[handle]).state is not JobState.ENDED:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return status


def exit_code(backend: Backend, handle: str, folder: Path) -> int | None:
    """How a job ended, as the launcher finds out."""
    code = ended(backend, handle).exit_code
    return exit_code_of(folder / EXIT_FILE) if code is None else code


def output(folder: Path, contains: str) -> str:
    """The log of a job, once it `contains` something."""
    deadline = time.monotonic() + DEADLINE_S
    while contains not in (text := _read(folder / "output.log")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return text


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def has_ended(pid: int) -> bool:
    """Nothing runs under this number; what is on its way out has no memory, and init may not have collected it yet."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return "VmSize" not in Path(f"/proc/{pid}/status").read_text()
    return True


WAITING = """
import os, sys, time
print(os.getpid(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(4)
"""
STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("up", os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("code", [0, 3, 75])
def test_the_exit_code_of_a_job_is_that_of_its_command(backend: Backend, folder: Path, code: int) -> None:
    handle = backend.submit(spec(folder, "sh", "-c", f"exit {code}"))
    assert exit_code(backend, handle, folder) == code


def test_the_exit_code_of_a_job_that_a_signal_ended_is_128_and_its_number(backend: Backend, folder: Path) -> None:
    handle = backend.submit(python(folder, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert exit_code(backend, handle, folder) == 137


def test_a_command_is_run_as_a_list_and_never_read_by_a_shell(backend: Backend, folder: Path) -> None:
    handle = backend.submit(spec(folder, "printf", "%s|", "a b", "$HOME", "`id`", "; exit 9", '"', "'", "*"))
    assert exit_code(backend, handle, folder) == 0
    assert (folder / "output.log").read_text() == "a b|$HOME|`id`|; exit 9|\"|'|*|"


def test_the_log_holds_both_outputs_and_the_job_runs_in_its_folder(backend: Backend, folder: Path) -> None:
    ended(backend, backend.submit(spec(folder, "sh", "-c", "pwd; echo wrong >&2")))
    assert (folder / "output.log").read_text() == f"{folder}\nwrong\n"


def test_a_job_has_the_environment_it_is_given_and_no_other(
    backend: Backend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    ended(backend, backend.submit(spec(folder, "env", COLOUR="green")))
    lines = (folder / "output.log").read_text().splitlines()
    assert "COLOUR=green" in lines
    assert not any(line.startswith("PMI_RANK") for line in lines)


def test_a_job_reads_nothing_from_our_input(backend: Backend, folder: Path) -> None:
    ended(backend, backend.submit(spec(folder, "readlink", "/proc/self/fd/0")))
    assert (folder / "output.log").read_text() == "/dev/null\n"


def test_a_job_runs_in_a_session_of_its_own(backend: Backend, folder: Path) -> None:
    ended(backend, backend.submit(python(folder, "import os; print(os.getsid(0))")))
    assert int((folder / "output.log").read_text()) not in (os.getsid(0), os.getpgid(0))


def test_a_cancel_is_term_first(backend: Backend, folder: Path) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); signal.pause()"
    handle = backend.submit(python(folder, code))
    output(folder, "up")
    backend.cancel([handle])
    assert exit_code(backend, handle, folder) == 5


def test_a_job_can_be_cancelled_at_once_after_it_was_submitted_and_twice(backend: Backend, folder: Path) -> None:
    handle = backend.submit(spec(folder, "sleep", "60"))
    backend.cancel([handle])
    backend.cancel([handle])
    assert exit_code(backend, handle, folder) != 0


def test_a_term_that_reaches_the_shell_in_place_of_the_command_is_sent_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The shell of a job forks; until its copy has become the command, that takes TERM as the shell does, for nothing.
    copy = '(trap : TERM; echo up; while [ ! -e go ]; do :; done; trap - TERM; exec "$@")'
    monkeypatch.setattr("stream_server.launcher.backends.backend.SHELL", SHELL.replace('"$@"', copy))
    with closing(LocalBackend(grace_s=2 * DEADLINE_S)) as backend:
        handle = backend.submit(spec(folder, "sleep", "60"))
        output(folder, "up")
        backend.cancel([handle])
        assert state(backend, handle) is JobState.ENDING
        (folder / "go").touch()
        assert exit_code(backend, handle, folder) == 128 + signal.SIGTERM


def test_a_cancel_ends_the_whole_tree_of_processes_also_one_that_ignores_term(backend: Backend, folder: Path) -> None:
    (folder / "stubborn.py").write_text(STUBBORN)
    handle = backend.submit(spec(folder, "sh", "-c", f"(sh -c '{sys.executable} stubborn.py; true'; true) & wait"))
    stubborn = int(output(folder, "\n").split()[1])
    begin = time.monotonic()
    backend.cancel([handle])
    ended(backend, handle)
    assert has_ended(stubborn)
    assert time.monotonic() - begin < DEADLINE_S / 2


def test_cancelling_one_job_leaves_the_others_alone(backend: Backend, tmp_path: Path) -> None:
    handles = []
    for name in "ab":
        (tmp_path / name).mkdir()
        handles.append(backend.submit(spec(tmp_path / name, sys.executable, "-c", WAITING)))
        output(tmp_path / name, "\n")
    backend.cancel(handles[:1])
    ended(backend, handles[0])
    assert state(backend, handles[1]) is JobState.RUNNING


def test_a_handle_of_which_nothing_is_known_is_unknown_and_not_ended(backend: Backend, folder: Path) -> None:
    handle = backend.submit(spec(folder, "true"))
    assert state(backend, f"{handle}0") is JobState.UNKNOWN
    backend.cancel([f"{handle}0"])
    assert state(backend, f"{handle}0") is JobState.UNKNOWN


def test_closing_kills_what_still_runs(make: Make, folder: Path) -> None:
    backend = make()
    handle = backend.submit(python(folder, STUBBORN))
    stubborn = int(output(folder, "\n").split()[1])
    backend.query([handle])
    backend.close()
    deadline = time.monotonic() + DEADLINE_S
    while not has_ended(stubborn):
        assert time.monotonic() < deadline
        time.sleep(0.01)


SUBMIT = """
import json, os, sys
from pathlib import Path
from stream_server.backends import JobSpec
from tests.launcher.backends.test_backends import made
values = json.load(sys.stdin)
spec = JobSpec(**{**values, "command": tuple(values["command"]), "folder": Path(values["folder"])})
print(made(os.environ.get("TESTED_BACKEND", "local"), Path(sys.argv[1])).submit(spec), flush=True)
os._exit(0)
"""


def submitted_elsewhere(job: JobSpec) -> str:
    """Submit a job in another process, which is gone when this returns; the handle."""
    values = {**asdict(job), "folder": str(job.folder), "marks": list(job.marks)}
    return subprocess.run(
        [sys.executable, "-c", SUBMIT, str(job.folder.parent)],
        input=json.dumps(values).encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        check=True,
    ).stdout.decode()[:-1]


def test_a_job_that_was_never_submitted_is_not_taken_for_one_that_runs(backend: Backend, folder: Path) -> None:
    saved = SavedJob(folder=folder, marks=spec(folder, "true").marks, handle=None)
    with suppress(SubmitError):
        assert state(backend, backend.reattach(saved)) is JobState.ENDED


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_job_of_another_launcher_runs_until_its_processes_end_and_then_ended_as_it_says(
    backend: Backend, folder: Path, is_saved: bool
) -> None:
    job = python(folder, WAITING)
    handle = submitted_elsewhere(job)
    output(folder, "\n")
    handle = backend.reattach(SavedJob(folder=folder, marks=job.marks, handle=handle if is_saved else None))
    assert state(backend, handle) is JobState.RUNNING
    (folder / "go").touch()
    assert exit_code(backend, handle, folder) == 4


def test_a_job_of_another_launcher_that_had_ended_says_how(backend: Backend, folder: Path) -> None:
    job = spec(folder, "false")
    handle = submitted_elsewhere(job)
    deadline = time.monotonic() + DEADLINE_S
    while exit_code_of(folder / EXIT_FILE) is None:
        assert time.monotonic() < deadline
    handle = backend.reattach(SavedJob(folder=folder, marks=job.marks, handle=handle))
    assert exit_code(backend, handle, folder) == 1


def test_a_job_of_another_launcher_can_be_cancelled(backend: Backend, folder: Path) -> None:
    job = python(folder, STUBBORN)
    handle = submitted_elsewhere(job)
    stubborn = int(output(folder, "\n").split()[1])
    handle = backend.reattach(SavedJob(folder=folder, marks=job.marks, handle=handle))
    backend.cancel([handle])
    ended(backend, handle)
    assert has_ended(stubborn)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open no file while the `with` block lasts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/dev/null", os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("is_ours", [True, False])
def test_without_a_descriptor_left_no_job_is_taken_for_ended(backend: Backend, folder: Path, is_ours: bool) -> None:
    job = python(folder, WAITING)
    handle = backend.submit(job) if is_ours else submitted_elsewhere(job)
    output(folder, "\n")
    if not is_ours:
        backend.reattach(SavedJob(folder=folder, marks=job.marks, handle=handle))
    with no_descriptors(), suppress(OSError, subprocess.SubprocessError):
        assert state(backend, handle) in (JobState.RUNNING, JobState.UNKNOWN)
    assert state(backend, handle) is JobState.RUNNING
    (folder / "go").touch()
    assert exit_code(backend, handle, folder) == 4


def test_without_a_descriptor_left_no_local_job_that_ends_is_judged(local: LocalBackend, folder: Path) -> None:
    handle = local.submit(python(folder, WAITING))
    pid = int(output(folder, "\n"))
    shell = psutil.Process(pid).ppid()
    with no_descriptors():
        os.mkdir(folder / "go")
        deadline = time.monotonic() + DEADLINE_S
        while os.waitid(os.P_PID, shell, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(OSError, match="Too many open files"):
            local.query([handle])
    assert ended(local, handle).exit_code == 4


@pytest.mark.parametrize("command", ["heat_solver", "./heat_solver", "/no/such/solver"])
def test_a_command_that_does_not_exist_is_refused(local: LocalBackend, folder: Path, command: str) -> None:
    with pytest.raises(SubmitError, match=f"the command '{command}' was not found or cannot be executed") as caught:
        local.submit(spec(folder, command))
    assert caught.value.exit_code == 127


def test_a_job_whose_first_process_is_killed_has_ended_and_takes_the_others_with_it(
    local: LocalBackend, folder: Path
) -> None:
    handle = local.submit(
        python(folder, "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(60)")
    )
    first, simulation = (int(text) for text in output(folder, "\n").split())
    os.kill(first, signal.SIGKILL)
    assert ended(local, handle) == JobStatus(state=JobState.ENDED, reason="was killed from outside")
    assert has_ended(simulation)


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("daemon", os.getpid(), flush=True)
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("lives_s", [0, 60])
def test_a_daemon_is_found_and_killed(local: LocalBackend, folder: Path, lives_s: int) -> None:
    (folder / "daemon.py").write_text(DAEMON)
    handle = local.submit(spec(folder, sys.executable, "daemon.py", str(lives_s)))
    daemon = int(output(folder, "\n").split()[1])
    if lives_s:
        local.cancel([handle])
    ended(local, handle)
    assert has_ended(daemon)


def test_a_job_of_another_launcher_of_which_nothing_is_left_has_ended_without_a_word(
    local: LocalBackend, folder: Path
) -> None:
    job = spec(folder, "true")
    handle = local.reattach(SavedJob(folder=folder, marks=job.marks, handle=f"{os.getpid()} 1 {processes.this_boot()}"))
    assert ended(local, handle) == JobStatus(
        state=JobState.ENDED, reason="ended while no launcher watched it, without a word"
    )


def test_a_job_of_another_start_of_the_machine_is_known_by_its_marks_only(local: LocalBackend, folder: Path) -> None:
    session, other = os.getsid(0), subprocess.Popen(["sleep", "60"])
    try:
        job = spec(folder, "true")
        handle = local.reattach(SavedJob(folder=folder, marks=job.marks, handle=f"{session} 1 another-boot"))
        local.cancel([handle])
        assert ended(local, handle).exit_code is None
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_job_of_another_launcher_whose_first_process_is_gone_runs_as_long_as_any_process_of_it(
    local: LocalBackend, folder: Path
) -> None:
    job = python(folder, "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(60)")
    handle = submitted_elsewhere(job)
    first, simulation = (int(text) for text in output(folder, "\n").split())
    os.kill(first, signal.SIGKILL)
    handle = local.reattach(SavedJob(folder=folder, marks=job.marks, handle=handle))
    assert state(local, handle) is JobState.RUNNING
    os.kill(simulation, signal.SIGKILL)
    assert ended(local, handle).exit_code is None
